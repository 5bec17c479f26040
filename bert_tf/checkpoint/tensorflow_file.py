"""Finds, reads and writes TensorFlow checkpoints.

A checkpoint's ``.meta`` file is a graph: scripts look for it to see whether a checkpoint exists,
and ``tf.train.import_meta_graph`` reads it. TensorFlow's Saver would store the program's whole
graph, including every constant; here it contains only the variables and the operations that save
and restore them, about 1.5 kB each.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import saver_pb2

from bert_tf.checkpoint.arrays import ArrayFile, Entry, refuse_lfs_pointer, truncated
from bert_tf.checkpoint.names import is_run_state
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, atomic_open

LIST_NAME = "checkpoint"

_DATA_FILE = re.compile(r"\.data-\d{5}-of-(\d{5})$")
_FILE_OF_A_CHECKPOINT = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_NUMBERED = re.compile(r"(.*)-(\d+)", re.DOTALL)
# Written by tf.train.Checkpoint, whose names are paths of objects in a program.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Exceptions that TensorFlow's checkpoint reader raises for damaged checkpoints.
_DAMAGE = (tf.errors.OpError, ValueError, TypeError, RuntimeError, IndexError)


def resolve_checkpoint(path: PathLike) -> str:
    """The path of a checkpoint without its files' suffixes.

    ``path`` is that path itself, one of the checkpoint's files, or a directory, which means its
    latest checkpoint, or its only one if no file names the latest. Raises UserError if there is no
    checkpoint, or a part of it is missing.
    """
    path = str(path)
    if Path(path).is_dir():
        path = _latest_in(path)
    elif Path(path).is_file():
        path = _FILE_OF_A_CHECKPOINT.sub("", path)
    if not Path(f"{path}.index").is_file():
        raise UserError(
            f"checkpoint {path} does not exist ({path}.index was looked for); give the path "
            "without .index, or the directory that holds it."
        )
    found = _data_files(path)
    counts = {int(count) for file in found for count in _DATA_FILE.findall(file)}
    if counts != {len(found)}:
        raise UserError(
            f"checkpoint {path} is incomplete: it has {len(found)} data files "
            f"({path}.data-*); copy all files of the checkpoint."
        )
    for file in (f"{path}.index", *found):
        refuse_lfs_pointer(Path(file))
    return path


def _latest_in(directory: str) -> str:
    try:
        latest = tf.train.latest_checkpoint(directory)
    except ValueError:  # the file that names the latest is damaged
        latest = None
    if latest is not None:
        warn_if_older(latest)
        return latest
    # Published checkpoints lack the file that names the latest.
    found = sorted(glob.glob(f"{glob.escape(directory)}/*.index"))
    if not found:
        raise UserError(f"checkpoint directory {directory} holds no checkpoint; give another path.")
    if len(found) > 1:
        names = ", ".join(Path(path).stem for path in found)
        raise UserError(f"checkpoint directory {directory} holds {names}; give the path of one.")
    return _FILE_OF_A_CHECKPOINT.sub("", found[0])


def warn_if_older(latest: str) -> None:
    """Warns if a directory's list names a checkpoint that is not its newest complete one.

    The list may have been edited on purpose; a damaged one must not go unnoticed.
    """
    name = _NUMBERED.fullmatch(latest)
    if name is None:
        return
    pattern = f"{glob.escape(name[1])}-*.index"
    beside = filter(
        None, (_NUMBERED.fullmatch(path.removesuffix(".index")) for path in glob.glob(pattern))
    )
    newer = [match for match in beside if int(match[2]) > int(name[2]) and is_complete(match[0])]
    if newer:
        newest = max(newer, key=lambda match: int(match[2]))
        _warn_once(
            f"{Path(latest).with_name(LIST_NAME)} names {Path(latest).name} as the latest "
            f"checkpoint, which is used, but {Path(newest[0]).name} is newer and complete; correct "
            "the file if that is not intended"
        )


_warn_once = functools.cache(warn)


def list_checkpoints(directory: Path, names: Sequence[str]) -> None:
    """Writes the file that lists checkpoints of ``directory``, the latest one last.

    It has names without the directory, so that the directory can be moved.
    """
    # TensorFlow takes names as relative to the working directory if this path is relative, too.
    tf.train.update_checkpoint_state(str(directory.absolute()), names[-1], list(names))


def is_complete(path: PathLike) -> bool:
    """Whether all files of a checkpoint exist and none is truncated."""
    try:
        TensorflowCheckpoint(resolve_checkpoint(path)).check_size()
    except UserError:
        return False
    return True


def _data_files(checkpoint: str) -> list[str]:
    """Excludes files that a kill left half-written, which end in ``.tempstate`` and a number."""
    return list(filter(_DATA_FILE.search, glob.glob(f"{glob.escape(checkpoint)}.data-*")))


class TensorflowCheckpoint(ArrayFile):
    """One checkpoint; see ``ArrayFile``."""

    is_tensorflow = True

    def __init__(self, checkpoint: str, *, objects: bool = False) -> None:
        """Reads a resolved checkpoint's index; UserError if damaged, or of unwanted ``objects``."""
        self.path = checkpoint
        try:
            self._reader = tf.train.load_checkpoint(checkpoint)
            shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
        except _DAMAGE as error:
            raise damaged(checkpoint, error) from error
        self.entries = {
            name: Entry(tuple(shape), self._dtypes[name].name) for name, shape in shapes.items()
        }
        if OBJECT_GRAPH in self.entries and not objects:
            raise UserError(
                f"checkpoint {checkpoint} was written by TensorFlow 2's tf.train.Checkpoint; "
                "convert it to --format=bert_tf first (bert_tf.commands.convert)."
            )

    def check_size(self) -> None:
        """Raises UserError if the data files are smaller than their values."""
        needed = sum(
            math.prod(entry.shape) * self._dtypes[name].size for name, entry in self.entries.items()
        )
        if sum(Path(file).stat().st_size for file in _data_files(self.path)) < needed:
            raise truncated(f"{self.path}.data-*")

    def read(self, name: str) -> np.ndarray:
        """See the base class."""
        try:
            values = self._reader.get_tensor(name)
        except _DAMAGE as error:
            raise damaged(self.path, error) from error
        if self._dtypes[name] == tf.bfloat16:
            return values.astype(np.float32)
        # An array of numpy's own type for bytes would lose zeros at the end.
        return np.asarray(values, dtype=object if isinstance(values, bytes) else None)


