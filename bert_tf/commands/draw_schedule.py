"""Shows the learning rate of a planned run, update by update.

If batches or sequences grow, their sizes are shown too. Accepts a training script's flags, and
therefore any recipe. Prints a table of some updates; --output writes a picture of the whole curve,
or a table with more rows.

    python -m bert_tf.commands.draw_schedule --flagfile=recipes/bert_base_phase1.flags \\
        --lr_schedule=cosine --output=curve.png
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from absl import flags

from bert_tf.cli.flags import flag_group, read_flag_files, run_command
from bert_tf.cli.settings_flags import Definer, at_least_one
from bert_tf.compat.nvidia_defaults import adopt_and_say
from bert_tf.doctor.training_scripts import SCRIPTS
from bert_tf.util import environment
from bert_tf.util.errors import UserError, exit_on_user_error
from bert_tf.util.files import check_output_file, make_output_dir

_SUFFIXES = (".png", ".svg", ".pdf", ".tsv")


def define_flags(script: str = "run_pretraining.py") -> None:
    """Defines the command's flags, which include those of ``script``."""
    _define_own_flags(Definer(flags.FLAGS), script)
    SCRIPTS[script].define_flags(flags.FLAGS)


@flag_group("Curve")
def _define_own_flags(define: Definer, script: str) -> None:
    define.enum(
        "script",
        script,
        list(SCRIPTS),
        "Whose flags these are (default: the first script that has all of them).",
    )
    define.string("output", None, f"File to write: {', '.join(_SUFFIXES[:-1])}, or .tsv (a table).")
    define.integer("num_ranks", 1, "Number of ranks in the run.")
    define.integer("num_records", None, "Number of training records, for a length in epochs.")


def script_of(arguments: Sequence[str]) -> str:
    """The script that --script names, or else the one that lacks the fewest of the given flags.

    Of scripts that lack equally many, it is the one whose defaults the flags repeat least often.
    Raises UserError if a flag file cannot be read.
    """
    own = flags.FlagValues()
    _define_own_flags(Definer(own), next(iter(SCRIPTS)))
    arguments = read_flag_files(arguments, own)
    try:
        own(["draw_schedule", *arguments], known_only=True)
    except flags.Error:
        return str(own["script"].default)  # parsing all flags reports the error
    if own["script"].present:
        return own.script
    names = {text.lstrip("-").partition("=")[0] for text in arguments if text.startswith("-")}

    def mismatches(script: str) -> tuple[int, int]:
        values = flags.FlagValues()
        SCRIPTS[script].define_flags(values)
        given = [name if name in values else name.removeprefix("no") for name in names]
        known = [name for name in given if name in values]
        with contextlib.suppress(flags.Error):  # reported when all flags are parsed
            values(["draw_schedule", *arguments], known_only=True)
        repeated = sum(values[name].value == values[name].default for name in known)
        return len(names) - len(known), repeated

    return min(SCRIPTS, key=mismatches)


def main(_: object) -> None:
    """Prints the table and writes the file."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    at_least_one(values, "num_ranks")
    at_least_one(values, "num_records")
    output = None
    if values.output:
        output = check_output_file(values.output, flag="output")
        if output.suffix not in _SUFFIXES:
            raise UserError(f"--output={output} must end in one of {', '.join(_SUFFIXES)}.")
    script = SCRIPTS[values.script]
    if script.of_nvidia:
        adopt_and_say(values, script.of_nvidia)
    optimization = script.optimization(values)
    scaled = optimization.steps.scaled_by_ranks(by_default=values.horovod or values.num_ranks > 1)
    # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
    from bert_tf.tasks.pretraining import schedule_curve

    curve = schedule_curve.planned_curve(
        optimization,
        num_ranks=values.num_ranks,
        scaled=scaled,
        num_records=values.num_records,
    )
    print(f"{values.script}: {curve.title()}")
    print(schedule_curve.short_table(curve))
    if output is not None:
        make_output_dir(output.parent, flag="output")
        written = schedule_curve.write_curve(output, curve)
        because = "" if written == output else f", not {output}: matplotlib is not installed"
        print(f"output is in {written}{because}")


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    exit_on_user_error(lambda: define_flags(script_of(sys.argv[1:])))
    run_command(main)


if __name__ == "__main__":
    run()
