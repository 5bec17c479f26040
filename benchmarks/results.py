"""Results of benchmarks: values with the conditions of measurement, as printed and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import describe_machine
from bert_tf.util.files import PathLike, write_json

Result = dict[str, Any]


def result(
    name: str, value: float, unit: str, config: Mapping[str, Any], subject: str = "ours"
) -> Result:
    """One result, as written by --json."""
    return {"name": name, "subject": subject, "value": value, "unit": unit, "config": config}


def spread_result(
    name: str, values: Sequence[float], unit: str, config: Mapping[str, Any], subject: str = "ours"
) -> Result:
    """The median of the turns, with all turns in its configuration."""
    described = {**config, "turns": list(values)}
    return result(name, statistics.median(values), unit, described, subject)


def ratio_result(
    name: str,
    above: Sequence[float],
    below: Sequence[float],
    config: Mapping[str, Any],
    subject: str = "ours",
) -> Result:
    """The ratio of two measurements turn by turn, since a disturbance of a turn affects both."""
    return spread_result(name, [a / b for a, b in zip(above, below)], "ratio", config, subject)


def median_ratio(above: Result, below: Result) -> float:
    """The median of the ratios of two measurements turn by turn."""
    of_turns = zip(above["config"]["turns"], below["config"]["turns"])
    return statistics.median(a / b for a, b in of_turns)


def print_table(
    results: Iterable[Result], *, to: str | None = None, most_foreign: float = 1.0
) -> None:
    """Prints a line of each subject's results, except ratios.

    The first result is a rate, shown with the range of its turns and its ratio to the rate of
    ``to`` (by default the first of ours). An asterisk means that other processes used more than the
    fraction ``most_foreign`` of the machine in a turn.
    """
    by_subject: dict[str, list[Result]] = {}
    for row in results:
        if row["unit"] != "ratio":
            by_subject.setdefault(row["subject"], []).append(row)
    to = to or next((name for name in by_subject if name.startswith("ours")), None)
    lines = []
    for name, (rate, *others) in by_subject.items():
        if not lines:
            heads = "".join(f"{row['name'].split()[-1] + ', ' + row['unit']:>14}" for row in others)
            ratio = f"{to} to it" if to else ""
            lines.append(f"\n{rate['name']:34}{rate['unit']:>12}  {'turns':18}{ratio:>14}{heads}")
        turns, shares = rate["config"]["turns"], rate["config"].get("others_share_of_machine", ())
        label = name + " *" * any((share or 0.0) > most_foreign for share in shares)
        spread = f"{min(turns):.4g} to {max(turns):.4g}"
        ratio = f"{median_ratio(by_subject[to][0], rate):.3g}" if to else ""
        more = "".join(f"{row['value']:14.4g}" for row in others)
        lines.append(f"{label:34}{rate['value']:12.4g}  {spread:18}{ratio:>14}{more}")
    print("\n".join(line.rstrip() for line in lines), flush=True)


def printed(results: Iterable[Result]) -> Iterator[Result]:
    """Prints each result once it is known: its median, and the range of its turns."""
    for found in results:
        turns = found["config"].get("turns", [])
        spread = f"  ({min(turns):.4g} to {max(turns):.4g})" if len(turns) > 1 else ""
        print(f"{found['name']:62}{found['value']:10.4g} {found['unit']}{spread}", flush=True)
        yield found


def write_results(path: PathLike, results: Iterable[Result]) -> None:
    """Writes results as JSON, with the machine in the configuration of each."""
    machine = describe_machine()
    write_json(path, [{**row, "config": {**row["config"], **machine}} for row in results])
