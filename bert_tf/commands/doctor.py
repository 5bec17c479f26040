"""Examines a planned run: what would fail, and what looks unwise.

Put it in front of the planned command, which stays unchanged. It makes a dry run, which ends at the
first mistake, and judges what the run would do. Nothing is trained or written. The exit status is 2
if something will fail, 1 if something looks unwise, and 0 otherwise.

    python -m bert_tf.commands.doctor run_pretraining.py --bert_config_file=bert_config.json \\
        --input_file=data/records/train --output_dir=model --do_train
    bert-tf doctor bert-tf squad --init_checkpoint=model --train_file=train-v1.1.json --do_train
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import as_typed, flag_group, run_command
from bert_tf.cli.settings_flags import Definer, at_least_one
from bert_tf.commands.scripts import SCRIPTS
from bert_tf.util import environment
from bert_tf.util.console import Grade, Note
from bert_tf.util.errors import UserError, exit_on_user_error

_WIDTH, _INDENT = 100, 9

TRAINING_SCRIPTS = {script.file: script for script in SCRIPTS.values() if script.trains}
_PRETRAINING = "run_pretraining.py"
_OF_COMMANDS = {
    **{command: script.file for command, script in SCRIPTS.items() if script.trains},
    "classify": "run_classifier.py",  # an older name
}

# Words in front of a script or command that only start it.
_STARTERS = ("python", "python3", "bert-tf")


def define_flags(script: str = _PRETRAINING) -> None:
    """Defines the command's flags, which include those of ``script``."""
    _define_own_flags(Definer(flags.FLAGS), script)
    TRAINING_SCRIPTS[script].define(flags.FLAGS)


@flag_group("Plan")
def _define_own_flags(define: Definer, script: str) -> None:
    define.enum(
        "script", script, list(TRAINING_SCRIPTS), "The script, unless it is the first word."
    )
    define.integer("num_ranks", 1, "Number of ranks in the run.")
    define.integer("ranks_per_host", None, "Number of ranks per host (default: all).")


def split_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Splits a command line into its script and flags.

    A command of bert-tf, as the first word or after ``bert-tf``, stands for its script. Raises
    UserError if neither is named.
    """
    rest = list(arguments)
    for place, word in enumerate(rest):
        name, before = Path(word).name, Path(rest[place - 1]).name if place else ""
        if place == 0 or before == "bert-tf":
            name = _OF_COMMANDS.get(name.removeprefix("bert-tf-"), name)
        if name in TRAINING_SCRIPTS and (place == 0 or not word.startswith("-")):
            del rest[place]
            if before in _STARTERS:
                del rest[place - 1]
            return name, rest
    named = [word.partition("=")[2] for word in rest if word.startswith("--script=")]
    if named and named[0] in TRAINING_SCRIPTS:
        return named[0], rest
    if any(word.lstrip("-") in ("help", "helpfull", "helpshort", "h") for word in rest):
        return _PRETRAINING, rest
    names = ", ".join(TRAINING_SCRIPTS)
    raise UserError(f"name the script of the run after doctor, one of {names}, and then its flags.")


def main(_: object) -> int:
    """Prints the findings; returns the exit status."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    at_least_one(values, "num_ranks")
    at_least_one(values, "ranks_per_host")
    # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
    from bert_tf.doctor.examination import examine

    findings = examine(
        TRAINING_SCRIPTS[values.script],
        values,
        num_ranks=values.num_ranks,
        ranks_per_host=values.ranks_per_host or values.num_ranks,
    )
    for line in show(findings, values):
        print(line)
    return findings.status


def show(findings: Iterable[Note], values: flags.FlagValues) -> Iterator[str]:
    """Yields lines for a terminal, worst findings first, and a summary.

    ``values`` are the flags of the run.
    """
    counts = dict.fromkeys(sorted(Grade, reverse=True), 0)
    for finding in sorted(findings, key=lambda finding: -finding.grade):
        counts[finding.grade] += 1
        yield _shown(finding._replace(sentence=as_typed(finding.sentence, values)))
    parts = [f"{count} {grade.name.lower()}{'s' * (count != 1)}" for grade, count in counts.items()]
    fine = counts[Grade.FINE]
    yield f"{', '.join(parts[:-1])}; {fine} check{'s' * (fine != 1)} found nothing"


def _shown(finding: Note) -> str:
    """A finding with its continuation lines indented; a table in it keeps its lines."""
    text = f"{finding.grade.name.lower() + ':':<{_INDENT}}{finding.part}: {finding.sentence}"
    first, *table = text.splitlines()
    wrapped = textwrap.fill(
        first,
        _WIDTH,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join([wrapped, *(" " * _INDENT + line for line in table)])


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""

    def prepare() -> None:
        script, sys.argv[1:] = split_command(sys.argv[1:])
        define_flags(script)

    exit_on_user_error(prepare)
    run_command(main)


if __name__ == "__main__":
    run()
