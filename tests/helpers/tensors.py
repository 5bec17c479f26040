"""Values of variables, in checkpoints and in sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf


def variables_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_variables(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], **tolerance: float
) -> None:
    """Compares arrays by name: to the bit or, if there is one, up to a tolerance."""
    assert found.keys() == expected.keys()
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


def set_variables(
    session: tf.Session, variables: Sequence[tf.Variable], values: Mapping[str, np.ndarray]
) -> None:
    """Gives variables the values of their names, all in one run."""
    given = {variable.initializer.inputs[1]: values[variable.op.name] for variable in variables}
    session.run([variable.initializer for variable in variables], given)
