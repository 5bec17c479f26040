"""Finds input files in directories with all that is below them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_tf.durable.manifest import MANIFEST_NAME, intact_manifest, require_listed_files
from bert_tf.util.errors import UserError
from bert_tf.util.files import files_at, parts_of, paths_named, require_file


class InputFile(NamedTuple):
    """A file to read, and whether it is in a directory of a directory that was given."""

    path: Path
    is_nested: bool


def find_input_tree(patterns: str, *, flag: str = "input_file") -> list[InputFile]:
    """The files that are named, or are at any depth below a directory that is named; sorted.

    Hidden files and directories and empty files are left out; a directory that links lead to twice
    is read once. Raises UserError if a link leads nowhere, a file cannot be read, nothing is left,
    or files differ from the manifest in their directory.
    """
    require_listed_files(patterns)
    found: dict[Path, bool] = {}
    seen: set[tuple[int, int]] = set()
    for part in parts_of(patterns):
        named = paths_named(part)
        direct = [path for name in named for path in files_at(name)]
        below = [path for name in named if name.is_dir() for path in _below(name, seen)]
        if not direct and not below:
            raise UserError(f"--{flag}: no file matches {part!r}; give an existing file.")
        found.update(dict.fromkeys(below, True))
        found.update((path, False) for path in direct if path.name != MANIFEST_NAME)
    files = [
        InputFile(require_file(path, flag=flag), is_nested)
        for path, is_nested in sorted(found.items())
        if not path.is_file() or path.stat().st_size
    ]
    if not files:
        raise UserError(f"--{flag}: the files in {patterns!r} are empty; give files with text.")
    return files


def _below(directory: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The files in the directories of a directory; not of one that a stage has filled."""
    status = directory.stat()
    if (status.st_dev, status.st_ino) in seen or intact_manifest(directory) is not None:
        return
    seen.add((status.st_dev, status.st_ino))
    inner = sorted(inside for inside in directory.iterdir() if inside.name[0] != ".")
    for inside in filter(Path.is_dir, inner):
        status = inside.stat()
        if (status.st_dev, status.st_ino) not in seen:
            yield from files_at(inside)
            yield from _below(inside, seen)
