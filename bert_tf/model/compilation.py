"""Functions that XLA compiles whole, within the graph of a session.

Such a function is one operation of the graph. XLA compiles it when it first runs, and again for
every other shape of its inputs. It may read and assign variables, but what ranks exchange stays
outside. An operation that XLA cannot compile is an error, never a silent split.

The only module that reaches into TensorFlow's own ones, for what XLA needs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, TypeVar

import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework import ops

from bert_tf.util.environment import DIRECTORY, UNUSABLE, suppressed_stderr
from bert_tf.util.errors import UserError, first_line

Function = TypeVar("Function", bound=Callable[..., Any])

_NUMBERS_OF_A_FUNCTION = 100_000
_MUST_COMPILE = "_XlaMustCompile"
# In an error: "Foo (No registered 'Foo' OpKernel for XLA_CPU_JIT devices compatible with node ...)"
_UNSUPPORTED = re.compile(
    r"No registered '(\w+)' OpKernel for XLA_\w+ devices[^{]*(\{\{node ([^}]*)\}\})?"
)


def compiled(function: Function) -> Function:
    """``function`` as one compiled operation for each call.

    It takes and returns nested structures of tensors, and may capture others of the graph. Let it
    read variables itself (``Variables.read``): tensors read outside would be copied to it.
    """
    traced = tf.function(function, autograph=False, jit_compile=True)

    def call(*args: Any) -> Any:
        # TensorFlow numbers all that a process builds, functions too, and finds the code that it
        # has kept of them by their numbers: each starts at a round one, whatever precedes it.
        while ops.uid() % _NUMBERS_OF_A_FUNCTION:
            pass
        return traced(*args)

    return call  # type: ignore[return-value]


def compiled_functions(graph: tf.Graph) -> list[str]:
    """The names of a graph's operations that are compiled functions, those in loops included."""
    definition = graph.as_graph_def()
    loops = (function.node_def for function in definition.library.function)
    nodes = itertools.chain(definition.node, *loops)
    return [node.name for node in nodes if node.attr[_MUST_COMPILE].b]


def available_after(awaited: tf.Tensor, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the same tensors, which XLA does not compute before ``awaited``.

    For compiled functions, in which control dependencies have no effect.
    """
    _, *available = xla.optimization_barrier(awaited, *tensors)
    return available


def silence_first_compilation(config: tf.ConfigProto) -> None:
    """Compiles something trivial and suppresses what TensorFlow prints of a process's first one."""
    with suppressed_stderr(), tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = tf.placeholder(tf.float32, [])
        session.run(compiled(lambda: fed + 1.0)(), {fed: 1.0})


@contextlib.contextmanager
def explained_compilation() -> Iterator[None]:
    """Turns errors of compiled functions into a UserError.

    It names an operation that XLA cannot compile. After any other error, code that earlier starts
    have kept is not used again: it may not fit or be damaged.
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = _UNSUPPORTED.search(error.message)
        if found is not None:
            where = f" ({found[3]})" if found[3] else ""
            raise UserError(
                f"XLA cannot compile the operation {found[1]}{where}; give --use_xla=false."
            ) from error
        if "tf2xla conversion failed" in error.message:
            raise UserError(
                f"XLA cannot compile an update ({first_line(error)}); give --use_xla=false."
            ) from error
        is_of_compiled = "PartitionedCall" in error.message
        directory = stop_using_kept_code(os.environ) if is_of_compiled else None
        if directory is None or isinstance(error, tf.errors.ResourceExhaustedError):
            raise
        raise UserError(
            f"compiled code failed ({first_line(error)}); the code that earlier starts kept in "
            f"{directory} will not be used again: start again, or delete that directory."
        ) from error


def stop_using_kept_code(variables: Mapping[str, str]) -> Path | None:
    """Keeps later starts from using this one's directory of compiled code, which may be damaged.

    Returns the directory; None if there was no code in it.
    """
    found = re.search(rf'{DIRECTORY}="([^"]+)"', variables.get("TF_XLA_FLAGS", ""))
    directory = Path(found[1]) if found else None
    if directory is None or not any(directory.glob("*.pb")):
        return None
    directory.joinpath(UNUSABLE).touch()
    return directory
