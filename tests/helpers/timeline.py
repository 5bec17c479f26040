"""The timeline that Horovod writes where HOROVOD_TIMELINE names a file."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path

# The operations on a tensor, and the rounds on the wire of those that travel together.
KINDS = ("ALLREDUCE", "MPI_ALLREDUCE", "BROADCAST")


def read_timeline(path: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Tensor name -> what was done with it by one of ``KINDS``, each [(first, last)] in us."""
    tensors = {}
    began = collections.defaultdict(list)
    exchanges = collections.defaultdict(lambda: {kind: [] for kind in KINDS})
    for event in json.loads(path.read_text()):
        tensor, name = event.get("pid"), event.get("name")
        if name == "process_name":
            tensors[tensor] = event["args"].get("name")
        elif event["ph"] == "B":
            began[tensor].append((name, event["ts"]))
        elif event["ph"] == "E":  # of what began last
            name, first = began[tensor].pop()
            if name in KINDS:
                exchanges[tensors[tensor]][name].append((first, event["ts"]))
    return exchanges


def rounds(spans: Iterable[tuple[float, float]]) -> int:
    """How many exchanges there were: those of the tensors that travel together overlap."""
    count, last = 0, -1.0
    for first, end in sorted(spans):
        count += first > last
        last = max(last, end)
    return count
