"""Reads the batches that a run saved because they were not finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def read_batches(directory: Path) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Description and features of each micro batch, in the order of their names."""
    return [
        (json.loads(path.read_text()), dict(np.load(path.with_suffix(".npz"))))
        for path in sorted(directory.glob("*.json"))
    ]
