"""The scripts that run a task: a table of their flags, their settings and what runs them."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process

if TYPE_CHECKING:
    from absl.flags import FlagValues


@dataclasses.dataclass(frozen=True)
class Script:
    """A script; its modules are imported when they are needed.

    Attributes:
      file: its file name.
      flags: the module of its flags.
      define: the function there that defines them.
      read: the function there that turns them into settings.
      task: the module whose ``run`` takes the settings.
    """

    file: str
    flags: str
    define: str
    read: str
    task: str

    reads_records = False

    def define_flags(self, values: FlagValues) -> None:
        """Defines the flags."""
        self._of_flags(self.define, values)

    def settings(self, values: FlagValues) -> Any:
        """Turns parsed flags into settings; raises UserError for invalid flags."""
        return self._of_flags(self.read, values)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        importlib.import_module(self.task).run(settings)

    def run(self) -> None:
        """Runs the script, from parsing its flags to its exit status."""
        run_script(self.define_flags, self.main)

    def main(self, values: FlagValues) -> None:
        """Turns flags into settings and runs the task."""
        settings = self.settings(values)
        # Before TensorFlow is imported, since it reads the environment then.
        prepare_process(settings.runtime)
        self.start(settings)

    def _of_flags(self, function: str, values: FlagValues) -> Any:
        return getattr(importlib.import_module(self.flags), function)(values)


class PretrainingScript(Script):
    """A script that trains on pre-training records, in one or more phases."""

    reads_records = True

    def main(self, values: FlagValues) -> None:
        """Turns flags into the settings of each phase, and runs them."""
        from bert_tf.tasks.pretraining.program import train

        train(values, self.settings)


_PRETRAINING = "bert_tf.tasks.pretraining.run"
# The command of bert-tf that runs a script -> the script. These train.
TRAINING = {
    "pretrain": PretrainingScript(
        "run_pretraining.py",
        "bert_tf.tasks.pretraining.flags",
        "define_pretraining_flags",
        "pretraining_settings",
        _PRETRAINING,
    ),
    "distill": PretrainingScript(
        "run_distillation.py",
        "bert_tf.tasks.pretraining.distillation_flags",
        "define_distillation_flags",
        "distillation_settings",
        _PRETRAINING,
    ),
    "electra": PretrainingScript(
        "run_electra.py",
        "bert_tf.tasks.replaced_tokens.flags",
        "define_electra_flags",
        "electra_settings",
        _PRETRAINING,
    ),
    "squad": Script(
        "run_squad.py",
        "bert_tf.tasks.question_answering.flags",
        "define_squad_flags",
        "squad_settings",
        "bert_tf.tasks.question_answering.run",
    ),
    "classifier": Script(
        "run_classifier.py",
        "bert_tf.tasks.classification.flags",
        "define_classification_flags",
        "classification_settings",
        "bert_tf.tasks.classification.run",
    ),
    "ner": Script(
        "run_ner.py",
        "bert_tf.tasks.tagging.flags",
        "define_tagging_flags",
        "tagging_settings",
        "bert_tf.tasks.tagging.run",
    ),
}
SCRIPTS = {
    **TRAINING,
    "evaluate": Script(
        "run_evaluation.py",
        "bert_tf.tasks.scoring.flags",
        "define_evaluation_flags",
        "evaluation_settings",
        "bert_tf.tasks.scoring.run",
    ),
    "features": Script(
        "run_features.py",
        "bert_tf.tasks.vectors.flags",
        "define_feature_flags",
        "feature_settings",
        "bert_tf.tasks.vectors.run",
    ),
}
