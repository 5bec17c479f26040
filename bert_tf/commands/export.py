"""Exports a trained model of any task as a SavedModel for servers.

    python -m bert_tf.commands.export --model_dir=classes --export_dir=serving/classes

writes ``serving/classes/1`` (2, 3, ... later), in the layout that TensorFlow Serving watches. The
task is that of the model's head: classification, tagging, question answering, masked words, or
vectors for a model without a head. Loading the export needs only TensorFlow. Its signatures:

* ``serving_default``: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, any B and S;
* ``text``, with ``--text_signature``: strings. Loading such an export requires the operations of
  tensorflow-text, for the other signatures too.

``assets.extra`` has the vocabulary, the configuration and the labels, for clients that tokenize.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.inference.flags import define_model_flags, model_from_flags, options_from_flags
from bert_tf.serving.export import (
    ExportSettings,
    LengthSettings,
    SpanExportSettings,
    VectorExportSettings,
)
from bert_tf.serving.trained import TASKS
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from bert_tf.model_directory.complete import CompleteModel

# The batches for which --precision=auto measures.
_USUAL_BATCH = 8


def define_flags() -> None:
    """Defines the command's flags."""
    define_model_flags()
    define_target_flags()
    _define_task_flags()


@flag_group("Export")
def define_target_flags() -> None:
    """Defines the flags of every export."""
    flags.DEFINE_string("export_dir", None, "Directory for all versions.", required=True)
    flags.DEFINE_integer("version", None, "Version number (default: the next one).")
    Definer(flags.FLAGS).settings(LengthSettings)


@flag_group("Task")
def _define_task_flags() -> None:
    flags.DEFINE_enum("task", None, list(TASKS), "Task (default: that of the model's head).")
    define = Definer(flags.FLAGS)
    define.settings(SpanExportSettings)
    define.settings(ExportSettings)
    define.settings(VectorExportSettings)
    define.settings(VectorSettings, without=["pooling"])


def main(_: object) -> None:
    """Writes the SavedModel and prints its path."""
    values = flags.FLAGS
    export(values, values.task)


def export(values: flags.FlagValues, task: str | None) -> None:
    """Exports a model for a task, None being that of its head, and prints where it is."""
    environment.prepare_environment(verbose=False, use_xla=False)
    settings = from_flags(ExportSettings, values)
    if not values.export_dir:
        raise UserError("--export_dir is empty; give a directory.")
    model = model_from_flags(values)
    for note in model.notes:
        say(note, stream=sys.stderr)
    target = _write(values, model, task, settings)
    print(f"exported {model.checkpoint} to {target}")


def _write(
    values: flags.FlagValues, model: CompleteModel, task: str | None, settings: ExportSettings
) -> Path:
    # Imported here, so that mistakes in flags are reported before TensorFlow is loaded.
    from bert_tf.inference.export import export_saved_model
    from bert_tf.serving.export import exportable_of
    from bert_tf.serving.trained import trained_model

    environment.quiet_tensorflow(verbose=False)
    exportable = exportable_of(trained_model(model, task), settings)
    # Warnings about this machine are dropped, since the export may be for another one.
    options, _ = options_from_flags(
        values,
        model.config,
        native_ops=False,
        sequences=_USUAL_BATCH,
        length=model.config.max_position_embeddings,
    )
    return export_saved_model(
        model,
        exportable,
        values.export_dir,
        version=values.version,
        precision=options.policy,
        max_seq_length=settings.length.max_seq_length,
        text_signatures=settings.length.text_signature,
    )


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
