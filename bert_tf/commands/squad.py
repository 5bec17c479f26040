"""Fine-tunes BERT on SQuAD v1.1 or v2.0, answers questions and scores the answers."""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings


class Squad(Script):
    """run_squad.py."""

    define = staticmethod(define_squad_flags)
    settings = staticmethod(squad_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.question_answering import run

        run.run(settings)


SCRIPT = Squad()
run = SCRIPT.run

if __name__ == "__main__":
    run()
