"""Weights must be finite wherever they are read."""

from __future__ import annotations

import numpy as np

from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


def check_finite(values: np.ndarray, name: str, weights: PathLike) -> None:
    """Raises UserError if values of the variable ``name`` in a file of weights are not finite."""
    is_finite = np.isfinite(values)
    if not is_finite.all():
        count = values.size - np.count_nonzero(is_finite)
        raise UserError(
            f"weights {weights}: {count:,} of {values.size:,} values of {name} are NaN or "
            "infinite; give other weights, such as an earlier checkpoint."
        )
