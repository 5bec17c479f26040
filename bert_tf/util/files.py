"""Finds input files, hashes them and writes output files atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Union

from bert_tf.util.errors import DISK_IS_FULL, RepairableError, UserError, advice_on

PathLike = Union[str, Path]

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
# Suffixes of the files that accompany records in a data directory.
OFFSETS_SUFFIX = ".offsets"  # of the file with the offset of each record
SIDE_FILE_SUFFIXES = (OFFSETS_SUFFIX, ".lengths", ".json", ".vocab")


def expand_input_files(patterns: str, *, flag: str) -> list[Path]:
    """Resolves a comma-separated list of files, globs and directories to sorted, unique files.

    A directory stands for the regular files directly inside it, except hidden ones. A file named in
    several ways, absolutely and relatively, counts once. Raises a UserError that names ``flag`` if
    a pattern matches nothing.
    """
    files: dict[str, Path] = {}
    for pattern in parts_of(patterns):
        matches = [path for name in paths_named(pattern) for path in files_at(name)]
        if not matches:
            raise UserError(f"--{flag}: no file matches {pattern!r}; give an existing file.")
        for path in matches:
            files.setdefault(os.path.abspath(path), path)
    if not files:
        raise UserError(f"--{flag} is empty; give a file, a glob or a comma-separated list.")
    return sorted(files.values())


def search_locations(patterns: str) -> dict[tuple[Path, str], bool]:
    """Directories in which such a list looks for files, each with a glob for file names.

    The glob may match names that do not exist. The values tell whether a whole directory was given,
    in which case it has no other glob.
    """
    places: dict[tuple[Path, str], bool] = {}
    for pattern in parts_of(patterns):
        head, tail = os.path.split(pattern)
        if os.path.exists(pattern):
            head, tail = glob.escape(head), glob.escape(tail)
        for name in paths_named(pattern):
            if name.is_dir():
                places[name, "*"] = True
        if not os.path.isdir(pattern):
            for place in glob.glob(head or os.curdir):
                places.setdefault((Path(place), tail), False)
    wholes = {os.path.abspath(directory) for (directory, _), whole in places.items() if whole}
    found: dict[str, tuple[Path, str]] = {}
    for (directory, tail), whole in places.items():
        if whole or os.path.abspath(directory) not in wholes:
            found.setdefault(os.path.join(os.path.abspath(directory), tail), (directory, tail))
    return {place: places[place] for place in found.values()}


def parts_of(patterns: str) -> list[str]:
    """Splits a comma-separated list; an existing file's name is one part even if it has commas.

    Quotes that a flag file or script left around a part are removed.
    """
    if os.path.exists(patterns):
        return [patterns]
    return list(filter(None, (_unquoted(part.strip()) for part in patterns.split(","))))


def _unquoted(part: str) -> str:
    quoted = len(part) > 1 and part[0] == part[-1] and part[0] in "\"'"
    return part[1:-1].strip() if quoted and not os.path.exists(part) else part


def paths_named(pattern: str) -> list[Path]:
    """The paths that match a pattern; the name of an existing file is taken literally."""
    return [Path(name) for name in ([pattern] if os.path.exists(pattern) else glob.glob(pattern))]


def files_at(path: Path) -> list[Path]:
    """The files that a path stands for; see :func:`expand_input_files`.

    Raises UserError if a directory contains a broken link, since a file may be missing.
    """
    if not path.is_dir():
        return [path]
    visible = [inside for inside in path.iterdir() if inside.name[0] != "."]
    broken = next((p for p in visible if p.is_symlink() and not os.path.exists(p)), None)
    if broken:
        raise UserError(f"{broken} is a broken symbolic link; fix or remove it.")
    return [inside for inside in visible if inside.is_file()]


def expand_record_files(patterns: str, *, flag: str) -> list[Path]:
    """Like :func:`expand_input_files`, without files that accompany records.

    Raises UserError if no record file is left.
    """
    found = expand_input_files(patterns, flag=flag)
    records = [path for path in found if path.suffix not in SIDE_FILE_SUFFIXES]
    if not records:
        raise UserError(
            f"--{flag}={patterns} contains no TFRecord file; give the files themselves."
        )
    return records


def require_file(path: PathLike, *, flag: str) -> Path:
    """Returns ``path`` as a Path; raises UserError if it is not a readable, non-empty file."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"--{flag}: {path} does not exist or is not a file.")
    if not os.access(path, os.R_OK):
        raise UserError(f"--{flag}: {path} cannot be read; check its permissions.")
    if path.stat().st_size == 0:
        raise UserError(f"--{flag}: {path} is empty.")
    return path


def find_file(directory: Path, names: Sequence[str], *, flag: str, advice: str) -> Path:
    """The first file in a directory that has one of these names.

    Raises UserError if there is none, with ``advice`` on what to give as ``flag``.
    """
    found = next((directory / name for name in names if (directory / name).exists()), None)
    if found is None:
        lacking = " and no ".join(names) if len(names) < 3 else f"file {' or '.join(names)}"
        raise UserError(f"--{flag}: {directory} has no {lacking}; {advice}.")
    return found


def read_lines(path: PathLike, *, flag: str) -> list[str]:
    """The lines of a UTF-8 file, without line ends and without an empty last line.

    Raises UserError as :func:`require_file` does, and if a line is not UTF-8.
    """
    path = require_file(path, flag=flag)
    text = decode_text(path.read_bytes(), path, flag=flag)
    # Not str.splitlines, which also splits at other characters.
    lines = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def decode_text(content: bytes, path: PathLike, *, flag: str) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises UserError for bytes that are not UTF-8, naming the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"--{flag}: line {line} of {path} is not UTF-8; convert the file."
        ) from error


