"""``manifest.json``: what a data directory contains and what it was made from.

A data preparation stage writes it last, so a directory with a manifest is complete. It contains
bare file names but no paths, times or host names, so that equal inputs and parameters give the same
manifest bytes anywhere. Stages remove the files that an earlier manifest lists, so a manifest with
any other kind of name is rejected.

A directory filled by several calls of a stage has a single manifest, too, which combines the calls'
manifests and keeps them in ``parts``.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.durable.sealed_json import unsealed, write_sealed_json
from bert_tf.util.digest import DIGEST_KEY, digest_of_file, digest_of_json
from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError, first_line, short_repr
from bert_tf.util.files import (
    OFFSETS_SUFFIX,
    SIDE_FILE_SUFFIXES,
    PathLike,
    files_at,
    read_json,
    search_locations,
)

if TYPE_CHECKING:
    from bert_tf.text.tokenizer import Tokenizer
    from bert_tf.text.tokenizer_files import TokenizerFiles

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")

_LONGEST_NAME = 255  # bytes, on common file systems
_ADVICE = "copy it again, or delete its directory and make the data again"


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """An input or output file.

    Attributes:
      name: the bare file name; outputs are in the manifest's directory.
      bytes: size.
      digest: hexadecimal digest of the content.
      count: number of units (records, sentences, documents), if the stage counts them.
    """

    name: str
    bytes: int
    digest: str
    count: int | None = None


@dataclasses.dataclass(frozen=True)
class VocabularyEntry:
    """The vocabulary to which the ids in a data directory refer."""

    digest: str
    size: int
    kind: str
    lower_case: bool
    special_ids: Mapping[str, int]
    strip_accents: bool | None = None  # exactly when lower-casing

    @property
    def file_name(self) -> str:
        """The name of the copy stored with records, unique to this vocabulary."""
        return f"{self.kind}-{self.digest[:12]}.vocab"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; earlier versions did not know ``strip_accents``."""
        return {name: value for name, value in _values(self).items() if value is not None}

    def tokenizer_files(self, path: Path) -> TokenizerFiles:
        """The tokenizer, whose file is at a path."""
        from bert_tf.text.tokenizer_files import TokenizerFiles

        return TokenizerFiles.of_kind(
            self.kind, path, lower_case=self.lower_case, strip_accents=self.strip_accents
        )


