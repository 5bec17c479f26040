"""Shared by the data preparation commands: flags, input files and ``main``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, TypeVar

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.stages.executor import Executor, Processes
from bert_tf.stages.journal import Journal
from bert_tf.stages.manifest import MANIFEST_NAME, intact_manifest, require_listed_files
from bert_tf.stages.stage import KEEP, REMAKE
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import Written, expand_input_files, require_file, sync_file
from bert_tf.util.progress import Progress
from data_prep.text.languages import DEFAULT_LANGUAGE

Settings = TypeVar("Settings")

LANGUAGES = "languages"  # the parameter of stages under which they are recorded


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a stage takes at a time, in bytes; no settings, since no user needs others.

    Attributes:
      block: text that is read at once, and that a worker is handed.
      document: a longer document is cut; None where documents may have any length.
      file: an output file of so many is followed by another one.
    """

    block: int = 1 << 20
    document: int | None = None
    file: int = 64 << 20


def find_text_files(patterns: str, *, flag: str = "input_file") -> list[Path]:
    """Like :func:`bert_tf.util.files.expand_input_files`, without manifests and empty files.

    Raises UserError if nothing is left, a file cannot be read, or the files differ from those in
    the manifest of an earlier stage.
    """
    require_listed_files(patterns)
    files = [path for path in expand_input_files(patterns, flag=flag) if path.name != MANIFEST_NAME]
    # What is not a file, such as a pipe, has no size either.
    filled = (path for path in files if not path.is_file() or path.stat().st_size)
    files = [require_file(path, flag=flag) for path in filled]
    if not files:
        raise UserError(f"--{flag}: the files in {patterns!r} are empty; give files with text.")
    return files


def languages_of(files: Iterable[Path]) -> list[str]:
    """The languages of the dumps that text files are from, as earlier stages recorded them."""
    manifests = map(intact_manifest, sorted({path.parent for path in files}))
    return sorted({code for m in manifests if m for code in m.parameters.get(LANGUAGES, ())})


class NumberedFiles:
    """Writes text files ``KIND-00000.txt`` and so on, a new one after ``file_bytes``.

    Attributes:
      counts: file name -> units (documents, articles) in it.
    """

    def __init__(
        self,
        directory: Path,
        kind: str,
        journal: Journal | None = None,
        *,
        file_bytes: int = Sizes.file,
    ):
        """Continues the files of an earlier call if there is a journal that has some."""
        written = journal.written if journal else {}
        self.counts: dict[str, int] = {name: part.count for name, part in written.items()}
        self._sizes: dict[str, int] = {name: part.bytes for name, part in written.items()}
        self._directory = directory
        self._kind = kind
        self._file_bytes = file_bytes
        self._open = contextlib.ExitStack()
        self._unsynced: list[str] = []
        if written:
            self._open_file(list(written)[-1])

    def __enter__(self) -> NumberedFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def write(self, text: bytes, *, count: int) -> None:
        """Appends whole documents: ``count`` units."""
        if not self.counts or self._sizes[self._name] >= self._file_bytes:
            self._open_file(f"{self._kind}-{len(self.counts):05d}.txt")
        self._file.write(text)
        self._sizes[self._name] += len(text)
        self.counts[self._name] += count

    def _open_file(self, name: str) -> None:
        self._open.close()
        self._file = self._open.enter_context((self._directory / name).open("ab"))
        self._name = name
        self._unsynced.append(name)
        self.counts.setdefault(name, 0)
        self._sizes.setdefault(name, 0)

    def sync(self) -> dict[Path, Written]:
        """See :class:`bert_tf.stages.journal.Appended`."""
        for name in self._unsynced[:-1]:
            with open(self._directory / name, "rb") as file:
                sync_file(file)
        if self._unsynced:
            sync_file(self._file)
        self._unsynced = self._unsynced[-1:]
        return {
            self._directory / name: Written(size, self.counts[name])
            for name, size in self._sizes.items()
        }


