"""Fine-tunes BERT to label tokens (NER, POS), predicts labels and scores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and runs the task."""
    settings = tagging_settings(values)
    prepare_process(settings.runtime)
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    from bert_tf.tasks.tagging import run as tagging

    tagging.run(settings)


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_tagging_flags, main)


if __name__ == "__main__":
    run()