Entry = TypeVar("Entry", FileEntry, VocabularyEntry)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of a ``manifest.json``.

    Attributes:
      stage: name of the module that wrote the directory.
      parameters: JSON values that, with the inputs and the vocabulary, determine every output byte.
      inputs: files that were read, in this order.
      outputs: files that were written.
      counts: totals, for example ``{"documents": 12, "records": 340}``.
      vocabulary: the vocabulary of the ids in the outputs; None if there are no ids.
      parts: the manifests of the calls that filled the directory, if there were several.
      made_by: versions of everything else that determined the outputs (``versions.maker``); empty
        if not recorded.
      remark: what is unusual about the outputs, for everyone who uses them; usually empty.
    """

    stage: str
    parameters: Mapping[str, Any]
    inputs: tuple[FileEntry, ...]
    outputs: tuple[FileEntry, ...]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    vocabulary: VocabularyEntry | None = None
    version: int = FORMAT_VERSION
    parts: tuple[Manifest, ...] = ()
    made_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    remark: str = ""

    @property
    def calls(self) -> tuple[Manifest, ...]:
        """The manifests of the individual calls, one or more."""
        return self.parts or (self,)

    @property
    def output_names(self) -> set[str]:
        """The names of the files that were written."""
        return {entry.name for entry in self.outputs}

    def to_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """The manifest as JSON values; unless ``whole``, without what no output depends on."""
        parts = [part.to_dict(whole=whole) for part in self.parts]
        said = {"made_by": dict(self.made_by), "remark": self.remark} if whole else {}
        return {
            "version": self.version,
            "stage": self.stage,
            "parameters": dict(self.parameters),
            "parameters_sha256": digest_of_json(self.parameters),
            "vocabulary": self.vocabulary.to_dict() if self.vocabulary else None,
            "counts": dict(self.counts),
            "inputs": [_values(entry) for entry in self.inputs],
            "outputs": [_values(entry) for entry in self.outputs],
            **({"parts": parts} if parts else {}),
            **{name: value for name, value in said.items() if value},
        }

    @property
    def digest(self) -> str:
        """A digest of the whole data directory, which changes if any output byte changes.

        It stays the same if other versions made the same bytes.
        """
        return digest_of_json(self.to_dict(whole=False))


class UnsafeNameError(UserError):
    """A list of files contains a name that does not denote a file in its directory."""


def is_output_name(name: object) -> bool:
    """Whether ``name`` can be an output of a stage.

    It must be a bare file name: no path, no hidden file (the stages' own), not the manifest's name.
    """
    if not isinstance(name, str) or name.startswith(".") or name == MANIFEST_NAME:
        return False
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return 0 < len(encoded) <= _LONGEST_NAME and b"/" not in encoded and b"\0" not in encoded


def require_output_names(names: Iterable[object], *, listed_in: Path) -> None:
    """Raises UnsafeNameError unless all names listed in a file are valid output names."""
    for name in names:
        if not is_output_name(name):
            raise UnsafeNameError(
                f"{listed_in} lists {short_repr(name)}, which is not the name of a file in its "
                "directory; the list was edited or damaged: delete it and make the data again."
            )


def describe_file(path: PathLike, *, count: int | None = None) -> FileEntry:
    """Reads a file once for its size and digest."""
    path = Path(path)
    return FileEntry(path.name, path.stat().st_size, digest_of_file(path), count)


def describe_files(paths: Iterable[PathLike]) -> Iterator[FileEntry]:
    """The entries of files, in order; reads the files on all cores."""
    executor = concurrent.futures.ThreadPoolExecutor(available_cores())
    try:
        yield from executor.map(describe_file, paths)
    finally:
        executor.shutdown(cancel_futures=True)


def describe_vocabulary(tokenizer: Tokenizer) -> VocabularyEntry:
    """The manifest's entry for a tokenizer."""
    special_ids = {name: getattr(tokenizer, f"{name}_id") for name in SPECIAL_NAMES}
    return VocabularyEntry(
        digest=tokenizer.vocab_digest,
        size=tokenizer.vocab_size,
        kind=tokenizer.kind,
        lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
        special_ids=special_ids,
    )


def write_manifest(directory: PathLike, manifest: Manifest) -> Path:
    """Writes a directory's manifest atomically and returns its path."""
    path = Path(directory) / MANIFEST_NAME
    write_sealed_json(path, manifest.to_dict())
    return path


def read_manifest(directory: PathLike) -> Manifest:
    """Reads a directory's manifest.

    Raises:
      UserError: the manifest is missing, malformed, damaged or too new.
      UnsafeNameError: it lists an output outside its directory.
    """
    path = Path(directory) / MANIFEST_NAME
    content = read_json(path, what="data manifest")
    try:
        if content["version"] != FORMAT_VERSION:
            raise UserError(
                f"data manifest: {path} has format version {content['version']}, but this program "
                f"reads {FORMAT_VERSION}; make the data again."
            )
        if content["parameters_sha256"] != digest_of_json(content["parameters"]):
            raise UserError(
                f"data manifest: the parameters in {path} do not match their hash, so the file was "
                f"edited; {_ADVICE}."
            )
        manifest = _from_dict(content, path)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"data manifest: {path} is not a manifest of this program ({first_line(error)}); "
            f"{_ADVICE}."
        ) from error
    # Earlier versions wrote only the digest of the parameters.
    unsealed(content, path=path, what="data manifest", advice=_ADVICE)
    return manifest


def _from_dict(content: dict[str, Any], path: Path) -> Manifest:
    vocabulary = content["vocabulary"]
    require_output_names((entry["name"] for entry in content["outputs"]), listed_in=path)
    manifest = Manifest(
        stage=content["stage"],
        parameters=content["parameters"],
        inputs=tuple(_entry(FileEntry, values) for values in content["inputs"]),
        outputs=tuple(_entry(FileEntry, values) for values in content["outputs"]),
        counts=content["counts"],
        vocabulary=_entry(VocabularyEntry, vocabulary) if vocabulary is not None else None,
        parts=tuple(_from_dict(part, path) for part in content.get("parts", ())),
        made_by=content.get("made_by", {}),
        remark=content.get("remark", ""),
    )
    _check_types(manifest)
    return manifest


