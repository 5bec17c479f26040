"""Computes vectors of texts: of every token, as google-research/bert does, or one per text.

    python run_features.py --init_checkpoint=model --input_file=texts.txt --pooling=mean \\
        --output_file=vectors.npy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bert_tf.cli.training_flags import run_script
from bert_tf.ranks.launched import prepare_process
from bert_tf.tasks.vectors.flags import define_feature_flags, feature_settings

if TYPE_CHECKING:
    from absl.flags import FlagValues


def main(values: FlagValues) -> None:
    """Turns flags into settings and computes the vectors."""
    settings = feature_settings(values)
    prepare_process(settings.runtime)
    # TensorFlow reads the environment when it is imported, and --help should not wait for it.
    from bert_tf.tasks.vectors import run as vectors

    vectors.run(settings)


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    run_script(define_feature_flags, main)


if __name__ == "__main__":
    run()
