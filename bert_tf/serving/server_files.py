"""Configuration files of servers, next to the versions of an exported model.

TensorFlow Serving reads a ``ModelServerConfig`` (its config/model_server_config.proto) with the
directory of each model. For Triton, that directory is one of a model repository: it holds a
``ModelConfig`` (model_config.proto of triton-inference-server/common), and a version's directory
holds ``model.savedmodel`` or ``model.onnx``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.util.files import atomic_open

TENSORFLOW_SERVING, TRITON = "tensorflow_serving", "triton"
SERVERS = (TENSORFLOW_SERVING, TRITON)

TRITON_SAVED_MODEL = "model.savedmodel"  # Triton's default name in the directory of a version

_SERVING_NAME, _TRITON_NAME = "models.config", "config.pbtxt"
_MAX_BATCH_SIZE = 32
# TensorFlow's names of types -> Triton's.
_TRITON_TYPES = {
    "bool": "TYPE_BOOL",
    "float32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "string": "TYPE_STRING",
}

# The name of an input or output, TensorFlow's name of its type, and its dimensions after the batch,
# -1 for any size.
TensorInfo = tuple[str, str, tuple[int, ...]]


class Written(NamedTuple):
    """An exported model.

    Attributes:
      path: the directory of its version.
      inputs, outputs: of the signature that takes token ids.
      onnx_difference: of an ONNX model, the largest difference of a number from the network's,
        relative to that where it is larger than 1; None for a SavedModel.
    """

    path: Path
    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]
    onnx_difference: float | None = None


def write_serving_config(export_dir: Path) -> str:
    """Writes ``models.config`` for TensorFlow Serving; see :func:`_write_unless_there`."""
    path = os.path.abspath(export_dir)
    lines = [
        f"# tensorflow_model_server --model_config_file={path}/{_SERVING_NAME}",
        "# In a container, base_path is the directory's path there.",
        "model_config_list {",
        "  config {",
        f"    name: {_quoted(os.path.basename(path))}",
        f"    base_path: {_quoted(path)}",
        '    model_platform: "tensorflow"',
        "  }",
        "}",
    ]
    return _write_unless_there(export_dir / _SERVING_NAME, lines, server="TensorFlow Serving")


def write_triton_config(written: Written) -> str:
    """Writes ``config.pbtxt`` for Triton next to a version; see :func:`_write_unless_there`."""
    export_dir = Path(os.path.abspath(written.path.parent))
    platform, backend = "tensorflow_savedmodel", "tensorflow"
    if written.onnx_difference is not None:
        platform, backend = "onnxruntime_onnx", "onnxruntime"
    lines = [
        f"# tritonserver --model-repository={export_dir.parent}",
        f"name: {_quoted(export_dir.name)}",
        f'platform: "{platform}"',
        f'backend: "{backend}"',
        f"max_batch_size: {_MAX_BATCH_SIZE}",
        *_tensors("input", written.inputs),
        *_tensors("output", written.outputs),
        "# Requests of the same length are computed together.",
        "dynamic_batching { }",
    ]
    return _write_unless_there(export_dir / _TRITON_NAME, lines, server="Triton")


def _tensors(field: str, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    yield f"{field} ["
    for number, (name, kind, dims) in enumerate(tensors, start=1):
        shown = ", ".join(map(str, dims or (1,)))
        # A tensor with one value per example has no dimension for Triton's dims, which needs one.
        reshape = "" if dims else " reshape { shape: [ ] }"
        end = "," if number < len(tensors) else ""
        facts = f"name: {_quoted(name)} data_type: {_TRITON_TYPES[kind]} dims: [ {shown} ]{reshape}"
        yield f"  {{ {facts} }}{end}"
    yield "]"


def _write_unless_there(path: Path, lines: Sequence[str], *, server: str) -> str:
    """Writes a file, or keeps one that is there, as it may have been changed; says which."""
    content = "".join(f"{line}\n" for line in lines)
    if path.exists():
        if path.read_bytes() == content.encode():
            return f"{path} was there and is kept"
        return (
            f"{path} was there and is kept, but differs from what would be written for this "
            "version: check it, or delete it before the next export"
        )
    with atomic_open(path) as file:
        file.write(content)
    return f"{path} is for {server}"


def _quoted(text: str) -> str:
    """A string of protobuf's text format, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
