"""Pre-trains BERT on the records that data_prep makes, on one process or on all ranks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.phases import plan_from_flags

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and runs the plan."""
    plan = plan_from_flags(values, pretraining_settings)
    prepare_process(plan.runtime)
    # TensorFlow reads its environment when it is loaded, and --help should not wait for it.
    from bert_tf.tasks.pretraining import plan as pretraining_plan

    pretraining_plan.run(plan)


def run() -> None:
    """The console script."""
    run_script(define_pretraining_flags, main)


if __name__ == "__main__":
    run()
