"""Checks that a configuration and a vocabulary are those with which weights were trained.

Shapes do not reveal this: networks with equal shapes may differ in heads or activation, and
vocabularies of equal size in every entry. The files stored with the weights do.
"""

from __future__ import annotations

from pathlib import Path

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.text.tokenizer_files import Vocabulary, vocabulary_named_in

# Settings that change what a network computes but not the shapes of its variables.
_NOT_IN_SHAPES = ("num_attention_heads", "hidden_act")


def known_vocabularies(files: ModelDirectory) -> list[Vocabulary]:
    """The vocabulary stored with the weights, and those whose hashes are in other files."""
    record = files.record or files.run_record
    found = [
        files.tokenizer_files.vocabulary(),
        vocabulary_named_in(record.path, record.vocabulary_digest) if record else None,
    ]
    return [vocabulary for vocabulary in found if vocabulary is not None]


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
    known = known_vocabularies(files)
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
    notes: dict[str, str] = {}
    for path, config in known_configs(files):
        differences = config.differences(network)
        wrong = {name: differences.function.get(name) for name in _NOT_IN_SHAPES}
        if wrong["hidden_act"] and _may_be_same_gelu(network, config, files, path):
            del wrong["hidden_act"]
            notes.setdefault("gelu", _which_gelu(config, network, path))
        named = ", ".join(filter(None, wrong.values()))
        if named:
            return f"its configuration {path} differs from the network's: {named}", []
        if differences.training:
            named = ", ".join(differences.training.values())
            notes.setdefault(named, f"unlike in {path}: {named}")
    return "", list(notes.values())


def _may_be_same_gelu(
    network: BertConfig, config: BertConfig, files: ModelDirectory, path: Path
) -> bool:
    """Whether either GELU is written as ``gelu``, whose meaning depends on the program.

    Published models are often converted without changing this name.
    """
    written = files.settings.get("hidden_act") if path == files.config_file else config.hidden_act
    both = {network.hidden_act, config.hidden_act}
    return both <= {"gelu", "gelu_tanh", "gelu_erf"} and "gelu" in (network.hidden_act, written)


def _which_gelu(config: BertConfig, network: BertConfig, path: Path) -> str:
    made_with, computed = config.hidden_act, network.with_explicit_gelu().hidden_act
    return (
        f"warning: the checkpoint was made with {made_with} ({path}), but this network computes "
        f'{computed}; write "hidden_act": "{made_with}" in its bert_config'
    )


def known_configs(files: ModelDirectory) -> list[tuple[Path, BertConfig]]:
    """All configurations of the weights, each with its file."""
    found = []
    if files.config is not None and files.config_file is not None:
        found.append((files.config_file, files.config))
    record = files.record or files.run_record
    if record is not None:
        found.append((record.path, record.config))
    return found
