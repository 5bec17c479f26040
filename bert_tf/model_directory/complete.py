"""A complete model: its architecture, vocabulary and casing are known, and are its weights' own.

Shapes do not reveal the latter: networks with equal shapes may differ in heads or activation, and
vocabularies of equal size in every entry. The files stored with the weights do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary, vocabulary_named_in
from bert_tf.text.unknown_share import HintingTokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

# Settings that change what a network computes but not the shapes of its variables.
_NOT_IN_SHAPES = ("num_attention_heads", "hidden_act")


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


def other_model(
    files: ModelDirectory, *, config: BertConfig | None, vocabulary: Vocabulary | None
) -> tuple[str, list[str]]:
    """Combines :func:`other_function` and :func:`other_vocabulary`; skips arguments of None."""
    problem, notes = other_function(files, config) if config is not None else ("", [])
    if not problem and vocabulary is not None:
        problem, unknown = other_vocabulary(files, vocabulary)
        notes += unknown
    return problem, notes


def other_vocabulary(files: ModelDirectory, used: Vocabulary | None) -> tuple[str, list[str]]:
    """Compares the vocabulary to be used, None if unknown, with that of the weights.

    Returns the problem, "" if there is none; and a message if there was nothing to compare.
    """
    record = files.record
    named = vocabulary_named_in(record.path, record.vocabulary_digest) if record else None
    known = [v for v in (files.tokenizer_files.vocabulary(), named) if v is not None]
    if used is None or not known:
        unknown = "the data" if used is None else "the model"
        return "", [
            f"the vocabulary was not compared: no file of {unknown} states which one was used"
        ]
    for vocabulary in known:
        if not used.is_same(vocabulary):
            return f"it has a different vocabulary ({vocabulary.source}) than {used.source}", []
    return "", []


def other_function(files: ModelDirectory, network: BertConfig) -> tuple[str, list[str]]:
    """Compares a network with what is known about the weights from which it will start.

    Sizes are left to the comparison of shapes. Returns differences in the computed function in
    spite of equal shapes, "" if there are none; and messages about other differences.
    """
    config, path = files.config, files.config_file
    if config is None or path is None:
        return "", []
    notes = []
    differences = config.differences(network)
    wrong = {name: differences.function.get(name) for name in _NOT_IN_SHAPES}
    if wrong["hidden_act"] and _may_be_same_gelu(network, config, files):
        del wrong["hidden_act"]
        notes.append(_which_gelu(config, network, path))
    if named := ", ".join(filter(None, wrong.values())):
        return f"its configuration {path} differs from the network's: {named}", []
    if differences.training:
        notes.append(f"unlike in {path}: {', '.join(differences.training.values())}")
    return "", notes


def _may_be_same_gelu(network: BertConfig, config: BertConfig, files: ModelDirectory) -> bool:
    """Whether either GELU is written as ``gelu``, whose meaning depends on the program.

    Published models are often converted without changing this name.
    """
    both = {network.hidden_act, config.hidden_act}
    written = files.settings.get("hidden_act", config.hidden_act)
    return both <= {"gelu", "gelu_tanh", "gelu_erf"} and "gelu" in (network.hidden_act, written)


def _which_gelu(config: BertConfig, network: BertConfig, path: Path) -> str:
    made_with, computed = config.hidden_act, network.with_explicit_gelu().hidden_act
    return (
        f"warning: the checkpoint was made with {made_with} ({path}), but this network computes "
        f'{computed}; write "hidden_act": "{made_with}" in its bert_config'
    )
