"""Fine-tunes BERT on SQuAD v1.1 or v2.0, answers questions and scores the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.question_answering.flags import define_squad_flags, squad_settings

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and runs the task."""
    settings = squad_settings(values)
    prepare_process(settings.runtime)
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    from bert_tf.tasks.question_answering import run as squad

    squad.run(settings)


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_squad_flags, main)


if __name__ == "__main__":
    run()
