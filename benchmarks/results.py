"""Results of benchmarks: figures with what they were measured on, as printed and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import describe_machine
from bert_tf.files import PathLike, write_json

Result = dict[str, Any]


def result(
    name: str, value: float, unit: str, config: Mapping[str, Any], subject: str = "ours"
) -> Result:
    """One figure, as --json has it."""
    return {"name": name, "subject": subject, "value": value, "unit": unit, "config": config}


def spread_result(
    name: str, values: Sequence[float], unit: str, config: Mapping[str, Any], subject: str = "ours"
) -> Result:
    """The median of the turns, with all of them in its configuration."""
    described = {**config, "turns": list(values)}
    return result(name, statistics.median(values), unit, described, subject)


def ratio_result(
    name: str,
    above: Sequence[float],
    below: Sequence[float],
    config: Mapping[str, Any],
    subject: str = "ours",
) -> Result:
    """The ratio of two measurements, turn by turn: what disturbs a turn disturbs both."""
    return spread_result(name, [a / b for a, b in zip(above, below)], "ratio", config, subject)


def print_result(found: Result, *, label: str | None = None) -> None:
    """One line: the median and, in brackets, the smallest and the largest turn."""
    turns = found["config"].get("turns", [])
    spread = f"  ({min(turns):.4g} to {max(turns):.4g})" if len(turns) > 1 else ""
    print(f"{label or found['name']:62}{found['value']:10.4g} {found['unit']}{spread}", flush=True)


def printed(results: Iterable[Result]) -> Iterator[Result]:
    """The results, each printed when it is known."""
    for found in results:
        print_result(found)
        yield found


def write_results(path: PathLike, results: Iterable[Result]) -> None:
    """Writes results as JSON, the machine in the configuration of each."""
    machine = describe_machine()
    write_json(path, [{**row, "config": {**row["config"], **machine}} for row in results])
