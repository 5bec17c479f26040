"""Fine-tunes BERT to choose among answers or continuations (SWAG, RACE), chooses and scores."""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.multiple_choice.flags import choice_settings, define_choice_flags


class Chooser(Script):
    """run_multiple_choice.py."""

    define = staticmethod(define_choice_flags)
    settings = staticmethod(choice_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.multiple_choice import run

        run.run(settings)


SCRIPT = Chooser()
run = SCRIPT.run

if __name__ == "__main__":
    run()
