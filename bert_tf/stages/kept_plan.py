"""``plan.json``: identifies the computation whose results a directory collects over several starts.

Results of different settings, texts or weights are never mixed: a start with another plan is
refused with a sentence that names the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

PLAN_NAME = "plan.json"

_LONGEST_SHOWN = 40  # characters of two values; longer ones, such as hashes, tell users nothing

Plan = Mapping[str, Any]


def read_plan(directory: Path, *, what: str) -> Plan | None:
    """The plan of an earlier start in the directory; None if there is none.

    ``what`` names the computation in messages, such as "evaluation".
    """
    path = directory / PLAN_NAME
    if not path.is_file():
        return None
    advice = f"delete {path.parent} to start the {what} again"
    return read_sealed_json(path, what=f"{what} plan", advice=advice)


def settle_plan(
    directory: Path, plan: Plan, *, what: str, results: str, found: Iterable[Path]
) -> None:
    """Writes the plan of a new computation, also over one that has no results yet.

    Raises UserError if the directory has results of a different one: the files ``found``, which
    ``results`` names.
    """
    earlier = read_plan(directory, what=what)
    changed = "" if earlier is None else differences(earlier, plan)
    if changed and any(True for _ in found):
        raise UserError(
            f"--output_dir: {directory} has {results} of another {what} ({changed}); repeat that "
            "one, choose another directory, or delete this one to start again."
        )
    if changed or earlier is None:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial_files(directory)
        write_sealed_json(directory / PLAN_NAME, plan)


def differences(earlier: Plan, plan: Plan) -> str:
    """The entries in which two plans differ, with short values; empty if there are none."""
    differing = [name for name in {**earlier, **plan} if earlier.get(name) != plan.get(name)]
    return ", ".join(_difference(name, earlier.get(name), plan.get(name)) for name in differing)


def _difference(name: str, earlier: Any, now: Any) -> str:
    values = f" {earlier}, not {now}"
    return name if len(values) > _LONGEST_SHOWN else name + values
