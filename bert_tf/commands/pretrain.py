"""Pre-trains BERT on records, in one process or on all ranks of a job."""

from __future__ import annotations

from bert_tf.commands.scripts import PretrainingScript
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings


class Pretraining(PretrainingScript):
    """run_pretraining.py."""

    define = staticmethod(define_pretraining_flags)
    settings = staticmethod(pretraining_settings)


SCRIPT = Pretraining()
run = SCRIPT.run

if __name__ == "__main__":
    run()
