"""What the scripts that run a task have in common, from their flags to their exit status."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process

if TYPE_CHECKING:
    from absl.flags import FlagValues

    from bert_tf.tasks.pretraining.settings import PretrainingSettings


class Script(abc.ABC):
    """A script that runs a task.

    Attributes:
      reads_records: whether it trains on pre-training records.
    """

    reads_records = False

    @abc.abstractmethod
    def define(self, values: FlagValues) -> None:
        """Defines the flags."""

    @abc.abstractmethod
    def settings(self, values: FlagValues) -> Any:
        """Turns parsed flags into settings; raises UserError for invalid flags."""

    @abc.abstractmethod
    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""

    def run(self) -> None:
        """Runs the script, from parsing its flags to its exit status."""
        run_script(self.define, self.main)

    def main(self, values: FlagValues) -> None:
        """Turns flags into settings and runs the task."""
        settings = self.settings(values)
        # Before TensorFlow is imported, since it reads the environment then.
        prepare_process(settings.runtime)
        self.start(settings)


class PretrainingScript(Script):
    """A script that trains on pre-training records, in one or more phases."""

    reads_records = True

    def main(self, values: FlagValues) -> None:
        """Turns flags into settings, with --phases those of each phase, and runs them."""
        if values.phases is None:
            super().main(values)
            return
        from bert_tf.tasks.pretraining.phases import train

        train(values, self.settings)

    def start(self, settings: PretrainingSettings) -> None:
        """Runs a single phase."""
        from bert_tf.tasks.pretraining.run import run

        run(settings)