def make_output_dir(path: PathLike, *, flag: str) -> Path:
    """Creates the directory ``path`` if needed; raises UserError if it cannot be written."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"--{flag}: cannot write to {path} ({error.strerror}); choose another directory."
        ) from error
    return path


def check_output_dir(path: PathLike, *, flag: str) -> Path:
    """Like :func:`make_output_dir`, but checks only what it can without creating anything."""
    path = Path(path)
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--{flag}: cannot write to {existing}; choose another directory.")
    return path


def check_output_file(path: PathLike, *, flag: str) -> Path:
    """Like :func:`check_output_dir`, for a file in a directory that may not exist yet."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"--{flag}: {path} is a directory; give a file name.")
    check_output_dir(path.parent, flag=flag)
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"--{flag}: cannot write to {path}; choose another file.")
    return path


@contextlib.contextmanager
def atomic_open(path: PathLike, mode: str = "w", *, durable: bool = False) -> Iterator[IO[Any]]:
    """Opens a temporary file next to ``path``, renamed to ``path`` when the block succeeds.

    Text is UTF-8 with ``\\n`` line endings; lone surrogates, which UTF-8 cannot encode, are written
    as JSON escapes. An exception leaves no file behind. With ``durable``, the content reaches the
    disk before the file is renamed. Raises UserError if the file cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text: dict[str, Any] = {"encoding": "utf-8", "newline": "\n", "errors": "backslashreplace"}
    try:
        with explain_write_errors(path, temporary):
            with open(temporary, mode, **({} if "b" in mode else text)) as file:
                yield file
                if durable:
                    sync_file(file)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(target: Path, inside: Path) -> Iterator[Path]:
    """Yields where to make a directory, which is renamed to ``target`` when the block succeeds.

    It is in ``inside``, a directory on the same disk that the caller holds. An exception leaves
    nothing behind; what a killed process leaves there, the next holder removes.
    """
    temporary = inside / f".{target.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Written:
    """How much of a file has reached the disk: bytes, and units (records, documents) in them."""

    bytes: int = 0
    count: int = 0


def sync_file(file: IO[Any]) -> None:
    """Flushes what was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def remove_partial_files(directory: PathLike) -> list[str]:
    """Removes what killed processes left of :func:`atomic_open` and :func:`atomic_directory`.

    No other process may be writing to ``directory``. Returns the removed names.
    """
    found = [path for path in Path(directory).iterdir() if _TEMPORARY.fullmatch(path.name)]
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return sorted(path.name for path in found)


@contextlib.contextmanager
def explain_write_errors(path: PathLike, *others: PathLike) -> Iterator[None]:
    """Converts system errors from writing ``path`` to a UserError that names it.

    Errors about files other than ``path``, ``others`` and files below them pass unchanged.
    """
    try:
        yield
    except OSError as error:
        # Errors of write() do not name the file; those of open() and rename() do.
        if error.filename is None:
            is_ours = error.errno in (*DISK_IS_FULL, errno.EIO)
        else:
            failed = Path(os.fsdecode(error.filename))
            is_ours = any(failed.is_relative_to(written) for written in (path, *others))
        if not is_ours:
            raise
        raise RepairableError(
            f"cannot write {path} ({error.strerror}); {advice_on(error)}."
        ) from error


def write_json(path: PathLike, value: Any, *, durable: bool = False) -> None:
    """Writes :func:`finite_or_null` of ``value`` as indented JSON with :func:`atomic_open`."""
    with atomic_open(path, durable=durable) as file:
        json.dump(finite_or_null(value), file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def check_finite(values: Any, name: str, weights: PathLike) -> None:
    """Raises UserError if an array, the variable ``name`` of some weights, is not finite."""
    import numpy as np  # few programs that read and write files need it

    is_finite = np.isfinite(values)
    if not is_finite.all():
        count = values.size - np.count_nonzero(is_finite)
        raise UserError(
            f"weights {weights}: {count:,} of {values.size:,} values of {name} are NaN or "
            "infinite; give other weights, such as an earlier checkpoint."
        )


def finite_or_null(value: Any) -> Any:
    """Replaces every infinity and NaN in ``value``, which JSON cannot represent, by None."""
    if isinstance(value, dict):
        return {key: finite_or_null(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_null(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: PathLike, *, what: str) -> Any:
    """Reads a JSON file; raises a UserError that names ``what`` if it is missing or malformed.

    Integers beyond the range of floats and values nested too deeply, which JSON allows, count as
    malformed.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors write a byte order mark
            return json.load(file, parse_int=_parse_integer)
    except FileNotFoundError:
        raise UserError(f"{what}: {path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{what}: {path} cannot be read ({error.strerror}).") from error
    except RecursionError:
        raise UserError(f"{what}: {path} is nested too deeply.") from None
    except ValueError as error:
        raise UserError(f"{what}: {path} is not valid JSON ({error}).") from error


def read_json_object(path: PathLike, *, what: str) -> dict[str, Any]:
    """Like :func:`read_json`; raises UserError if the top-level value is not an object."""
    value = read_json(path, what=what)
    if not isinstance(value, dict):
        raise UserError(f"{what}: {path} is not a JSON object.")
    return value


def _parse_integer(text: str) -> int:
    # Longer integers overflow floats, and beyond Python's own limit int() itself fails.
    if len(text) > sys.float_info.max_10_exp:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
