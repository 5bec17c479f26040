"""Whether a configuration and a vocabulary are those that weights were trained with.

Shapes do not show it: two networks of the same shapes may differ in heads or activation, two
vocabularies of one size in every word. What stands beside the weights does. No TensorFlow is needed
here.
"""

from __future__ import annotations

from pathlib import Path

from bert_tf.checkpoint.model_files import ModelFiles
from bert_tf.config.bert_config import BertConfig
from bert_tf.text.tokenizer_files import Vocabulary, vocabulary_named_in

# Settings that change what a network computes and leave all its variables as they are.
_IN_NO_SHAPE = ("num_attention_heads", "hidden_act")


def known_vocabularies(files: ModelFiles) -> list[Vocabulary]:
    """The vocabulary beside weights, and the one that the record of their training names."""
    record = files.run_record
    found = [
        files.tokenizer_files.vocabulary(),
        vocabulary_named_in(record.path, record.vocabulary_sha256) if record else None,
    ]
    return [vocabulary for vocabulary in found if vocabulary is not None]


def other_vocabulary(files: ModelFiles, own: Vocabulary | None) -> tuple[str, list[str]]:
    """Compares the vocabulary to be used with that of the weights.

    Args:
      files: what stands beside the weights.
      own: what is to be used, None where nobody knows it.

    Returns:
      What is wrong, "" if nothing is; and a sentence where there is nothing to compare.
    """
    known = known_vocabularies(files)
    if own is None or not known:
        unknown = "the data" if own is None else "the model"
        return "", [
            f"the vocabulary was not compared: no file beside {unknown} says which one was used"
        ]
    for vocabulary in known:
        if not own.is_same(vocabulary):
            return f"it has another vocabulary ({vocabulary.source}) than {own.source}", []
    return "", []


def other_function(files: ModelFiles, network: BertConfig) -> tuple[str, list[str]]:
    """Compares a network with what is known of weights that it is to start from.

    Sizes are left to the comparison of shapes.

    Returns:
      What would be computed otherwise although the shapes are the same, "" if nothing; and
      sentences on other differences.
    """
    notes: dict[str, str] = {}
    for path, config in known_configs(files):
        differences = config.differences(network)
        wrong = {name: differences.function.get(name) for name in _IN_NO_SHAPE}
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
    network: BertConfig, config: BertConfig, files: ModelFiles, path: Path
) -> bool:
    """Whether one of two GELUs is written ``gelu``: which function that is depends on who wrote it.

    Published models are often converted without a change of that word.
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


def known_configs(files: ModelFiles) -> list[tuple[Path, BertConfig]]:
    """The configurations of weights, each with the file that has it."""
    found = []
    if files.config is not None:
        found.append((files.config_file, files.config))
    if files.run_record is not None:
        found.append((files.run_record.path, files.run_record.config))
    return found
