"""The ``.meta`` file of a checkpoint: a graph that contains only its variables.

Scripts look for this file to see whether a checkpoint exists, and ``tf.train.import_meta_graph``
reads it. TensorFlow's Saver would store the program's whole graph, including every constant; here
it contains only the variables and the operations that save and restore them, about 1.5 kB each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import saver_pb2

from bert_tf.checkpoint.names import is_run_state
from bert_tf.util.files import atomic_open

SUFFIX = ".meta"


class Stored(NamedTuple):
    """Shape and dtype of a variable in a checkpoint."""

    shape: Sequence[int]
    dtype: tf.DType


def write_meta_graph(checkpoint: str, variables: Mapping[str, Stored]) -> None:
    """Writes ``checkpoint``.meta for the variables in it.

    Call this before the checkpoint itself is written, so that every complete checkpoint has the
    file, whenever the process is killed. Raises UserError if the disk is full.
    """
    with atomic_open(f"{checkpoint}{SUFFIX}", "wb") as file:
        file.write(meta_graph(variables).SerializeToString())


def meta_graph(variables: Mapping[str, Stored]) -> tf.MetaGraphDef:
    """A graph in which ``NAME:0`` is the value of each variable, and a Saver for all of them.

    Weights are trainable; optimizer state and counters are not. All are initialised to zeros.
    """
    # Built as messages, since TensorFlow takes some milliseconds to add a variable to a graph.
    found = tf.MetaGraphDef()
    found.meta_info_def.tensorflow_version = tf.VERSION
    nodes = _Nodes(found.graph_def)
    nodes.add("save/filename", "Const", **_constant("model"))
    path = nodes.add(
        "save/Const",
        "PlaceholderWithDefault",
        "save/filename",
        dtype=tf.string,
        shape=tf.TensorShape([]),
    )
    names = nodes.add("save/tensor_names", "Const", **_constant(list(variables)))
    slices = nodes.add("save/shape_and_slices", "Const", **_constant([""] * len(variables)))
    dtypes = [stored.dtype for stored in variables.values()]
    nodes.add("save/SaveV2", "SaveV2", path, names, slices, *variables, dtypes=dtypes)
    nodes.add("save/control_dependency", "Identity", path, "^save/SaveV2", T=tf.string)
    nodes.add("save/RestoreV2", "RestoreV2", path, names, slices, dtypes=dtypes)
    for number, (name, stored) in enumerate(variables.items()):
        definition = _add_variable(nodes, name, stored)
        value = f"save/RestoreV2:{number}"
        nodes.add(f"save/Assign_{number}", "Assign", name, value, T=stored.dtype)
        _collect(found, tf.GraphKeys.GLOBAL_VARIABLES, definition)
        if definition.trainable:
            _collect(found, tf.GraphKeys.TRAINABLE_VARIABLES, definition)
    nodes.add("save/restore_all", "NoOp", *(f"^save/Assign_{n}" for n in range(len(variables))))
    found.graph_def.versions.producer = tf.GRAPH_DEF_VERSION
    found.saver_def.CopyFrom(
        saver_pb2.SaverDef(
            filename_tensor_name="save/Const:0",
            save_tensor_name="save/control_dependency:0",
            restore_op_name="save/restore_all",
            max_to_keep=5,
            keep_checkpoint_every_n_hours=10_000,
            version=saver_pb2.SaverDef.V2,
        )
    )
    return found


def _add_variable(nodes: _Nodes, name: str, stored: Stored) -> variable_pb2.VariableDef:
    dtype, shape = stored.dtype, list(stored.shape)
    # Not a resource, so that "NAME:0" is the value, as in files of the original BERT programs.
    nodes.add(name, "VariableV2", dtype=dtype, shape=tf.TensorShape(shape))
    dimensions = nodes.add(f"{name}/Initializer/shape", "Const", **_constant(shape, tf.int32))
    zero = nodes.add(
        f"{name}/Initializer/zero", "Const", **_constant(dtype.as_numpy_dtype(0), dtype)
    )
    zeros = nodes.add(f"{name}/Initializer/zeros", "Fill", dimensions, zero, T=dtype)
    assign = nodes.add(f"{name}/Assign", "Assign", name, zeros, T=dtype)
    read = nodes.add(f"{name}/read", "Identity", name, T=dtype)
    return variable_pb2.VariableDef(
        variable_name=f"{name}:0",
        initial_value_name=f"{zeros}:0",
        initializer_name=assign,
        snapshot_name=f"{read}:0",
        trainable=not is_run_state(name),
    )


class _Nodes:
    """Adds nodes to a graph definition."""

    def __init__(self, graph: tf.GraphDef) -> None:
        self._graph = graph

    def add(self, name: str, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operation; returns its name. Attributes are dtypes, lists of these, or shapes."""
        node = self._graph.node.add(name=name, op=kind, input=inputs)
        for key, value in attributes.items():
            node.attr[key].CopyFrom(_attribute(value))
        return name


def _attribute(value: Any) -> tf.AttrValue:
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return tf.AttrValue(shape=value.as_proto())
    if isinstance(value, list):
        types = [dtype.as_datatype_enum for dtype in value]
        return tf.AttrValue(list=tf.AttrValue.ListValue(type=types))
    return tf.AttrValue(tensor=value)


def _constant(value: Any, dtype: tf.DType = tf.string) -> dict[str, Any]:
    return {"dtype": dtype, "value": tf.make_tensor_proto(value, dtype)}


def _collect(graph: tf.MetaGraphDef, key: str, definition: variable_pb2.VariableDef) -> None:
    graph.collection_def[key].bytes_list.value.append(definition.SerializeToString())
