"""Fine-tunes BERT on a GLUE task, predicts classes and scores them."""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.classification.flags import classification_settings, define_classification_flags


class Classifier(Script):
    """run_classifier.py."""

    define = staticmethod(define_classification_flags)
    settings = staticmethod(classification_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.classification import run

        run.run(settings)


SCRIPT = Classifier()
run = SCRIPT.run

if __name__ == "__main__":
    run()
