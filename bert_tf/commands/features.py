"""Computes vectors of texts: of every token, as google-research/bert does, or one per text.

    python run_features.py --init_checkpoint=model --input_file=texts.txt --pooling=mean \\
        --output_file=vectors.npy
"""

from __future__ import annotations

from typing import Any

from bert_tf.commands.scripts import Script
from bert_tf.tasks.vectors.settings import define_feature_flags, feature_settings


class Features(Script):
    """run_features.py."""

    define = staticmethod(define_feature_flags)
    settings = staticmethod(feature_settings)

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""
        from bert_tf.tasks.vectors import run

        run.run(settings)


SCRIPT = Features()
run = SCRIPT.run

if __name__ == "__main__":
    run()
