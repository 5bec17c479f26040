"""Pre-trains BERT by replaced-token detection, as ELECTRA does."""

from __future__ import annotations

import functools

from bert_tf.cli.training_flags import run_script
from bert_tf.tasks.pretraining.phases import train
from bert_tf.tasks.replaced_tokens.objective import define_electra_flags, electra_settings


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_electra_flags, functools.partial(train, settings_of=electra_settings))


if __name__ == "__main__":
    run()
