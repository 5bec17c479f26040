"""The training scripts with the functions for their flags, for commands that wrap any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from bert_tf.cli.training_flags import optimization_settings
from bert_tf.compat import nvidia_defaults
from bert_tf.config.settings import OptimizationSettings
from bert_tf.tasks.classification.flags import classification_settings, define_classification_flags
from bert_tf.tasks.pretraining import flags as pretraining_flags
from bert_tf.tasks.pretraining.distillation_flags import (
    define_distillation_flags,
    distillation_settings,
)
from bert_tf.tasks.question_answering.flags import define_squad_flags, squad_settings
from bert_tf.tasks.replaced_tokens.objective import define_electra_flags, electra_settings
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings


class TrainingScript(NamedTuple):
    """A training script.

    Attributes:
      define_flags: defines its flags.
      settings: turns its flags into the settings of a run.
      optimization: reads only the flags of batch, schedule, optimizer and length.
      of_nvidia: the script of NVIDIA's whose commands it accepts, if any.
    """

    define_flags: Callable[[flags.FlagValues], None]
    settings: Callable[[flags.FlagValues], Any]
    optimization: Callable[[flags.FlagValues], OptimizationSettings]
    of_nvidia: nvidia_defaults.PeerScript | None = None


PRETRAINING, DISTILLATION = "run_pretraining.py", "run_distillation.py"
ELECTRA = "run_electra.py"
# The scripts that train on pre-training records.
OF_RECORDS = (PRETRAINING, DISTILLATION, ELECTRA)
SQUAD, CLASSIFIER, TAGGER = "run_squad.py", "run_classifier.py", "run_ner.py"

SCRIPTS = {
    PRETRAINING: TrainingScript(
        pretraining_flags.define_pretraining_flags,
        pretraining_flags.pretraining_settings,
        pretraining_flags.pretraining_optimization,
        nvidia_defaults.PRETRAINING,
    ),
    DISTILLATION: TrainingScript(
        define_distillation_flags,
        distillation_settings,
        pretraining_flags.pretraining_optimization,
    ),
    ELECTRA: TrainingScript(
        define_electra_flags,
        electra_settings,
        pretraining_flags.pretraining_optimization,
    ),
    SQUAD: TrainingScript(
        define_squad_flags,
        squad_settings,
        optimization_settings,
        nvidia_defaults.SQUAD,
    ),
    CLASSIFIER: TrainingScript(
        define_classification_flags,
        classification_settings,
        optimization_settings,
    ),
    TAGGER: TrainingScript(
        define_tagging_flags,
        tagging_settings,
        optimization_settings,
        nvidia_defaults.TAGGING,
    ),
}

# The bert-tf commands that run these scripts.
OF_COMMANDS = {
    "pretrain": PRETRAINING,
    "distill": DISTILLATION,
    "electra": ELECTRA,
    "squad": SQUAD,
    "classifier": CLASSIFIER,
    "classify": CLASSIFIER,
    "ner": TAGGER,
}
