"""Pre-trains a smaller BERT with a larger one as its teacher."""

from __future__ import annotations

from bert_tf.commands.scripts import PretrainingScript
from bert_tf.tasks.pretraining.flags import (
    define_distillation_flags,
    distillation_settings,
)


class Distillation(PretrainingScript):
    """run_distillation.py."""

    define = staticmethod(define_distillation_flags)
    settings = staticmethod(distillation_settings)


SCRIPT = Distillation()
run = SCRIPT.run

if __name__ == "__main__":
    run()
