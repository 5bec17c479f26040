"""Computes perplexities of masked language models on texts."""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.scoring.settings import define_evaluation_flags, evaluation_settings


class Evaluation(Script):
    """run_evaluation.py."""

    define = staticmethod(define_evaluation_flags)
    settings = staticmethod(evaluation_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.scoring import run

        run.run(settings)


SCRIPT = Evaluation()
run = SCRIPT.run

if __name__ == "__main__":
    run()
