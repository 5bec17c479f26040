"""Shared by the data preparation commands: flags, input files and ``main``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Callable, TypeVar

from absl import flags

from bert_tf.command_line import flag_group, run_command
from bert_tf.errors import UserError
from bert_tf.files import expand_input_files, require_file
from bert_tf.records.manifest import MANIFEST_NAME, require_listed_files
from data_prep.languages import DEFAULT_LANGUAGE

Settings = TypeVar("Settings")

_OUTPUT_FILE_BYTES = 64 << 20


def find_text_files(patterns: str, *, flag: str = "input_file") -> list[Path]:
    """Like :func:`bert_tf.files.expand_input_files`, without manifests and empty files.

    Raises UserError if nothing is left, a file cannot be read, or the files differ from those in
    the manifest of an earlier stage.
    """
    require_listed_files(patterns)
    files = [path for path in expand_input_files(patterns, flag=flag) if path.name != MANIFEST_NAME]
    files = [require_file(path, flag=flag) for path in files if path.stat().st_size]
    if not files:
        raise UserError(f"--{flag}: the files in {patterns!r} are empty; give files with text.")
    return files


class NumberedFiles:
    """Writes text files ``KIND-00000.txt`` and so on, a new one after each 64 MiB.

    Attributes:
      counts: file name -> units (documents, articles) in it.
    """

    def __init__(self, directory: Path, kind: str):
        self.counts: dict[str, int] = {}
        self._directory = directory
        self._kind = kind
        self._open = contextlib.ExitStack()
        self._room = 0

    def __enter__(self) -> NumberedFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def write(self, text: bytes, *, count: int) -> None:
        """Appends whole documents: ``count`` units."""
        if self._room <= 0:
            self._open.close()
            self._name = f"{self._kind}-{len(self.counts):05d}.txt"
            self.counts[self._name], self._room = 0, _OUTPUT_FILE_BYTES
            path = self._directory / self._name
            self._file = self._open.enter_context(path.open("wb"))
        self._file.write(text)
        self._room -= len(text)
        self.counts[self._name] += count


@flag_group("Input and output")
def define_common_flags(
    *, input_help: str, output_help: str, input_is_required: bool = True
) -> None:
    """Defines --input_file and --output_dir."""
    flags.DEFINE_string("input_file", None, input_help)
    if input_is_required:
        flags.mark_flag_as_required("input_file")
    define_output_flag(output_help)


@flag_group("Input and output")
def define_output_flag(help_text: str) -> None:
    """Defines --output_dir, for stages without input."""
    flags.DEFINE_string("output_dir", None, help_text)
    flags.mark_flag_as_required("output_dir")


@flag_group("Input and output")
def define_language_flag() -> None:
    """Defines --language, of a text or of a collection to download."""
    flags.DEFINE_string(
        "language",
        DEFAULT_LANGUAGE,
        "The code of the text's language, such as de: of the Wikipedia to download, and of the "
        "rules by which sentences end.",
    )


@flag_group("Processes")
def define_workers_flag() -> None:
    """Defines --num_workers, for stages with worker processes."""
    flags.DEFINE_integer(
        "num_workers", 0, "Worker processes; 0 means all cores. The output does not depend on it."
    )


def settings_from_flags(settings_class: type[Settings], **others: object) -> Settings:
    """A stage's settings; each field comes from ``others`` or the flag of the same name."""
    names = {field.name for field in dataclasses.fields(settings_class)} - set(others)
    return settings_class(**others, **{name: getattr(flags.FLAGS, name) for name in names})


def run_main(define_flags: Callable[[], None], run: Callable[[], object]) -> None:
    """The ``main`` of a stage: defines and parses its flags and runs it."""
    define_flags()
    run_command(lambda _: _discard(run()))


def _discard(_: object) -> None:
    """Returns None, since absl uses main's return value as the exit status."""
