"""``manifest.json``: what a data directory holds and what it was made from.

A stage of the data preparation writes it last, so a directory with a manifest is complete. Names in
it are relative to its own directory and hold no path, time or machine, so that the same inputs and
parameters give the same manifest bytes anywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.errors import UserError, first_line
from bert_tf.files import PathLike, read_json, sha256_of_file, write_json

if TYPE_CHECKING:
    from bert_tf.text.tokenizer import Tokenizer

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """One input or output file.

    Attributes:
      name: path relative to the manifest's directory (outputs) or the bare file name (inputs).
      bytes: size.
      sha256: hexadecimal digest of the content.
      count: units inside (records, sentences, documents), where the stage counts them.
    """

    name: str
    bytes: int
    sha256: str
    count: int | None = None


@dataclasses.dataclass(frozen=True)
class VocabularyEntry:
    """The vocabulary that ids in a data directory refer to."""

    sha256: str
    size: int
    kind: str
    lower_case: bool
    special_ids: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of a ``manifest.json``.

    Attributes:
      stage: name of the module that wrote the directory.
      parameters: JSON values that, with the inputs and the vocabulary, decide every output byte.
      inputs: files that were read, in the order in which they were read.
      outputs: files that were written.
      counts: totals, for example ``{"documents": 12, "records": 340}``.
      vocabulary: the vocabulary of the ids in the outputs, None where there are none.
    """

    stage: str
    parameters: Mapping[str, Any]
    inputs: tuple[FileEntry, ...]
    outputs: tuple[FileEntry, ...]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    vocabulary: VocabularyEntry | None = None
    version: int = FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The manifest as JSON values, with the hash of its parameters."""
        return {
            "version": self.version,
            "stage": self.stage,
            "parameters": dict(self.parameters),
            "parameters_sha256": hash_of_json(self.parameters),
            "vocabulary": dataclasses.asdict(self.vocabulary) if self.vocabulary else None,
            "counts": dict(self.counts),
            "inputs": [dataclasses.asdict(entry) for entry in self.inputs],
            "outputs": [dataclasses.asdict(entry) for entry in self.outputs],
        }

    @property
    def sha256(self) -> str:
        """One digest of the whole data directory: it changes when any output byte changes."""
        return hash_of_json(self.to_dict())


def hash_of_json(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def describe_file(
    path: PathLike, *, relative_to: PathLike | None = None, count: int | None = None
) -> FileEntry:
    """Reads a file once for its size and digest; the name is relative to a directory or bare."""
    path = Path(path)
    name = path.name if relative_to is None else path.relative_to(relative_to).as_posix()
    return FileEntry(name, path.stat().st_size, sha256_of_file(path), count)


def describe_vocabulary(tokenizer: Tokenizer) -> VocabularyEntry:
    """The manifest's entry for a tokenizer."""
    special_ids = {name: getattr(tokenizer, f"{name}_id") for name in SPECIAL_NAMES}
    return VocabularyEntry(
        sha256=tokenizer.vocab_sha256,
        size=tokenizer.vocab_size,
        kind=tokenizer.kind,
        lower_case=tokenizer.lower_case,
        special_ids=special_ids,
    )


def write_manifest(directory: PathLike, manifest: Manifest, *, name: str = MANIFEST_NAME) -> Path:
    """Writes ``directory/name`` atomically and returns its path."""
    path = Path(directory) / name
    write_json(path, manifest.to_dict())
    return path


def read_manifest(directory: PathLike, *, name: str = MANIFEST_NAME) -> Manifest:
    """Reads ``directory/name``; raises UserError when it is missing, malformed or too new."""
    path = Path(directory) / name
    content = read_json(path, what="data manifest")
    try:
        if content["version"] != FORMAT_VERSION:
            raise UserError(
                f"data manifest: {path} has format version {content['version']}, this program "
                f"reads {FORMAT_VERSION}; make the data again."
            )
        if content["parameters_sha256"] != hash_of_json(content["parameters"]):
            raise UserError(
                f"data manifest: the parameters in {path} do not match their hash; "
                "the file was edited, make the data again."
            )
        vocabulary = content["vocabulary"]
        manifest = Manifest(
            stage=content["stage"],
            parameters=content["parameters"],
            inputs=tuple(FileEntry(**entry) for entry in content["inputs"]),
            outputs=tuple(FileEntry(**entry) for entry in content["outputs"]),
            counts=content["counts"],
            vocabulary=VocabularyEntry(**vocabulary) if vocabulary is not None else None,
        )
        _check_types(manifest)
        return manifest
    except (KeyError, TypeError) as error:
        raise UserError(
            f"data manifest: {path} is not a manifest of this program ({first_line(error)}); "
            "make the data again."
        ) from error


def _check_types(manifest: Manifest) -> None:
    """Raises TypeError for a value of another type than a manifest has."""
    _require(str, {"stage": manifest.stage})
    _require(dict, {"parameters": manifest.parameters, "counts": manifest.counts})
    _require(int, manifest.counts)
    for entry in (*manifest.inputs, *manifest.outputs):
        _require(str, {"name": entry.name, "sha256": entry.sha256})
        _require(int, {"bytes": entry.bytes, "count": 0 if entry.count is None else entry.count})
    vocabulary = manifest.vocabulary
    if vocabulary is not None:
        _require(str, {"sha256": vocabulary.sha256, "kind": vocabulary.kind})
        _require(int, {"size": vocabulary.size})
        _require(dict, {"special_ids": vocabulary.special_ids})
        _require(int, vocabulary.special_ids)


def _require(kind: type, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {reprlib.repr(value)}")


def find_manifest(directory: PathLike, *, name: str = MANIFEST_NAME) -> Manifest | None:
    """The manifest of a directory, or None where there is none; a broken one raises UserError."""
    if not (Path(directory) / name).exists():
        return None
    return read_manifest(directory, name=name)


def is_up_to_date(
    directory: PathLike,
    *,
    stage: str,
    parameters: Mapping[str, Any],
    inputs: Sequence[FileEntry],
    vocabulary: VocabularyEntry | None = None,
    name: str = MANIFEST_NAME,
) -> bool:
    """Whether a stage may be skipped: its manifest matches and its outputs are in place.

    Inputs are compared by order, size and digest (not by name, so a moved corpus still matches);
    outputs by name and size, so that a skip does not read them. A broken manifest does not match.
    """
    try:
        manifest = find_manifest(directory, name=name)
    except UserError:
        return False
    if manifest is None or manifest.stage != stage or manifest.vocabulary != vocabulary:
        return False
    if hash_of_json(manifest.parameters) != hash_of_json(parameters):
        return False
    if [(e.bytes, e.sha256) for e in manifest.inputs] != [(e.bytes, e.sha256) for e in inputs]:
        return False
    return all(_has_size(Path(directory) / entry.name, entry.bytes) for entry in manifest.outputs)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
