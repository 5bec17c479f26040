"""Whether a configuration and a vocabulary are those that weights were trained with.

Shapes do not show it: two networks of the same shapes may differ in heads or activation, two
vocabularies of one size in every word. What stands beside the weights does. No TensorFlow is needed
here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

from bert_tf.checkpoint.model_files import ModelFiles
from bert_tf.config.bert_config import BertConfig
from bert_tf.files import PathLike

# Settings that change what a network computes and leave all its variables as they are.
_IN_NO_SHAPE = ("num_attention_heads", "hidden_act")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary by its hash, wherever that is known from.

    Attributes:
      source: the file that holds it, or that names its hash.
      sha256: of the vocabulary file's bytes; several where its entries are known, since the same
        entries may end in other line feeds.
    """

    source: Path
    sha256: frozenset[str]

    def is_same(self, other: Vocabulary) -> bool:
        """Whether both have the same entries, as far as hashes show it."""
        return not self.sha256.isdisjoint(other.sha256)


def vocabulary_of(
    *, vocab_file: PathLike | None = None, spm_model_file: PathLike | None = None
) -> Vocabulary | None:
    """The vocabulary in one of two files, None without any; OSError where it cannot be read."""
    if vocab_file is not None:
        content = Path(vocab_file).read_bytes()
        return Vocabulary(Path(vocab_file), frozenset(map(_sha256, _spellings(content))))
    if spm_model_file is not None:
        content = Path(spm_model_file).read_bytes()
        return Vocabulary(Path(spm_model_file), frozenset({_sha256(content)}))
    return None


def vocabulary_named_in(source: PathLike, sha256: str | None) -> Vocabulary | None:
    """The vocabulary whose hash a file names; None where it names none."""
    return Vocabulary(Path(source), frozenset({sha256})) if sha256 else None


def _spellings(content: bytes) -> Iterator[bytes]:
    """A vocab.txt as it is, and with each kind of line ends, the last one there or not."""
    yield content
    entries = [line.strip() for line in content.rstrip(b"\r\n").split(b"\n")]
    for line_end in (b"\n", b"\r\n"):
        joined = line_end.join(entries)
        yield from (joined, joined + line_end)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def known_vocabularies(files: ModelFiles) -> list[Vocabulary]:
    """The vocabulary beside weights, and the one that the record of their training names."""
    record = files.run_record
    found = [
        vocabulary_of(vocab_file=files.vocab_file, spm_model_file=files.spm_model_file),
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
