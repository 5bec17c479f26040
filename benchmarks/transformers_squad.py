"""The peer of run_squad.py: transformers' model in a loop on torch, on the same windows, timed.

As in the library's examples/pytorch/question-answering/run_qa.py (4.57): windows padded to all
positions, AdamW (fused, as the Trainer's default), gradients clipped at 1, a linear schedule.
Windows are cut and answers chosen by run_squad.py's code, so that scores compare what was learnt.
To the peer's advantage, all features are in memory before the first step: no data loader is timed.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering

from benchmarks.speed.huggingface import Updates, autocast, peer_batch
from benchmarks.speed.steps import Batch, Recipe
from bert_tf.checkpoint.model_files import model_files
from bert_tf.config.bert_config import INPUTS
from bert_tf.records.tfrecord import RecordSet
from bert_tf.squad.answers import AnswerSettings, decode_answers
from bert_tf.squad.examples import SquadFile, read_squad
from bert_tf.squad.features import build_features
from bert_tf.squad.spans import SpanCandidates
from bert_tf.squad.windows import WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles

Timing = tuple[int, float]  # sequences of a batch and the seconds that it took


@dataclasses.dataclass
class Windows:
    """The windows of a file.

    Attributes:
      features: ``INPUTS`` [N, S] and, for training, labels [N]; int64.
      lengths: tokens of each window, [N].
    """

    features: Batch
    lengths: np.ndarray

    def batch(self, rows: Sequence[int], *, pad: bool) -> dict[str, torch.Tensor]:
        """The model's arguments for some windows, with padding to S or to their longest."""
        positions = None if pad else int(self.lengths[rows].max())
        of_rows = {name: values[rows] for name, values in self.features.items()}
        return peer_batch({n: v[:, :positions] if n in INPUTS else v for n, v in of_rows.items()})


def read_windows(
    squad: SquadFile, files: TokenizerFiles, settings: WindowSettings, *, training: bool
) -> Windows:
    """The windows of run_squad.py, with the answer's first and last token for ``training``."""
    with tempfile.TemporaryDirectory() as directory:
        made = build_features(
            squad, directory, tokenizer_files=files, windows=settings, training=training
        )
        records = RecordSet(made.files).read(list(range(len(made))))
        decoded = [made.spec.decode(record) for record in records]
    features = {name: np.stack([record[name] for record in decoded]) for name in INPUTS}
    for name in ("start_positions", "end_positions") if training else ():
        features[name] = np.concatenate([record[name] for record in decoded])
    return Windows(features, made.lengths)


def training_rows(num_windows: int, *, batch_size: int, steps: int, seed: int) -> Iterator[Any]:
    """The windows of each batch, shuffled for each epoch, whose last batch may be smaller."""
    generator = np.random.default_rng(seed)
    while steps > 0:
        order = generator.permutation(num_windows)
        for first in range(0, num_windows, batch_size)[:steps]:
            yield order[first : first + batch_size]
            steps -= 1


def train(model: torch.nn.Module, windows: Windows, job: Mapping[str, Any]) -> list[Timing]:
    """Fine-tunes the model; returns the sequences and the seconds of every step."""
    batch_size, settings = job["train_batch_size"], job["settings"]
    steps = max(1, round(-(-len(windows.lengths) // batch_size) * job["num_train_epochs"]))
    warmup_steps = int(steps * job["warmup_proportion"])
    recipe = Recipe(job["learning_rate"], steps, warmup_steps, job["weight_decay"])
    updates = Updates(model, recipe, precision=settings["precision"])
    timings = []
    for rows in training_rows(
        len(windows.lengths), batch_size=batch_size, steps=steps, seed=job["seed"]
    ):
        start = time.perf_counter()
        updates.update([windows.batch(rows, pad=settings["pad_to_max_length"])])
        timings.append((len(rows), time.perf_counter() - start))
    return timings


def predict(
    model: torch.nn.Module, windows: Windows, job: Mapping[str, Any]
) -> tuple[SpanCandidates, list[Timing]]:
    """The best positions of every window, and the sequences and the seconds of every batch."""
    shape, settings = windows.features["input_ids"].shape, job["settings"]
    start_logits, end_logits = (np.full(shape, -np.inf, np.float32) for _ in range(2))
    timings = []
    model.eval()
    with torch.no_grad(), autocast(settings["precision"]):
        for first in range(0, shape[0], job["predict_batch_size"]):
            start = time.perf_counter()
            rows = np.arange(shape[0])[first : first + job["predict_batch_size"]]
            output = model(**windows.batch(rows, pad=settings["pad_to_max_length"]))
            positions = output.start_logits.shape[1]
            start_logits[rows, :positions] = output.start_logits.float().numpy()
            end_logits[rows, :positions] = output.end_logits.float().numpy()
            timings.append((len(rows), time.perf_counter() - start))
    null_logits = start_logits[:, 0] + end_logits[:, 0]
    return SpanCandidates(*_best(start_logits), *_best(end_logits), null_logits), timings


def _best(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of the best of each window."""
    indices = np.argsort(-logits, axis=1)[:, : AnswerSettings.n_best_size]
    return indices, np.take_along_axis(logits, indices, axis=1)


def fine_tune(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains and predicts.

    Args:
      job: ``init_checkpoint``, ``train_file``, ``predict_file``, hyper-parameters under
        run_squad.py's names, and ``settings``: ``precision`` and ``pad_to_max_length``.

    Returns:
      ``answers`` by question, and ``train_timings`` and ``predict_timings``: the sequences and the
      seconds of each batch.
    """
    torch.manual_seed(job["seed"])
    checkpoint, is_version_2 = job["init_checkpoint"], job["version_2_with_negative"]
    model = AutoModelForQuestionAnswering.from_pretrained(checkpoint)
    files = model_files(checkpoint).tokenizer_files
    settings = WindowSettings(job["max_seq_length"], job["doc_stride"], job["max_query_length"])
    to_learn, to_answer = (
        read_squad(
            job[flag],
            flag=flag,
            version_2_with_negative=is_version_2,
            needs_answers=flag == "train_file",
        )
        for flag in ("train_file", "predict_file")
    )
    train_timings = train(model, read_windows(to_learn, files, settings, training=True), job)
    candidates, predict_timings = predict(
        model, read_windows(to_answer, files, settings, training=False), job
    )
    answer_settings = AnswerSettings(version_2_with_negative=is_version_2)
    found = decode_answers(to_answer, files.load(), settings, candidates, answer_settings)
    timings = {"train_timings": train_timings, "predict_timings": predict_timings}
    return {"answers": found.answers, **timings}
