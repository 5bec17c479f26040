"""What a run says while it trains: one dict, three sinks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.progress import format_duration


class RunLog:
    """Writes a step's figures as a terminal line, a JSON line and TensorBoard summaries.

    Only rank 0 makes one. ``log.jsonl`` is appended to, so that a resumed run keeps its history.
    """

    def __init__(self, output_dir: Path) -> None:
        """Opens ``output_dir/log.jsonl`` and an event file in the same directory."""
        self._path = output_dir / "log.jsonl"
        self._summaries = tf.summary.FileWriter(str(output_dir))

    def message(self, text: str) -> None:
        """Prints a line that is no step's."""
        print(text, file=sys.stdout, flush=True)

    def step(
        self, step: int, figures: Mapping[str, float], *, total_steps: int, seconds_left: float
    ) -> None:
        """Records the figures of ``step`` (optimizer updates done)."""
        record = {"step": step, **figures, "time": time.time()}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.summaries(step, figures)
        shown = "  ".join(f"{name} {_show(value)}" for name, value in figures.items())
        self.message(f"step {step}/{total_steps}  {shown}  ETA {format_duration(seconds_left)}")

    def summaries(self, step: int, figures: Mapping[str, float], prefix: str = "") -> None:
        """Writes the figures as TensorBoard scalars."""
        values = [tf.Summary.Value(tag=prefix + k, simple_value=v) for k, v in figures.items()]
        self._summaries.add_summary(tf.Summary(value=values), step)
        self._summaries.flush()


def _show(value: float) -> str:
    if value == int(value) and abs(value) >= 1000:
        return f"{int(value)}"
    return f"{value:.4g}"
