"""Pre-trains BERT on records, in one process or on all ranks of a job."""

from __future__ import annotations

import functools

from bert_tf.cli.training_flags import run_script
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.phases import train


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_pretraining_flags, functools.partial(train, settings_of=pretraining_settings))


if __name__ == "__main__":
    run()
