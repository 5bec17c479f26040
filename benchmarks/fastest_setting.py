"""What --precision=auto is worth: every setting of the pre-training step by hand, and auto.

    python -m benchmarks.fastest_setting --json=fastest_setting.json

The settings are precision x operations x threads, each in processes of its own that take turns, as
docs/speed.md says. Precisions that the processor only emulates take part too: that they are slow is
what auto has to find out. The last line says how near auto comes to the best.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from absl import app, flags

from benchmarks.speed.process import Found
from benchmarks.speed.step_comparison import compare_steps, define_step_flags
from benchmarks.speed.steps import PRETRAINING
from benchmarks.speed.subjects import AUTO, every_setting
from bert_tf import environment
from bert_tf.errors import exit_on_user_error


def nearness(found: Mapping[str, Sequence[Found]]) -> str:
    """How near auto comes to the best setting, each by the median of its turns."""
    seconds = {
        name: statistics.median(t["seconds"] for t in turns) for name, turns in found.items()
    }
    best = min((name for name in seconds if name != AUTO), key=seconds.__getitem__)
    chosen = found[AUTO][0]
    return (
        f"auto took {chosen['precision']} with {chosen['operations']} operations and makes "
        f"{seconds[best] / seconds[AUTO]:.1%} of the rate of the best setting, {best}"
    )


def measure() -> None:
    """Compares the settings of the flags."""
    threads = flags.FLAGS.threads or environment.available_cores()
    print(nearness(compare_steps(PRETRAINING, every_setting(threads))))


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.fastest_setting``."""
    define_step_flags(batch_size=16, seq_length=128)
    flags.DEFINE_integer("predictions", 20, "Masked words of a sequence.", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    app.run(lambda _: exit_on_user_error(measure))
