"""Pre-trains a smaller BERT with a larger one as its teacher."""

from __future__ import annotations

import functools

from bert_tf.cli.training_flags import run_script
from bert_tf.tasks.pretraining.distillation_flags import (
    define_distillation_flags,
    distillation_settings,
)
from bert_tf.tasks.pretraining.phases import train


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(
        define_distillation_flags, functools.partial(train, settings_of=distillation_settings)
    )


if __name__ == "__main__":
    run()
