"""A network's variables: declared as a list, created once, passed to the functions that use them.

Their names are Google's and part of the public interface, since checkpoints contain them. All
variables exist before any layer is built, so a forward pass can be built several times, or in the
body of a ``tf.while_loop``, and a checkpoint can be compared with a network without its graph.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf


class VariableSpec(NamedTuple):
    """A variable to create.

    Attributes:
      name: the full name.
      shape: the shape of the value.
      initial: the initial value of all elements, or of each one of a vector; None for random ones.
      scale: what random initial values are multiplied by.
      trainable: whether updates change it. Variables that are not trained are not saved either;
        they keep the values of the checkpoint from which they were read.
    """

    name: str
    shape: tuple[int, ...]
    initial: float | tuple[float, ...] | None = None
    scale: float = 1.0
    trainable: bool = True


def num_weights(specs: Iterable[VariableSpec]) -> int:
    """The total number of elements of all variables."""
    return sum(math.prod(spec.shape) for spec in specs)


def frozen_specs(specs: Iterable[VariableSpec], *, prefix: str) -> list[VariableSpec]:
    """The variables of a second, frozen network, with the prefix ``prefix``/ in their names.

    ``variables.scope(prefix)`` makes them available under that network's names.
    """
    return [s._replace(name=f"{prefix}/{s.name}", trainable=False) for s in specs]


def dense_specs(name: str, *, inputs: int, outputs: int) -> list[VariableSpec]:
    """The kernel and bias of a dense layer."""
    return [
        VariableSpec(f"{name}/kernel", (inputs, outputs)),
        VariableSpec(f"{name}/bias", (outputs,), 0.0),
    ]


def layer_norm_specs(name: str, *, width: int) -> list[VariableSpec]:
    """The shift and scale of a layer normalisation."""
    return [
        VariableSpec(f"{name}/beta", (width,), 0.0),
        VariableSpec(f"{name}/gamma", (width,), 1.0),
    ]


class Variables:
    """The variables of a network, looked up by name within a scope."""

    def __init__(self, by_name: dict[str, tf.Variable], *, prefix: str = ""):
        self._by_name = by_name
        self._prefix = prefix

    def __getitem__(self, name: str) -> tf.Variable:
        return self._by_name[self._prefix + name]

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[Variables]:
        """Opens the name scope ``name`` for operations and narrows look-ups to it."""
        with tf.name_scope(name):
            yield Variables(self._by_name, prefix=f"{self._prefix}{name}/")

    def read(self) -> Variables:
        """The variables' current values, as tensors, for a function that XLA compiles."""
        values = {name: tf.convert_to_tensor(v) for name, v in self._by_name.items()}
        return Variables(values, prefix=self._prefix)

    def within(self) -> dict[str, tf.Variable]:
        """The variables of the current scope, by their names within it."""
        prefix = self._prefix
        return {n[len(prefix) :]: v for n, v in self._by_name.items() if n.startswith(prefix)}

    def all(self) -> list[tf.Variable]:
        """Every variable of the network, in order of creation."""
        return list(self._by_name.values())

    def trainable(self) -> list[tf.Variable]:
        """The variables that updates change and checkpoints save."""
        return [variable for variable in self.all() if variable.trainable]

    def frozen(self, prefix: str) -> list[tf.Variable]:
        """The variables under ``prefix``/ that updates do not change."""
        scoped = (v for v in self.all() if v.op.name.startswith(f"{prefix}/"))
        return [variable for variable in scoped if not variable.trainable]


# Local variables are initialised in every session and not saved; ranks share model variables.
_FROZEN_COLLECTIONS = [tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES]

_PHILOX = 1  # tensorflow/core/framework/rng_alg.h


def create_variables(
    specs: Iterable[VariableSpec], *, initializer_range: float, seed: int = 0
) -> Variables:
    """Creates float32 resource variables in the current graph.

    Args:
      specs: the variables to create; their names must be new in the graph.
      initializer_range: standard deviation of random initial values, a normal distribution
        truncated at two standard deviations.
      seed: random initial values depend only on this seed and the variable's name.
    """
    return Variables(
        {
            spec.name: tf.get_variable(
                spec.name,
                shape=spec.shape,
                dtype=tf.float32,
                initializer=_initializer(spec, initializer_range, seed),
                trainable=spec.trainable,
                collections=None if spec.trainable else _FROZEN_COLLECTIONS,
                use_resource=True,
            )
            for spec in specs
        }
    )


def load_value(variable: tf.Variable, value: np.ndarray | np.generic, session: tf.Session) -> None:
    """Assigns a value in a graph that may be finalized: adds no operation."""
    session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def _initializer(spec: VariableSpec, initializer_range: float, seed: int) -> Any:
    if spec.initial is not None:
        return tf.constant_initializer(spec.initial)

    def truncated_normal(shape: Any, dtype: tf.DType, partition_info: None = None) -> tf.Tensor:
        del partition_info  # TensorFlow passes it; these variables are never partitioned
        # The values of tf.random.stateless_truncated_normal, whose way from a seed to Philox's key
        # takes a hundred operations: seconds in which a network of many variables is built.
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(
            seed=tf.constant([seed, zlib.crc32(spec.name.encode())], tf.int64)
        )
        normal = tf.raw_ops.StatelessTruncatedNormalV2(
            shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype
        )
        return normal * (initializer_range * spec.scale)

    return truncated_normal


def create_state(name: str, initial: float, dtype: tf.DType) -> tf.Variable:
    """Creates a non-trainable scalar resource variable; checkpoints store it as ``name``."""
    return tf.get_variable(
        name,
        shape=[],
        dtype=dtype,
        initializer=tf.constant_initializer(initial),
        trainable=False,
        use_resource=True,
    )


def create_count(name: str) -> tf.Variable:
    """An int64 :func:`create_state` that starts at 0."""
    return create_state(name, 0, tf.int64)
