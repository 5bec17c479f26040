"""Exports a trained model of any task for servers: as a SavedModel or ONNX.

    python -m bert_tf.commands.export --model_dir=classes --export_dir=serving/classes

writes ``serving/classes/1`` (2, 3, ... later), in the layout that TensorFlow Serving watches. The
task is that of the model's head: classification, tagging, question answering, masked words, or
vectors for a model without a head. Loading the export needs only TensorFlow. Its signatures:

* ``serving_default``: ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, any B and S;
* ``text``, with ``--text_signature``: strings. Loading such an export requires the operations of
  tensorflow-text, for the other signatures too.

``assets.extra`` has the vocabulary, the configuration and the labels, for clients that tokenize.

``--server`` chooses the layout and the configuration file next to the versions: TensorFlow
Serving's ``models.config``, or Triton's ``config.pbtxt``. ``--format=onnx`` writes the numbers that
``serving_default`` returns as ONNX, compared with the network; ``--int8`` quantizes it.
"""

from __future__ import annotations

import sys

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.inference.settings import define_model_flags, model_from_flags, options_from_flags
from bert_tf.serving.server_files import (
    SERVERS,
    TENSORFLOW_SERVING,
    TRITON,
    TRITON_SAVED_MODEL,
    write_serving_config,
    write_triton_config,
)
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import TASKS, trained_model
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError

SAVED_MODEL, ONNX = "saved_model", "onnx"


def define_flags() -> None:
    """Defines the command's flags."""
    define_model_flags(precision="fp32")
    _define_target_flags()
    _define_format_flags()
    _define_task_flags()


@flag_group("Export")
def _define_target_flags() -> None:
    flags.DEFINE_string("export_dir", None, "Directory for all versions.", required=True)
    flags.DEFINE_integer("version", None, "Version number (default: the next one).")


@flag_group("Format and server")
def _define_format_flags() -> None:
    flags.DEFINE_enum("format", SAVED_MODEL, [SAVED_MODEL, ONNX], "Format of the export.")
    flags.DEFINE_enum(
        "server",
        None,
        list(SERVERS),
        "Server whose layout and configuration are written (default: tensorflow_serving for a "
        "SavedModel, triton for ONNX).",
    )
    flags.DEFINE_bool("int8", False, "ONNX: 8-bit integers in the products (dynamic quantization).")


@flag_group("Task")
def _define_task_flags() -> None:
    flags.DEFINE_enum("task", None, list(TASKS), "Task (default: that of the model's head).")
    define = Definer(flags.FLAGS)
    define.settings(ExportSettings)
    define.settings(VectorSettings)


def main(_: object) -> None:
    """Writes the export and its server's configuration, and prints where they are."""
    values = flags.FLAGS
    is_onnx = values.format == ONNX
    server = values.server or (TRITON if is_onnx else TENSORFLOW_SERVING)
    if is_onnx:
        _check_onnx(values)
    elif values.int8:
        raise UserError("--int8 is for --format=onnx; a SavedModel takes --precision=bf16.")
    environment.prepare_environment(verbose=False)
    settings = from_flags(ExportSettings, values)
    if not values.export_dir:
        raise UserError("--export_dir is empty; give a directory.")
    model = model_from_flags(values)
    for note in model.notes:
        say(note, stream=sys.stderr)
    environment.quiet_tensorflow(verbose=False)
    trained = trained_model(model, values.task)
    # Imported here, so that mistakes in flags are reported before TensorFlow starts.
    from bert_tf.serving.export import export_onnx, export_saved_model

    target = trained, settings, values.export_dir
    if is_onnx:
        written = export_onnx(*target, version=values.version, int8=values.int8)
    else:
        inside = TRITON_SAVED_MODEL if server == TRITON else ""
        # Warnings about this machine are dropped, since the export may be for another one.
        options, _ = options_from_flags(values, model, native_ops=False)
        written = export_saved_model(
            *target, version=values.version, precision=options.policy, inside=inside
        )
    print(f"exported {model.checkpoint} to {written.path}")
    if written.onnx_difference is not None:
        how = "in 8-bit integers" if values.int8 else "in float32"
        print(
            f"largest difference of onnxruntime's outputs {how} from the network's: "
            f"{written.onnx_difference:.1e}"
        )
    export_dir = written.path.parent
    with hold_directory(export_dir, flag="export_dir", wait=True):
        if server == TRITON:
            print(write_triton_config(written))
        else:
            print(write_serving_config(export_dir))


def _check_onnx(values: flags.FlagValues) -> None:
    """Raises UserError for flags that only a SavedModel has."""
    problem = ""
    if values.server == TENSORFLOW_SERVING:
        problem = f"--server={TENSORFLOW_SERVING} serves no ONNX"
    elif values.text_signature:
        problem = "--text_signature is for SavedModels: ONNX has no tokenizer"
    elif values.precision != "fp32" or values.precision_policy:
        problem = "--precision and --precision_policy are for SavedModels; ONNX takes --int8"
    elif values.max_seq_length is not None:
        problem = "--max_seq_length is for SavedModels: ONNX does not check the length"
    if problem:
        raise UserError(f"{problem}; leave the flag out, or --format=onnx.")


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
