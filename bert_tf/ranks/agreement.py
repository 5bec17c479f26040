"""Compares values that must be the same on every rank before anything is built."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bert_tf
from bert_tf.ranks.ranks import Ranks
from bert_tf.util.digest import digest_of, digest_of_file
from bert_tf.util.errors import UserError

_MOST_SHOWN = 4
_CODE_DIGITS = 12
_SOURCES = (".py", ".cc", ".inc")


def check_same_on_all_ranks(ranks: Ranks, values: Mapping[str, Any]) -> None:
    """Raises UserError on every rank, listing all differences, if a value differs from rank 0's.

    Collective. ``values`` maps names for messages to values, which are compared as strings.
    """
    local = {name: str(value) for name, value in values.items()}
    gathered = ranks.gather((socket.gethostname(), local))
    hosts = {rank: host for rank, (host, _) in enumerate(gathered)}
    expected = gathered[0][1]
    by_difference: dict[str, list[int]] = {}
    for rank, (_, found) in enumerate(gathered):
        if found != expected:
            by_difference.setdefault(_differences(found, expected), []).append(rank)
    if by_difference:
        from bert_tf.ranks.failures import name_ranks

        raise UserError(
            "; ".join(
                f"{name_ranks(differing, hosts)} {'differs' if len(differing) == 1 else 'differ'} "
                "from rank 0 "
                f"in {difference}"
                for difference, differing in by_difference.items()
            )
            + "; give every rank the same."
        )


def _differences(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    names = [n for n in {**expected, **found} if found.get(n) != expected.get(n)]
    shown = ", ".join(
        f"{name} ({found.get(name)} instead of {expected.get(name)})"
        for name in names[:_MOST_SHOWN]
    )
    more = len(names) - _MOST_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def code_digest(package: Path = Path(bert_tf.__file__).parent) -> str:
    """A short hash of the package's source files and file names, since versions may be equal."""
    files = sorted(path for path in package.rglob("*") if path.suffix in _SOURCES)
    content = [(str(path.relative_to(package)), digest_of_file(path)) for path in files]
    return digest_of(json.dumps(content).encode())[:_CODE_DIGITS]
