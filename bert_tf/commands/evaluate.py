"""Computes perplexities of masked language models on texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.scoring.flags import define_evaluation_flags, evaluation_settings

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and runs the evaluation."""
    settings = evaluation_settings(values)
    prepare_process(settings.runtime)
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    from bert_tf.tasks.scoring import run as scoring

    scoring.run(settings)


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_evaluation_flags, main)


if __name__ == "__main__":
    run()
