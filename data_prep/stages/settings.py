"""Settings that several stages have, each declared once.

The settings of a stage are a dataclass of classes like these, from last to first, with a class of
the stage's own among them::

    class Settings(CallSettings, CleaningRules, FileSettings):

``define_settings`` of ``data_prep.stages.stage`` defines the flags of all of them, each under the
``heading`` of its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from bert_tf.config.declared import NOT_NEGATIVE, Settings, options_of, setting
from bert_tf.durable.executor import Executor, Processes
from bert_tf.durable.stage import KEEP, REMAKE
from data_prep.text.languages import DEFAULT_LANGUAGE


@dataclasses.dataclass(frozen=True)
class InputSettings(Settings):
    """What a stage reads."""

    heading: ClassVar[str] = "Input and output"
    input_file: str = setting(..., "Files: comma-separated files, globs and directories.", kind=str)


@dataclasses.dataclass(frozen=True)
class OutputSettings(Settings):
    """Where a stage writes."""

    heading: ClassVar[str] = "Input and output"
    output_dir: str = setting(..., "Directory for the output.", kind=str)


@dataclasses.dataclass(frozen=True)
class FileSettings(OutputSettings, InputSettings):
    """What a stage reads, and where it writes."""


@dataclasses.dataclass(frozen=True)
class VersionSettings(Settings):
    """What happens to earlier output."""

    heading: ClassVar[str] = "Input and output"
    other_versions: str = setting(
        REMAKE,
        "What becomes of finished output that other versions of this program or of its libraries "
        "made from the same input.",
        choices=(REMAKE, KEEP),
    )


@dataclasses.dataclass(frozen=True)
class ProcessSettings(Settings):
    """The processes of this machine that do the work."""

    heading: ClassVar[str] = "Processes"
    num_workers: int = setting(
        0,
        "Worker processes; 0 means all cores. The output does not depend on it.",
        bounds=NOT_NEGATIVE,
        advice="0 is for all cores",
    )


@dataclasses.dataclass(frozen=True)
class WorkerSettings(ProcessSettings):
    """Who does the work: processes of this machine or of others."""

    scheduler: str | None = setting(
        None,
        "Instead of --num_workers: address of a Dask scheduler, such as tcp://host:8786, whose "
        "workers are used. The output does not depend on it.",
        kind=str,
    )

    def contradictions(self) -> Iterator[str]:
        """Two kinds of workers."""
        if self.scheduler and self.num_workers:
            yield (
                f"{self.given('num_workers')} and --scheduler contradict each other: the "
                "scheduler's workers do the work; leave out one of them."
            )
        yield from super().contradictions()

    @property
    def executor(self) -> Executor:
        """Processes of this machine, or the workers of the scheduler."""
        if not self.scheduler:
            return Processes.of(self.num_workers)
        from data_prep.stages.cluster import DaskWorkers  # Dask is needed for this only

        return DaskWorkers(self.scheduler)


@dataclasses.dataclass(frozen=True)
class CallSettings(WorkerSettings, VersionSettings):
    """Earlier output and workers, of a stage with both."""


@dataclasses.dataclass(frozen=True)
class LanguageSettings(Settings):
    """The language of a text or of a collection to download."""

    heading: ClassVar[str] = "Input and output"
    language: str | None = setting(
        None,
        "The code of the text's language, such as de: of the Wikipedia to download, and of the "
        "rules by which sentences end. By default that of the dump which the text is from, else "
        f"{DEFAULT_LANGUAGE}. It also decides whether accents are stripped by default.",
        kind=str,
    )


# What no output depends on, but for the content of the input, which manifests have by itself.
_OF_CALL = (InputSettings, OutputSettings, VersionSettings, WorkerSettings)


def output_parameters(settings: Settings, *others: str) -> dict[str, Any]:
    """The settings that decide a stage's output, for its manifest.

    These are all but those of the call, and ``others``, which are recorded in other ways.
    """
    left_out = {*others, *(name for kind in _OF_CALL for name in options_of(kind))}
    deciding = (name for name in options_of(type(settings)) if name not in left_out)
    return {name: getattr(settings, name) for name in deciding}