def _values(entry: FileEntry | VocabularyEntry) -> dict[str, Any]:
    """An entry as JSON values."""
    # Not asdict, which makes deep copies: a directory may have thousands of entries.
    values = vars(entry)
    return {DIGEST_KEY if name == "digest" else name: values[name] for name in values}


def _entry(kind: type[Entry], values: Mapping[str, Any]) -> Entry:
    """The entry of :func:`_values`; TypeError for any other values."""
    rest = {**values}
    return kind(digest=rest.pop(DIGEST_KEY), **rest)


def _check_types(manifest: Manifest) -> None:
    """Raises TypeError if a value has the wrong type."""
    _require(str, {"stage": manifest.stage, "remark": manifest.remark})
    _require(dict, {name: getattr(manifest, name) for name in ("parameters", "counts", "made_by")})
    _require(str, manifest.made_by)
    _require(int, manifest.counts)
    for entry in (*manifest.inputs, *manifest.outputs):
        _require(str, {"name": entry.name, DIGEST_KEY: entry.digest})
        _require(int, {"bytes": entry.bytes, "count": 0 if entry.count is None else entry.count})
    vocabulary = manifest.vocabulary
    if vocabulary is not None:
        _require(str, {DIGEST_KEY: vocabulary.digest, "kind": vocabulary.kind})
        _require(int, {"size": vocabulary.size})
        _require(dict, {"special_ids": vocabulary.special_ids})
        _require(int, vocabulary.special_ids)


def _require(kind: type, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {short_repr(value)}")


def find_manifest(directory: PathLike) -> Manifest | None:
    """The manifest of a directory, or None if there is none; UserError if it is broken."""
    exists = (Path(directory) / MANIFEST_NAME).exists()
    return read_manifest(directory) if exists else None


def intact_manifest(directory: PathLike) -> Manifest | None:
    """Like :func:`find_manifest`, but returns None for a broken manifest.

    Raises UnsafeNameError, because the files listed in such a manifest must not be touched.
    """
    try:
        return find_manifest(directory)
    except UnsafeNameError:
        raise
    except UserError:
        return None


def require_listed_files(patterns: str) -> None:
    """Compares the presence and size of input files with the manifests in their directories.

    A directory means exactly the files listed in its manifest; a glob, the listed files that it
    matches; a file, itself. Record offsets are not compared, since they are rebuilt if they do not
    match. Directories with a broken manifest count as having none.

    Args:
      patterns: as in :func:`bert_tf.util.files.expand_input_files`.

    Raises:
      UserError: a file is missing, has a different size, or is in the directory but not listed.
    """
    for (directory, name_glob), is_whole in search_locations(patterns).items():
        manifest = intact_manifest(directory)
        if manifest is None:
            continue
        listed = directory / MANIFEST_NAME
        for entry in manifest.outputs:
            if entry.name.endswith(OFFSETS_SUFFIX) or not fnmatchcase(entry.name, name_glob):
                continue
            path = directory / entry.name
            if not path.is_file():
                raise UserError(
                    f"{path} is missing, but {listed} lists it; make or copy it again, or name the "
                    "files to use."
                )
            if not has_size(path, entry.bytes):
                raise UserError(
                    f"{path} has {path.stat().st_size} bytes, but {listed} lists it with "
                    f"{entry.bytes}; make or copy it again, or delete {MANIFEST_NAME} if the file "
                    "was changed intentionally."
                )
        others = {path.name for path in files_at(directory)} if is_whole else set()
        others -= {MANIFEST_NAME, *(entry.name for entry in manifest.outputs)}
        unlisted = sorted(name for name in others if not name.endswith(SIDE_FILE_SUFFIXES))
        if unlisted:
            raise UserError(
                f"{directory / unlisted[0]} is not among the files that {listed} lists; move it "
                "away, or name the files to use."
            )


def has_size(path: Path, size: int) -> bool:
    """Whether the file exists and has this size."""
    return path.is_file() and path.stat().st_size == size
