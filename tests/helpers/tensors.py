"""Arrays of checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf


def variables_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
