"""Variables of a network: declared as a list, created once, handed to the functions that use them.

Names are Google's and are public: checkpoints hold them. All variables exist before any layer is
built, so a forward pass can be built several times, or inside the body of a ``tf.while_loop``,
and a checkpoint can be compared with a network of which no graph exists.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class VariableSpec(NamedTuple):
    """A variable's full name, shape and initial value: ``random``, ``zeros`` or ``ones``."""

    name: str
    shape: tuple[int, ...]
    initial: str = "random"


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


def create_variables(
    specs: Iterable[VariableSpec], *, initializer_range: float, seed: int = 0
) -> Variables:
    """Creates trainable float32 resource variables in the current graph.

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
