"""Exports a span model as a SavedModel for TensorFlow Serving.

    python -m bert_tf.commands.export_squad --model_dir=model --export_dir=serving/squad

writes ``serving/squad/1`` (2, 3, ... later), as ``bert_tf.commands.export`` does for any task. Its
signatures:

* ``serving_default``: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, any B and S.
* ``with_unique_ids``: the same plus ``unique_ids`` [B], which are returned, for clients of
  google-research/bert's and NVIDIA's exports.
* ``text``, with ``--text_signature``: ``question`` and ``context`` [B] strings. Loading such an
  export requires the operations of tensorflow-text, for the other signatures too.

``assets.extra`` has the vocabulary and the configuration, for clients that tokenize.
"""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.cli.settings_flags import Definer
from bert_tf.commands.export import define_target_flags, opened, write_saved_model
from bert_tf.inference.flags import define_model_flags
from bert_tf.serving.settings import SpanExportSettings
from bert_tf.serving.trained import QUESTION_ANSWERING


def define_flags() -> None:
    """Defines the command's flags."""
    define_model_flags()
    define_target_flags()
    _define_span_flags()


@flag_group("Export")
def _define_span_flags() -> None:
    Definer(flags.FLAGS).settings(SpanExportSettings)


def main(_: object) -> None:
    """Writes the SavedModel and prints its path."""
    write_saved_model(flags.FLAGS, *opened(flags.FLAGS, QUESTION_ANSWERING))


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
