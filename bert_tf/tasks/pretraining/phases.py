"""Plans of pre-training: several phases, each a flag file, made from the flags of a command.

A phase's flags override the command's, and each phase starts from the previous one unless its file
says otherwise.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.cli.flags import parse_flag_file
from bert_tf.config.declared import options_of
from bert_tf.config.settings import RuntimeSettings
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file

# In a phase's flag file, this stands for the checkpoint of the previous phase.
PREVIOUS = "previous"

SettingsOf = Callable[[flags.FlagValues], PretrainingSettings]

_START_FLAGS = ("init_checkpoint", "resume_from", "reset_step")
_FLAGS_OF_THE_PLAN = ("output_dir", "phases", "dry_run", "before_training")
# Settings of processes and ranks, which are set up once for all phases.
_SHARED = ("library", "rank_timeout_seconds", "communication", "deterministic", "verbose")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of a plan.

    Attributes:
      flag_file: the file with its flags.
      settings: the settings of its run.
    """

    flag_file: str
    settings: PretrainingSettings

    @property
    def directory(self) -> Path:
        """The output directory of its run, in that of the plan."""
        return self.settings.run.output_dir

    @property
    def name(self) -> str:
        """``phase_1``, ``phase_2`` and so on."""
        return self.directory.name


def phases_from_flags(values: flags.FlagValues, settings_of: SettingsOf) -> Sequence[Phase]:
    """The phases of a command, at least one; ``settings_of`` turns flags into settings.

    Raises UserError for invalid flags.
    """
    files = [name.strip() for name in values.phases.split(",") if name.strip()]
    if not files:
        raise UserError("--phases names no flag file; give one for each phase, comma-separated.")
    if not values.output_dir:
        raise UserError("--output_dir is required; --help lists the flags.")
    phases: list[Phase] = []
    for number, file in enumerate(files, start=1):
        before = phases[-1].directory if phases else None
        directory = Path(values.output_dir) / f"phase_{number}"
        phase = _flags_of_phase(file, values, output_dir=directory, before=before)
        try:
            settings = settings_of(phase)
        except UserError as error:
            raise UserError(f"{file}: {error}") from error
        if not settings.run.do_train:
            raise UserError(f"{file}: a phase trains; add --do_train.")
        phases.append(Phase(file, settings))
    for other in phases[1:]:
        _check_shared(phases[0], other)
    return phases


def _flags_of_phase(
    flag_file: str, command: flags.FlagValues, *, output_dir: Path, before: Path | None
) -> flags.FlagValues:
    """The flags of a phase; ``before`` is the directory of the previous phase, if any."""
    require_file(flag_file, flag="phases")
    values: Any = copy.deepcopy(command)  # flags have no types of their own
    if before is not None:  # the command's start applies to the first phase only
        for flag in _START_FLAGS:
            values[flag].unparse()
    in_file = parse_flag_file(flag_file, values)
    for flag in _FLAGS_OF_THE_PLAN:
        if flag in in_file:
            raise UserError(
                f"{flag_file}: --{flag} is for the plan as a whole; give it on the command line."
            )
    if before is not None and not values.init_checkpoint and not values.resume_from:
        values.init_checkpoint = PREVIOUS
    for flag in ("init_checkpoint", "resume_from"):
        if values[flag].value == PREVIOUS:
            if before is None:
                raise UserError(
                    f"{flag_file}: --{flag}={PREVIOUS} names the previous phase, but this is the "
                    "first one; give a checkpoint or drop it."
                )
            setattr(values, flag, str(before))
    values.output_dir = str(output_dir)
    if values.dllog_path:
        log = Path(values.dllog_path)
        values.dllog_path = str(log.with_name(f"{log.stem}_{output_dir.name}{log.suffix}"))
    return values


def _check_shared(first: Phase, phase: Phase) -> None:
    for name in _SHARED:
        if getattr(first.settings.runtime, name) != getattr(phase.settings.runtime, name):
            option = options_of(RuntimeSettings).get(name)
            what = "flags of communication" if option is None else f"--{option.flag}"
            raise UserError(
                f"{phase.flag_file}: {what} must be the same in all phases; give them on the "
                "command line."
            )
