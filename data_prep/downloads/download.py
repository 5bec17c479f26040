"""The download of a collection of text, which later calls continue."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import posixpath
import re
import shutil
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, ClassVar

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.config.declared import setting
from bert_tf.durable.manifest import is_output_name
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import explain_write_errors, make_output_dir, read_lines
from bert_tf.util.options import Interval
from bert_tf.util.progress import Progress
from data_prep.downloads import dumps
from data_prep.downloads.transfer import (
    Pace,
    RemoteFile,
    StoppedError,
    check_checksum,
    fetch,
    read_text,
)
from data_prep.stages.settings import LanguageSettings, OutputSettings
from data_prep.stages.stage import define_settings
from data_prep.text.languages import DEFAULT_LANGUAGE

STAGE = "download"
WIKIPEDIA = "wikipedia"
_PARTIAL_NAME = ".download"
_LONGEST_LIST_BYTES = 64 << 20
# A line of ``sha256sum --tag``, which is also how the BSDs write them.
_TAGGED_CHECKSUM = re.compile(r"[A-Z0-9-]+ \((.+)\) = (\S+)")


@dataclasses.dataclass(frozen=True)
class SourceSettings(LanguageSettings):
    """A collection of text."""

    heading: ClassVar[str] = "Download"
    source: str | None = setting(
        None, "A collection of text to download.", kind=str, choices=(WIKIPEDIA,)
    )
    date: str = setting(
        dumps.LATEST, "The dump's date, such as 20240601, or latest: the last finished one."
    )
    mirror: str = setting(dumps.MIRROR, "Address of a mirror of Wikimedia's dumps.")
    num_connections: int = setting(
        2,
        "Files to download at the same time; Wikimedia asks for not more than 3.",
        bounds=Interval(1, 16),
    )


@dataclasses.dataclass(frozen=True)
class Settings(SourceSettings, OutputSettings):
    """Settings of the stage; either ``source`` or ``url`` is given.

    Attributes:
      url: addresses of files.
    """

    url: Sequence[str] = ()
    checksum_file: str | None = setting(
        None,
        "File with a checksum (MD5, SHA-1, SHA-256 or SHA-512) and a name in each line, as "
        "sha256sum writes them, for the files of --url.",
        kind=str,
    )

    def contradictions(self) -> Iterator[str]:
        """Raises UserError unless there is exactly one source, with no flag of the other."""
        if bool(self.source) == bool(self.url):
            yield "give either --source=wikipedia or --url."
        if self.source:
            dumps.check_dump_flags(self.language_of_dump, self.date, self.mirror)
            if self.checksum_file:
                yield "--checksum_file belongs to --url: Wikipedia's dumps have their own."
        yield from super().contradictions()

    @property
    def language_of_dump(self) -> str:
        """The code of the Wikipedia's language."""
        return self.language or DEFAULT_LANGUAGE


def run(settings: Settings, *, wait: Callable[[float], object] | None = None) -> Path:
    """Downloads what is missing; returns the output directory.

    ``wait`` is called with the seconds between attempts; None sleeps.
    """
    directory = make_output_dir(settings.output_dir, flag="output_dir")
    if settings.source:
        pace = Pace(wait=time.sleep if wait is None else wait)
        read = functools.partial(read_text, pace=pace, most_bytes=_LONGEST_LIST_BYTES)
        dump = dumps.find_dump(settings.language_of_dump, settings.date, settings.mirror, read)
        report(f"{STAGE}: {dump.wiki} of {dump.date}, {len(dump.files)} files")
        files = dump.files
    else:
        files = _files_at(settings.url, settings.checksum_file)
    _check_names(files)
    run_stage(
        STAGE,
        directory,
        # A file is the same on every mirror if its checksum is.
        parameters={"files": {f.name: f.checksum or f.url for f in files}},
        inputs=(),
        made_by={},  # its files have checksums
        build=functools.partial(_build, files, directory, settings.num_connections, wait),
    )
    shutil.rmtree(directory / _PARTIAL_NAME, ignore_errors=True)
    return directory


def _files_at(urls: Sequence[str], checksum_file: str | None) -> list[RemoteFile]:
    checksums = _read_checksums(checksum_file) if checksum_file else None
    files = []
    for url in dict.fromkeys(urls):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"--url={url} is not an address that begins with https:// or http://.")
        name = posixpath.basename(urllib.parse.unquote(parts.path))
        found = {None} if checksums is None else checksums.get(name, set())
        if len(found) != 1:
            how_many = f"{len(found)} different checksums" if found else "no checksum"
            raise UserError(
                f"--checksum_file: {checksum_file} has {how_many} for {name}, which --url={url} "
                "needs; give a list with one, or leave out --checksum_file for this address."
            )
        files.append(RemoteFile(url, name, checksum=next(iter(found))))
    return files