def write_checkpoint(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes variables as one TensorFlow checkpoint: ``path``.meta, .index and its data file.

    ``path`` is as ``tf.train.Saver.save`` returns it; its directory exists. Raises OSError if the
    disk is full or permission is missing, and UserError if so for ``path``.meta.
    """
    write_meta_graph(
        path, {name: Stored(a.shape, tf.as_dtype(a.dtype)) for name, a in arrays.items()}
    )
    on_cpu = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
        # Fed rather than constants, since a graph must not exceed 2 GB.
        values = [tf.placeholder(array.dtype, array.shape) for array in arrays.values()]
        save = tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(values),
            tensors=values,
        )
        try:
            session.run(save, dict(zip(values, arrays.values())))
        except tf.errors.OpError as error:
            raise OSError(0, first_line(error)) from error


def write_without_optimizer(checkpoint: str, directory: Path) -> None:
    """Writes a TensorFlow checkpoint's weights and its run's progress counters, under its name.

    ``directory`` exists; the file that names its newest checkpoint is written last. Raises
    UserError if the disk is full or the checkpoint cannot be read.
    """
    from bert_tf.checkpoint.names import is_optimizer_state

    source, name = TensorflowCheckpoint(checkpoint), Path(checkpoint).name
    kept = [variable for variable in source.entries if not is_optimizer_state(variable)]
    try:
        write_checkpoint(str(directory / name), {key: source.read(key) for key in kept})
    except OSError as error:
        raise UserError(
            f"cannot write {directory / name} ({error.strerror}); free space there, or choose "
            "another directory."
        ) from error
    list_checkpoints(directory, [name])


@contextlib.contextmanager
def explained_reading(checkpoint: PathLike) -> Iterator[None]:
    """Converts a session's errors about damaged values to a UserError that names ``checkpoint``."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise damaged(checkpoint, error) from error


def damaged(
    checkpoint: PathLike, error: Exception, *, advice: str = "copy it again or give another"
) -> UserError:
    """The error for a checkpoint whose values cannot be read because of ``error``."""
    return UserError(f"checkpoint {checkpoint} cannot be read ({first_line(error)}); {advice}.")


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
