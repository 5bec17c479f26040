"""Variables of a network: declared as a list, created once, handed to the functions that use them.

Names are Google's and are public: checkpoints hold them. All variables exist before any layer is
built, so a forward pass can be built several times, or inside the body of a ``tf.while_loop``,
and a checkpoint can be compared with a network of which no graph exists.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class VariableSpec(NamedTuple):
    """A variable to create.

    Attributes:
      name: its full name.
      shape: of its value.
      initial: value at the start, ``random``, ``zeros`` or ``ones``.
      trainable: whether an update changes it. One that is not trained is not saved either: it has
        the value of the checkpoint that it was read from.
    """

    name: str
    shape: tuple[int, ...]
    initial: str = "random"
    trainable: bool = True


def num_weights(specs: Iterable[VariableSpec]) -> int:
    """Numbers that all variables hold together."""
    return sum(math.prod(spec.shape) for spec in specs)


def frozen_specs(specs: Iterable[VariableSpec], *, prefix: str) -> list[VariableSpec]:
    """The variables of a second network, which is only read, with ``prefix``/ before their names.

    ``variables.scope(prefix)`` is that network's own view of them.
    """
    return [s._replace(name=f"{prefix}/{s.name}", trainable=False) for s in specs]


def dense_specs(name: str, *, inputs: int, outputs: int) -> list[VariableSpec]:
    """Kernel and bias of a dense layer."""
    return [
        VariableSpec(f"{name}/kernel", (inputs, outputs)),
        VariableSpec(f"{name}/bias", (outputs,), "zeros"),
    ]


def layer_norm_specs(name: str, *, width: int) -> list[VariableSpec]:
    """Shift and scale of a layer normalisation."""
    return [
        VariableSpec(f"{name}/beta", (width,), "zeros"),
        VariableSpec(f"{name}/gamma", (width,), "ones"),
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
        """Opens the name scope ``name`` for operations and narrows the look-up to it."""
        with tf.name_scope(name):
            yield Variables(self._by_name, prefix=f"{self._prefix}{name}/")

    def within(self) -> dict[str, tf.Variable]:
        """The variables of the current scope, by what is left of their names."""
        prefix = self._prefix
        return {n[len(prefix) :]: v for n, v in self._by_name.items() if n.startswith(prefix)}

    def all(self) -> list[tf.Variable]:
        """Every variable of the network, in the order of creation."""
        return list(self._by_name.values())

    def trainable(self) -> list[tf.Variable]:
        """Those that updates change and checkpoints hold."""
        return [variable for variable in self.all() if variable.trainable]

    def frozen(self, prefix: str) -> list[tf.Variable]:
        """Those below ``prefix``/ that updates leave alone."""
        found = (v for v in self.all() if v.op.name.startswith(f"{prefix}/"))
        return [variable for variable in found if not variable.trainable]


# Local: initialized in every session and in no checkpoint. Model: ranks share them all the same.
_OF_FROZEN = [tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES]


def create_variables(
    specs: Iterable[VariableSpec], *, initializer_range: float, seed: int = 0
) -> Variables:
    """Creates float32 resource variables in the current graph.

    Args:
      specs: what to create; a name must be new to the graph.
      initializer_range: standard deviation of ``random`` initial values, a normal distribution
        cut at two deviations.
      seed: a random initial value depends on this seed and the variable's name only.
    """
    return Variables(
        {
            spec.name: tf.get_variable(
                spec.name,
                shape=spec.shape,
                dtype=tf.float32,
                initializer=_initializer(spec, initializer_range, seed),
                trainable=spec.trainable,
                collections=None if spec.trainable else _OF_FROZEN,
                use_resource=True,
            )
            for spec in specs
        }
    )


def _initializer(spec: VariableSpec, initializer_range: float, seed: int):
    if spec.initial == "zeros":
        return tf.zeros_initializer()
    if spec.initial == "ones":
        return tf.ones_initializer()

    def truncated_normal(shape, dtype, partition_info=None):
        del partition_info  # TensorFlow passes it; these variables are never partitioned
        return tf.random.stateless_truncated_normal(
            shape,
            seed=[seed, zlib.crc32(spec.name.encode())],
            stddev=initializer_range,
            dtype=dtype,
            alg="philox",
        )

    return truncated_normal
