"""Fine-tunes BERT to label tokens (NER, POS), predicts labels and scores them."""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings


class Tagger(Script):
    """run_ner.py."""

    define = staticmethod(define_tagging_flags)
    settings = staticmethod(tagging_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.tagging import run

        run.run(settings)


SCRIPT = Tagger()
run = SCRIPT.run

if __name__ == "__main__":
    run()
