"""Rows of the table: results, results without a value, and checks of a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu.runs import OutOfTimeError, RunError
from benchmarks.results import Result, result
from bert_tf.util.progress import format_duration

RATE = "sequences/s"
PART = "part"  # the unit of the rows that say how a part ended
PASSED = "passed"  # in the configuration of a check's row

# What the note of a row shows of its configuration.
_NOTED = ("state", "reference", "path", "name", "tensorflow", "torch")


class Case(NamedTuple):
    """Something to measure; its name and unit serve if there is no result."""

    name: str
    measure: Callable[[], Iterator[Result]]
    unit: str = RATE


def attempts(cases: Iterable[Case]) -> Iterator[Result]:
    """The results of all cases; where one fails or has no time, a row that says why.

    Raises OutOfTimeError at the end if a case had no time.
    """
    late: OutOfTimeError | None = None
    for case in cases:
        why: Exception | None = late
        if late is None:
            try:
                yield from case.measure()
            except OutOfTimeError as error:
                why = late = error
            except RunError as error:
                why = error
        if why is not None:
            yield missing(case.name, case.unit, why)
    if late is not None:
        raise late


def missing(name: str, unit: str, why: Exception, subject: str = "ours") -> Result:
    """A result without a value, and the reason; ``failed`` if it is an error of ours."""
    failed = subject == "ours" and not isinstance(why, OutOfTimeError)
    config = {"reason": str(why).rstrip("."), "failed": failed}
    return {"name": name, "subject": subject, "value": None, "unit": unit, "config": config}


def checked(name: str, value: float, unit: str, *, bound: float, **config: Any) -> Result:
    """A value that must not exceed a bound."""
    return result(name, value, unit, {**config, "bound": bound, PASSED: bool(value <= bound)})


def has_failed(row: Result) -> bool:
    """Whether a run, a part or a check failed; lack of time is not a failure."""
    return bool(row["config"].get("failed")) or not row["config"].get(PASSED, True)


def table(rows: Sequence[Result]) -> list[str]:
    """The lines of the table: a block for each part."""
    lines: list[str] = []
    part = None
    for row in rows:
        if row["config"]["part"] != part:
            part = row["config"]["part"]
            lines.append(part)
        lines.append(line(row))
    return lines


def line(row: Result) -> str:
    """A row of the table: name, subject, value with unit, and a note."""
    value, unit, config = row["value"], row["unit"], row["config"]
    shown = "-" if value is None else f"{value:.4g}"
    if unit == PART:
        shown, unit = format_duration(config["seconds"]), ""
    subject = "" if row["subject"] == "ours" else row["subject"]
    return f"  {row['name']:50} {subject:13}{shown:>10} {unit:12} {_note(config)}".rstrip()


def _note(config: dict[str, Any]) -> str:
    """What there is to say of a row, in a few words."""
    if "reason" in config:
        return config["reason"]
    words = ["ok" if config[PASSED] else "NOT ok"] if PASSED in config else []
    if "bound" in config:
        words.append(f"(at most {config['bound']:g})")
    if "types" in config:
        words.append(", ".join(f"{count} {kind}" for kind, count in config["types"].items()))
    words += [str(config[name]) for name in _NOTED if config.get(name)]
    if config.get("skipped_updates"):
        words.append(f"{config['skipped_updates']} updates skipped")
    return " ".join(words)
