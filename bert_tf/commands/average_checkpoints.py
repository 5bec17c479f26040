"""Writes the average of the last checkpoints of a run as a model.

    python -m bert_tf.commands.average_checkpoints --model_dir=output --last=5 \\
        --output_dir=averaged

The averaged weights are often better than the last ones, above all where the learning rate ends
far from zero. Keep enough checkpoints in training: --keep_checkpoint_max.
"""

from __future__ import annotations

import functools
from pathlib import Path

from absl import flags

from bert_tf.checkpoint.formats import ORIGINS, open_source
from bert_tf.cli.flags import flag_group, run_command
from bert_tf.commands.convert import convert, without_flags
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


def average_checkpoints(
    model_dir: PathLike, output_dir: PathLike, last: int, target: str = "bert_tf"
) -> list[str]:
    """Writes the mean of a run's ``last`` checkpoints; returns the lines of a report.

    The output directory, new or empty, appears only when complete; ``target`` is a key of
    ``ORIGINS``. Raises UserError if there are fewer checkpoints, or as
    :func:`bert_tf.commands.convert.convert`.
    """
    # Imported here, since these need TensorFlow and --help should not wait for it.
    from bert_tf.checkpoint.derived import average_sources
    from bert_tf.checkpoint.directory import run_checkpoints, step_in_name

    found = run_checkpoints(Path(model_dir), flag="model_dir")
    found = [path for path in found if step_in_name(path) != 0]  # before the first update
    if len(found) < last:
        raise UserError(
            f"--last={last}: {model_dir} has {len(found)} complete checkpoints after step 0; give "
            "at most that many, or keep more in training with --keep_checkpoint_max."
        )
    chosen = found[len(found) - last :]
    averaged = average_sources([open_source(path) for path in chosen])
    names = ", ".join(path.name for path in chosen)
    return [f"the mean of {names}", *without_flags(convert(averaged, output_dir, target))]


@flag_group("Checkpoints")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("model_dir", None, "Output directory of a run.", required=True)
    flags.DEFINE_integer("last", 5, "How many of its last checkpoints to average.", lower_bound=2)
    flags.DEFINE_string("output_dir", None, "Directory to write; new or empty.", required=True)
    flags.DEFINE_enum("format", "bert_tf", list(ORIGINS), "Format to write.")


def main(_: object) -> None:
    """Writes the directory and prints the report."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    lines = average_checkpoints(values.model_dir, values.output_dir, values.last, values.format)
    for line in lines:
        print(line)


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
