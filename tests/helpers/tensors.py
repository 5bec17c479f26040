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


def set_variables(
    session: tf.Session, variables: Sequence[tf.Variable], values: Mapping[str, np.ndarray]
) -> None:
    """Gives variables the values of their names, all in one run."""
    given = {variable.initializer.inputs[1]: values[variable.op.name] for variable in variables}
    session.run([variable.initializer for variable in variables], given)