def begin_progress(
    stage: str, journal: Journal, files: Iterable[Path] | None, *, unit: str = "MB"
) -> Progress:
    """The progress of a stage in units of 10^6 bytes; reports where an earlier call is continued.

    Args:
      stage: its name.
      journal: what has been done.
      files: whose bytes are all of the input; None if that is unknown.
      unit: of the progress.
    """
    total_bytes = None if files is None else sum(path.stat().st_size for path in files)
    progress = Progress(stage, None if total_bytes is None else total_bytes / 1e6, unit)
    if journal.items:
        divisor, name = (
            (1e9, "GB") if max(journal.input_bytes, total_bytes or 0) >= 1e9 else (1e6, "MB")
        )
        of_total = f" of {total_bytes / divisor:,.1f}" if total_bytes else ""
        report(f"{stage}: resumed at {journal.input_bytes / divisor:,.1f}{of_total} {name}")
        progress.skip(journal.input_bytes / 1e6)
    return progress


@flag_group("Input and output")
def define_common_flags(
    *, input_help: str, output_help: str, input_is_required: bool = True
) -> None:
    """Defines --input_file and --output_dir."""
    flags.DEFINE_string("input_file", None, input_help)
    if input_is_required:
        flags.mark_flag_as_required("input_file")
    define_output_flag(output_help)
    define_versions_flag()


@flag_group("Input and output")
def define_output_flag(help_text: str) -> None:
    """Defines --output_dir, for stages without input."""
    flags.DEFINE_string("output_dir", None, help_text)
    flags.mark_flag_as_required("output_dir")


@flag_group("Input and output")
def define_versions_flag() -> None:
    """Defines --other_versions."""
    flags.DEFINE_enum(
        "other_versions",
        REMAKE,
        [REMAKE, KEEP],
        "What becomes of finished output that other versions of this program or of its libraries "
        "made from the same input.",
    )


@flag_group("Input and output")
def define_language_flag() -> None:
    """Defines --language, of a text or of a collection to download."""
    flags.DEFINE_string(
        "language",
        None,
        "The code of the text's language, such as de: of the Wikipedia to download, and of the "
        "rules by which sentences end. By default that of the dump which the text is from, else "
        f"{DEFAULT_LANGUAGE}.",
    )


@flag_group("Processes")
def define_workers_flag(*, here_only: bool = False) -> None:
    """Defines --num_workers and, unless work stays on this machine, --scheduler."""
    flags.DEFINE_integer(
        "num_workers", 0, "Worker processes; 0 means all cores. The output does not depend on it."
    )
    if here_only:
        return
    flags.DEFINE_string(
        "scheduler",
        None,
        "Instead of --num_workers: address of a Dask scheduler, such as tcp://host:8786, whose "
        "workers are used. The output does not depend on it.",
    )


def choose_executor(num_workers: int, scheduler: str | None = None) -> Executor:
    """Processes of this machine, or the workers of a scheduler if its address is given.

    Raises UserError for a negative number, and for any that is given with a scheduler.
    """
    if not scheduler:
        return Processes.of(num_workers)
    if num_workers:
        raise UserError(
            f"--num_workers={num_workers} and --scheduler contradict each other: the scheduler's "
            "workers do the work; leave out one of them."
        )
    from bert_tf.stages.cluster import DaskWorkers  # Dask is needed for this only

    return DaskWorkers(scheduler)


# Settings of a call that do not decide what it writes, or are recorded otherwise.
_OF_CALL = ("input_file", "output_dir", "num_workers", "scheduler", "other_versions")


def output_parameters(settings: Any, *others: str) -> dict[str, Any]:
    """The settings that decide a stage's output, for its manifest; ``others`` are left out, too."""
    left_out = {*_OF_CALL, *others}
    return {k: v for k, v in dataclasses.asdict(settings).items() if k not in left_out}


def settings_from_flags(
    settings_class: type[Settings], values: flags.FlagValues, **others: object
) -> Settings:
    """A stage's settings; each field comes from ``others`` or the flag of the same name."""
    names = {field.name for field in dataclasses.fields(settings_class)} - set(others)
    return settings_class(**others, **{name: values[name].value for name in names})


def run_main(define_flags: Callable[[], None], run: Callable[[flags.FlagValues], object]) -> None:
    """The ``main`` of a stage: defines and parses its flags and runs it."""
    define_flags()
    run_command(lambda _: _run(run))


def _run(run: Callable[[flags.FlagValues], object]) -> None:
    """Runs a stage, and returns None, since absl uses main's return value as the exit status."""
    values = flags.FLAGS
    if "scheduler" in values:
        choose_executor(values.num_workers, values.scheduler).check()
    run(values)
