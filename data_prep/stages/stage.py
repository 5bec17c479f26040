"""Shared by the data preparation commands: flags, input files and ``main``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Callable

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.config.declared import Settings, options_of
from bert_tf.durable.manifest import MANIFEST_NAME, intact_manifest, require_listed_files
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import Written, expand_input_files, require_file, sync_file
from bert_tf.util.progress import Progress
from data_prep.stages.journal import Journal
from data_prep.stages.settings import WorkerSettings

LANGUAGES = "languages"  # the parameter of stages under which they are recorded

OUTPUT_FILE_BYTES = 64 << 20


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
    """Writes text files ``KIND-00000.txt`` and so on, a new one after each 64 MiB.

    Attributes:
      counts: file name -> units (documents, articles) in it.
    """

    def __init__(self, directory: Path, kind: str, journal: Journal | None = None):
        """Continues the files of an earlier call if there is a journal that has some."""
        written = journal.written if journal else {}
        self.counts: dict[str, int] = {name: part.count for name, part in written.items()}
        self._sizes: dict[str, int] = {name: part.bytes for name, part in written.items()}
        self._directory = directory
        self._kind = kind
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
        if not self.counts or self._sizes[self._name] >= OUTPUT_FILE_BYTES:
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
        """See :class:`data_prep.stages.journal.Appended`."""
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


def define_settings(
    *kinds: type[Settings],
    values: flags.FlagValues | None = None,
    without: Collection[str | type[Settings]] = (),
    optional: Collection[str] = (),
    **help_texts: str,
) -> Definer:
    """Defines the flags of classes of settings and of their base classes.

    Args:
      kinds: the classes; a base class of several is defined once.
      values: where the flags are defined; None is the program.
      without: settings, or classes of them, whose flags this command does not have.
      optional: settings without a default whose flags may be left out.
      **help_texts: setting -> its help text in this command, where that is another.

    Returns: what defines flags there.
    """
    define = Definer(flags.FLAGS if values is None else values)
    names = [name for name in without if isinstance(name, str)]
    changes = {name: {"help_text": text} for name, text in help_texts.items()}
    for base in dict.fromkeys(base for kind in kinds for base in reversed(kind.__mro__)):
        if issubclass(base, Settings) and base not in without:
            # The settings of masks, which training has too, are without a heading.
            own = flag_group(getattr(base, "heading", "Records"))(_define_own)
            own(define, base, names, optional, changes)
    return define


def _define_own(
    define: Definer,
    kind: type[Settings],
    without: Collection[str],
    optional: Collection[str],
    changes: Mapping[str, Mapping[str, str]],
) -> None:
    """Defines the flags of one class; those of settings without a default are required."""
    own = vars(kind).get("__annotations__", {}).keys() - {*without, *optional}
    if own:
        define.settings(kind, without=without, **changes)
    for field in dataclasses.fields(kind):
        option = options_of(kind).get(field.name)
        if field.name in own and option and field.default is dataclasses.MISSING:
            flags.mark_flag_as_required(option.flag, define.values)


def run_main(define_flags: Callable[[], None], run: Callable[[flags.FlagValues], object]) -> None:
    """The ``main`` of a stage: defines and parses its flags and runs it."""
    define_flags()
    run_command(lambda _: _run(run))


def _run(run: Callable[[flags.FlagValues], object]) -> None:
    """Runs a stage, and returns None, since absl uses main's return value as the exit status."""
    values = flags.FLAGS
    if "scheduler" in values:
        from_flags(WorkerSettings, values).executor.check()
    run(values)
