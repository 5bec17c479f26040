"""Exports a span model as a SavedModel for TensorFlow Serving.

    python -m bert_tf.commands.export_squad --model_dir=model --export_dir=serving/squad

writes ``serving/squad/1`` (2, 3, ... later). Its signatures:

* ``serving_default``: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, any B and S.
* ``with_unique_ids``: the same plus ``unique_ids`` [B], which are returned, for clients of
  google-research/bert's and NVIDIA's exports.
* ``text``, with ``--text_signature``: ``question`` and ``context`` [B] strings. Loading such an
  export requires the operations of tensorflow-text, for the other signatures too.

``assets.extra`` has the vocabulary and the configuration, for clients that tokenize.
"""

from __future__ import annotations

import sys

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.inference.flags import define_model_flags, model_from_flags, options_from_flags
from bert_tf.tasks.question_answering.answerer import BATCH_SIZE
from bert_tf.tasks.question_answering.windows import WindowSettings, fitting_windows
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.errors import UserError


@flag_group("Export")
def define_flags() -> None:
    """Defines the command's flags."""
    define_model_flags()
    flags.DEFINE_string("export_dir", None, "Directory for all versions.", required=True)
    flags.DEFINE_integer("version", None, "Version number (default: the next one).")
    flags.DEFINE_integer("max_seq_length", None, "Maximum sequence length (default: the model's).")
    flags.DEFINE_integer("max_query_length", 64, "Maximum question length in the text signature.")
    flags.DEFINE_integer("n_best_size", 20, "Number of best positions to return.")
    flags.DEFINE_bool("text_signature", False, "Add the signature that takes strings.")


def main(_: object) -> None:
    """Writes the SavedModel and prints its path."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False, use_xla=False)
    if values.n_best_size < 1:
        raise UserError(f"--n_best_size={values.n_best_size} must be at least 1.")
    if not values.export_dir:
        raise UserError("--export_dir is empty; give a directory.")
    model = model_from_flags(values)
    for note in model.notes:
        say(note, stream=sys.stderr)
    windows = None
    if values.text_signature:
        longest = values.max_seq_length or model.config.max_position_embeddings
        query = values.max_query_length
        if not values["max_query_length"].present:
            query = fitting_windows(longest).max_query_length
        windows = WindowSettings(max_seq_length=longest, max_query_length=query)
        windows.validate()

    # Warnings about this machine are dropped, since the export may be for another one.
    options, _ = options_from_flags(
        values,
        model.config,
        native_ops=False,
        sequences=BATCH_SIZE,
        length=model.config.max_position_embeddings,
    )
    # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
    from bert_tf.tasks.question_answering.export import export_squad

    environment.quiet_tensorflow(verbose=False)
    target = export_squad(
        model,
        values.export_dir,
        version=values.version,
        precision=options.policy,
        max_seq_length=values.max_seq_length,
        num_candidates=values.n_best_size,
        text_windows=windows,
    )
    print(f"exported {model.checkpoint} to {target}")


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
