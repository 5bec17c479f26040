"""The scripts that run a task: one table, and what they have in common."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, Callable, ClassVar

if TYPE_CHECKING:
    from absl.flags import FlagValues


@dataclasses.dataclass(frozen=True)
class Script:
    """A script that runs a task, whose modules are imported when it does.

    Attributes:
      file: its name in a checkout.
      task: the package of its task, in ``bert_tf.tasks``, with a module ``run``.
      flags: a module there, and the NAME of its functions ``define_NAME_flags`` and
        ``NAME_settings``.
      about: what it does, as its help says.
      trains: whether it trains a network.
      reads_records: whether it trains on pre-training records.
    """

    file: str
    task: str
    flags: str
    about: str
    trains: bool = True
    reads_records: ClassVar[bool] = False

    @property
    def flags_module(self) -> str:
        """The module of its flags."""
        return f"bert_tf.tasks.{self.task}.{self.flags.partition(':')[0]}"

    def define(self, values: FlagValues) -> None:
        """Defines the flags."""
        self._function("define_{}_flags")(values)

    def settings(self, values: FlagValues) -> Any:
        """Turns parsed flags into settings; raises UserError for invalid flags."""
        return self._function("{}_settings")(values)

    def _function(self, pattern: str) -> Callable[[FlagValues], Any]:
        name = pattern.format(self.flags.partition(":")[2])
        return getattr(importlib.import_module(self.flags_module), name)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        importlib.import_module(f"bert_tf.tasks.{self.task}.run").run(settings)

    def run(self) -> None:
        """Runs the script, from parsing its flags to its exit status."""
        from bert_tf.cli.training_flags import run_script

        run_script(self.define, self.main)

    def main(self, values: FlagValues) -> None:
        """Turns flags into settings and runs the task."""
        from bert_tf.ranks.launched import prepare_process

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
        from bert_tf.ranks.launched import prepare_process
        from bert_tf.tasks.pretraining.phases import phases_from_flags

        phases = phases_from_flags(values, self.settings)
        prepare_process(phases[0].settings.runtime)
        # TensorFlow reads the environment when it is imported.
        from bert_tf.tasks.pretraining.phase_runs import run_phases

        run_phases(phases)

    def start(self, settings: Any) -> None:
        """Runs a single phase; all objectives have the run of pre-training."""
        from bert_tf.tasks.pretraining.run import run

        run(settings)


# Command of bert-tf -> its script.
SCRIPTS = {
    "pretrain": PretrainingScript(
        "run_pretraining.py",
        "pretraining",
        "flags:pretraining",
        "Pre-trains BERT on records, in one process or on all ranks of a job.",
    ),
    "electra": PretrainingScript(
        "run_electra.py",
        "replaced_tokens",
        "objective:electra",
        "Pre-trains BERT by replaced-token detection, as ELECTRA does.",
    ),
    "distill": PretrainingScript(
        "run_distillation.py",
        "pretraining",
        "flags:distillation",
        "Pre-trains a smaller BERT with a larger one as its teacher.",
    ),
    "squad": Script(
        "run_squad.py",
        "question_answering",
        "settings:squad",
        "Fine-tunes BERT on SQuAD v1.1 or v2.0, answers questions and scores the answers.",
    ),
    "classifier": Script(
        "run_classifier.py",
        "classification",
        "flags:classification",
        "Fine-tunes BERT on a GLUE task, predicts classes and scores them.",
    ),
    "ner": Script(
        "run_ner.py",
        "tagging",
        "flags:tagging",
        "Fine-tunes BERT to label tokens (NER, POS), predicts labels and scores them.",
    ),
    "multiple-choice": Script(
        "run_multiple_choice.py",
        "multiple_choice",
        "flags:choice",
        "Fine-tunes BERT to choose among answers or endings (SWAG, RACE), chooses and scores.",
    ),
    "evaluate": Script(
        "run_evaluation.py",
        "scoring",
        "settings:evaluation",
        "Computes perplexities of masked language models on texts.",
        trains=False,
    ),
    "features": Script(
        "run_features.py",
        "vectors",
        "settings:feature",
        "Computes vectors of texts: of every token, as google-research/bert does, or one per "
        "text.\n\n"
        "    python run_features.py --init_checkpoint=model --input_file=texts.txt "
        "--pooling=mean \\\n"
        "        --output_file=vectors.npy",
        trains=False,
    ),
}
