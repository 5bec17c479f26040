"""Fine-tunes BERT on a GLUE task, predicts classes and scores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.classification.flags import classification_settings, define_classification_flags

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and runs the task."""
    settings = classification_settings(values)
    prepare_process(settings.runtime)
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    from bert_tf.tasks.classification import run as classification

    classification.run(settings)


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_classification_flags, main)


if __name__ == "__main__":
    run()