def _read_checksums(path: str) -> dict[str, set[str]]:
    """The checksums by file name, from lines as ``sha256sum`` writes them, with --tag or without.

    A list may name files of several directories, and so a name several times.
    """
    checksums: dict[str, set[str]] = {}
    for number, line in enumerate(read_lines(path, flag="checksum_file"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        tagged = _TAGGED_CHECKSUM.fullmatch(line)
        if tagged:
            name, checksum = tagged.groups()
        else:
            checksum, _, name = line.partition(" ")
            # A star marks what was read as a binary file.
            name = name.strip().removeprefix("*")
        try:
            checksums.setdefault(posixpath.basename(name), set()).add(check_checksum(checksum))
        except ValueError as error:
            raise UserError(
                f"--checksum_file: line {number} of {path} is not a checksum, two blanks and a "
                f"file name ({error})."
            ) from error
    return checksums


def _check_names(files: Sequence[RemoteFile]) -> None:
    names: dict[str, str] = {}
    for file in files:
        if not is_output_name(file.name):
            raise UserError(f"{file.url} does not end with a file name; give a file's address.")
        if file.name in names:
            raise UserError(
                f"{names[file.name]} and {file.url} have the same name; download them into "
                "different directories."
            )
        names[file.name] = file.url


def _build(
    files: Sequence[RemoteFile],
    output: Path,
    connections: int,
    wait: Callable[[float], object] | None,
    directory: Path,
) -> Built:
    partial = output / _PARTIAL_NAME
    with explain_write_errors(partial):
        partial.mkdir(exist_ok=True)
        _remove_others(files, partial)
    _check_space(files, partial)
    _fetch_all(files, partial, connections, wait)
    with explain_write_errors(directory):
        for file in files:
            _link(partial / file.name, directory / file.name)
    return Built({file.name: None for file in files}, {"files": len(files)})


def _remove_others(files: Sequence[RemoteFile], partial: Path) -> None:
    """Removes what an earlier call with other addresses has left unfinished."""
    wanted = {f"{file.name}{suffix}" for file in files for suffix in ("", ".part", ".part.json")}
    for path in partial.iterdir():
        if path.name not in wanted:
            path.unlink()


def _check_space(files: Sequence[RemoteFile], partial: Path) -> None:
    """Raises UserError if it is known that the disk is too small."""
    missing = sum(file.size for file in files if file.size)
    missing -= sum(p.stat().st_size for p in partial.iterdir() if p.suffix != ".json")
    free = shutil.disk_usage(partial).free
    if missing > free:
        raise UserError(
            f"--output_dir: {missing / 1e9:,.1f} GB are still to be downloaded, but the disk of "
            f"{partial.parent} has only {free / 1e9:,.1f} GB left; free space there, or choose "
            "another directory."
        )


def _fetch_all(
    files: Sequence[RemoteFile],
    partial: Path,
    connections: int,
    wait: Callable[[float], object] | None,
) -> None:
    sizes = [file.size for file in files if file.size is not None]
    total = sum(sizes) / 1e6 if len(sizes) == len(files) else None
    progress, lock, failed = Progress(STAGE, total, "MB"), threading.Lock(), threading.Event()

    def arrived(num_bytes: int) -> None:
        with lock:
            progress.advance(num_bytes / 1e6)

    pause = failed.wait if wait is None else wait
    pace = Pace(wait=pause, arrived=arrived, stopped=failed.is_set)
    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        transfers = [pool.submit(fetch, file, partial, pace=pace) for file in files]
        try:
            for transfer in concurrent.futures.as_completed(transfers):
                if not isinstance(transfer.exception(), StoppedError):
                    transfer.result()
        finally:  # the others end at their next block
            failed.set()
    progress.finish()


def _link(source: Path, target: Path) -> None:
    """Puts a file under a second name, so that a killed call need not fetch it again."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.download``."""
    _define_url(define_settings(Settings, values=values, output_dir="Directory for the files."))


@flag_group("Download")
def _define_url(define: Definer) -> None:
    about = "Address of a file; may be repeated."
    flags.DEFINE_multi_string("url", [], about, flag_values=define.values)


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    directory = run(from_flags(Settings, values, url=values.url))
    report(f"{STAGE}: files are in {directory}")
