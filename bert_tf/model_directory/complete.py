"""A complete model: its architecture, vocabulary and casing are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.text.unknown_share import HintingTokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


@dataclasses.dataclass(frozen=True)
class CompleteModel:
    """A network's architecture and its tokenizer.

    Attributes:
      checkpoint: a file or directory with the weights; a run that starts from random weights will
        write them there.
      tokenizer_files: the files from which it was loaded, and its casing.
      notes: messages about unsupported settings of the model directory.
      kept: flag -> value of the settings with which the model was trained, that decide predictions.
    """

    checkpoint: Path
    config: BertConfig
    tokenizer: Tokenizer
    tokenizer_files: TokenizerFiles
    notes: tuple[str, ...] = ()
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def usual_length(self) -> int:
        """The most tokens of a sequence in the model's training, or else its positions."""
        return self.kept.get("max_seq_length") or self.config.max_position_embeddings

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary with its hashes."""
        return self.tokenizer_files.required_vocabulary()

    def with_unknown_hint(self) -> CompleteModel:
        """The model with a tokenizer that warns once if its texts have many unknown tokens."""
        hinting = HintingTokenizer(self.tokenizer, self.checkpoint)
        return dataclasses.replace(self, tokenizer=hinting)


def find_model(
    model_dir: PathLike | None = None,
    *,
    init_checkpoint: PathLike | None = None,
    bert_config_file: PathLike | None = None,
    tokenizer_files: TokenizerFiles | None = None,
) -> CompleteModel:
    """Finds the model in a directory or next to weights; given files replace those there.

    As far as can be determined, they must be those with which the weights were trained. If no
    casing is given, it is that of the model's files or else of its vocabulary. ``model_dir`` is the
    output directory of a training run, or a published model.

    Raises UserError if a part is missing, malformed, or belongs to a different model than the
    weights.
    """
    checkpoint = init_checkpoint or model_dir
    if not checkpoint:
        raise UserError("give --model_dir, or --init_checkpoint with the other files of the model.")
    if model_dir:
        require_checkpoint(model_dir, flag="model_dir")
    if init_checkpoint:
        require_checkpoint(init_checkpoint, flag="init_checkpoint")
    if model_dir and not Path(model_dir).is_dir():
        raise UserError(
            f"--model_dir={model_dir} is not a directory; give one, or --init_checkpoint for a "
            "file."
        )
    directory = ModelDirectory.of(model_dir or checkpoint)
    model = complete_model(
        directory,
        Path(checkpoint),
        bert_config_file=bert_config_file,
        tokenizer_files=tokenizer_files or TokenizerFiles(),
    )
    from bert_tf.model_directory.same_model import other_model

    beside_weights = directory
    if model_dir and init_checkpoint:
        beside_weights = ModelDirectory.of(init_checkpoint)
    problem, notes = other_model(beside_weights, config=model.config, vocabulary=model.vocabulary)
    if problem:
        raise UserError(
            f"{checkpoint} cannot be used: {problem}; give the one it was trained with."
        )
    return dataclasses.replace(model, notes=(*model.notes, *notes))


def complete_model(
    directory: ModelDirectory,
    checkpoint: Path,
    *,
    bert_config_file: PathLike | None,
    tokenizer_files: TokenizerFiles,
) -> CompleteModel:
    """The model made of a directory's files; given files replace others.

    Nothing is compared with the weights in ``checkpoint``, which is named in messages. Raises
    UserError if a part is missing or malformed, or if the vocabulary does not fit the network.
    """
    directory = directory.with_config_file(bert_config_file)
    if directory.config is None:
        raise UserError(f"{checkpoint} comes without a bert_config.json; give --bert_config_file.")
    tokenizer_files = tokenizer_files.with_vocabulary_of(directory.tokenizer_files)
    if not tokenizer_files.file:
        raise UserError(
            f"{checkpoint} comes without a vocab.txt or spm.model; give --vocab_file or "
            "--spm_model_file."
        )
    tokenizer_files = tokenizer_files.with_casing(directory.tokenizer_files)
    tokenizer = tokenizer_files.load()
    check_vocabulary_fits(tokenizer, directory.config)
    return CompleteModel(
        checkpoint=checkpoint,
        config=directory.config,
        tokenizer=tokenizer,
        tokenizer_files=tokenizer_files,
        notes=directory.notes,
        kept=directory.kept_settings,
    )


def check_vocabulary_fits(tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raises UserError if a vocabulary has more entries than the network has word embeddings."""
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} entries and the model "
            f"{config.vocab_size}; give the vocabulary that the model was trained with."
        )
