"""A pre-training run so small that it takes a moment in the test's own process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import Manifest, VocabularyEntry, describe_file, write_manifest
from bert_tf.model.config import BertConfig
from bert_tf.records.layouts import PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import TFRecordWriter
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.settings import DataSettings, PretrainingSettings
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.settings import optimization_settings, run_settings, runtime_settings

S, P, V = 12, 3, 40
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}

CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=S,
)


def write_records(
    directory: Path, *, vocabulary: str = "ab", label: int | None = None, **parameters: bool
) -> Path:
    """Ten records without stored masks, and a manifest that has ``parameters``.

    ``vocabulary`` is its hash. All next-sentence labels are ``label``, or random without one.
    """
    directory.mkdir()
    rng = np.random.default_rng(3)
    path = directory / "records.tfrecord"
    with TFRecordWriter(path) as writer:
        for _ in range(10):
            example = {
                "input_ids": np.concatenate([[2], rng.integers(5, V, S - 2), [3]]),
                "input_mask": np.ones(S, np.int64),
                "segment_ids": np.zeros(S, np.int64),
                "word_starts": np.ones(S, np.int64),
                "next_sentence_labels": rng.integers(0, 2, 1),
            }
            if label is not None:
                example["next_sentence_labels"] = np.array([label])
            writer.write(PRETRAINING_UNMASKED.encode(example))
    manifest = Manifest(
        stage="create_pretraining_data",
        parameters={"nsp": True, **parameters},
        inputs=(),
        outputs=(describe_file(path, count=10),),
        vocabulary=VocabularyEntry(vocabulary, V, "wordpiece", True, SPECIAL_IDS),
    )
    write_manifest(directory, manifest)
    return path


def pretraining_settings(directory: Path, *, vocabulary: str = "ab") -> PretrainingSettings:
    """A run of one step on ten records, from files in ``directory`` to ``directory/model``."""
    config_file = directory / "bert_config.json"
    config_file.write_text(json.dumps(CONFIG.to_dict()))
    return PretrainingSettings(
        bert_config_file=config_file,
        next_sentence=True,
        masked_lm=True,
        data=DataSettings(
            train_files=(write_records(directory / "train", vocabulary=vocabulary),),
            eval_files=(),
            train_patterns=str(directory / "train"),
            eval_patterns="",
            max_seq_length=S,
            masks=MaskingOptions(max_predictions_per_seq=P),
        ),
        run=run_settings(
            directory / "model",
            do_train=True,
            eval_batch_size=4,
            save_checkpoints_steps=10,
            keep_checkpoint_max=1,
            display_loss_steps=1,
            seed=1,
        ),
        optimization=optimization_settings(),
        runtime=runtime_settings(precision="fp32"),
    )


def refuse(settings: PretrainingSettings, *words: str) -> None:
    """Runs and expects one sentence with the words, and that nothing was written."""
    above = settings.run.output_dir.parent
    before = content_of(above)
    with pytest.raises(UserError) as error:
        pretraining.run(settings)
    assert content_of(above) == before
    sentence = str(error.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence
