"""The main program of run_pretraining.py, run_electra.py and run_distillation.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.pretraining.phases import Phases, SettingsOf, plan_from_flags

if TYPE_CHECKING:
    from absl.flags import FlagValues

    from bert_tf.tasks.pretraining.settings import PretrainingSettings
    from bert_tf.train.evaluation import Results


def train(values: FlagValues, settings_of: SettingsOf) -> None:
    """Turns flags into the settings of each phase, and runs them; UserError for bad input."""
    plan = plan_from_flags(values, settings_of)
    prepare_process(plan.runtime)
    run_phases(plan)


def run_phases(plan: Phases | PretrainingSettings) -> Results | None:
    """Runs a plan, or the single run of a command without phases; returns the last results.

    Collective. Raises UserError for bad input in any phase, before anything is trained.
    """
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    if not isinstance(plan, Phases):
        from bert_tf.tasks.pretraining.run import run

        return run(plan)
    from bert_tf.tasks.pretraining.plan import run as run_plan

    return run_plan(plan)
