"""Configuration files of servers, next to the versions of an exported model.

TensorFlow Serving reads a ``ModelServerConfig`` (its config/model_server_config.proto) with the
directory of each model. For Triton, that directory is one of a model repository: it holds a
``ModelConfig`` (model_config.proto of triton-inference-server/common), and a version's directory
holds ``model.savedmodel`` or ``model.onnx``.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.files import atomic_open

TENSORFLOW_SERVING, TRITON = "tensorflow_serving", "triton"
SERVERS = (TENSORFLOW_SERVING, TRITON)

# Triton's default names of a model in the directory of a version.
TRITON_SAVED_MODEL, TRITON_ONNX = "model.savedmodel", "model.onnx"

_SERVING_NAME, _TRITON_NAME = "models.config", "config.pbtxt"
_MAX_BATCH_SIZE = 32
# The names of types in TensorFlow and in ONNX -> Triton's.
_TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "FLOAT": "TYPE_FP32",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "STRING": "TYPE_STRING",
}


# The name of an input or output, TensorFlow's and ONNX's name of its type, such as INT32, and its
# dimensions after the batch, -1 for any size.
TensorInfo = tuple[str, str, tuple[int, ...]]
Signature = tuple[list[TensorInfo], list[TensorInfo]]  # inputs, outputs


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


def write_triton_config(version: Path) -> str:
    """Writes ``config.pbtxt`` for Triton next to a version; see :func:`_write_unless_there`.

    ``version`` holds TRITON_SAVED_MODEL or TRITON_ONNX, from which the inputs and outputs are read.
    """
    export_dir = Path(os.path.abspath(version.parent))
    if (version / TRITON_ONNX).exists():
        platform, backend = "onnxruntime_onnx", "onnxruntime"
        inputs, outputs = onnx_tensors(version / TRITON_ONNX)
    else:
        platform, backend = "tensorflow_savedmodel", "tensorflow"
        inputs, outputs = saved_model_tensors(version / TRITON_SAVED_MODEL)
    lines = [
        f"# tritonserver --model-repository={export_dir.parent}",
        f"name: {_quoted(export_dir.name)}",
        f'platform: "{platform}"',
        f'backend: "{backend}"',
        f"max_batch_size: {_MAX_BATCH_SIZE}",
        *_tensors("input", inputs),
        *_tensors("output", outputs),
        "# Requests of the same length are computed together.",
        "dynamic_batching { }",
    ]
    return _write_unless_there(export_dir / _TRITON_NAME, lines, server="Triton")


def saved_model_tensors(directory: Path) -> Signature:
    """The inputs and outputs of the default signature of a SavedModel, by name."""
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import saved_model_pb2

    content = (directory / "saved_model.pb").read_bytes()
    [graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    signature = graph.signature_def["serving_default"]

    def described(name: str, tensor: Any) -> TensorInfo:
        kind = types_pb2.DataType.Name(tensor.dtype).removeprefix("DT_")
        return name, kind, tuple(dimension.size for dimension in tensor.tensor_shape.dim[1:])

    inputs, outputs = (sorted(side.items()) for side in (signature.inputs, signature.outputs))
    return [described(*one) for one in inputs], [described(*one) for one in outputs]


def onnx_tensors(path: Path) -> Signature:
    """The inputs and outputs of an ONNX model, in their order."""
    onnx = importlib.import_module("onnx")
    graph = onnx.load(path, load_external_data=False).graph

    def described(tensor: Any) -> TensorInfo:
        kind = tensor.type.tensor_type
        sizes = tuple(dimension.dim_value or -1 for dimension in kind.shape.dim[1:])
        return tensor.name, onnx.TensorProto.DataType.Name(kind.elem_type), sizes

    return list(map(described, graph.input)), list(map(described, graph.output))


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
