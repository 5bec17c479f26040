"""Counts of the templates that are left out of text, as the manifest of a stage has them.

A manifest's counts have a name for each template, ``{{Coord}}``, and one for all together.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

TOTAL = "templates_left_out"
# Names beyond this many are counted together, so that a dump's counts fit into memory and journal.
MOST_NAMES = 20_000
MOST_IN_MANIFEST = 200
OTHERS = "{{}}"


def template_counts(left_out: Mapping[str, int]) -> collections.Counter[str]:
    """Counts of templates by name as those of a manifest."""
    counts = collections.Counter({f"{{{{{name}}}}}": count for name, count in left_out.items()})
    if counts:
        counts[TOTAL] = sum(left_out.values())
    return counts


def bounded(counts: Mapping[str, int], totals: Mapping[str, int]) -> dict[str, int]:
    """Counts to add to totals, in which new names become others once there are many.

    The first names in the input have counts of their own, whatever the number of processes.
    """
    room = MOST_NAMES - len(totals)
    found: collections.Counter[str] = collections.Counter()
    for name, count in counts.items():
        is_new = name not in totals and _is_template(name)
        found[OTHERS if is_new and room <= 0 else name] += count
        room -= is_new
    return dict(found)


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts of a manifest, in which the rarer templates are counted together."""
    names = [name for name, _ in Frequencies.of(counts).ranked]
    rare = set(names[MOST_IN_MANIFEST:])
    found = {name: count for name, count in counts.items() if name not in rare}
    others = sum(counts[name] for name in rare)
    return {**found, OTHERS: found.get(OTHERS, 0) + others} if others else found


class Frequencies(NamedTuple):
    """The templates that a manifest says were left out.

    Attributes:
      total: of all.
      ranked: (name with its braces, count), most frequent first.
    """

    total: int
    ranked: list[tuple[str, int]]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Frequencies:
        """From the counts of a manifest."""
        named = [(name, count) for name, count in counts.items() if _is_template(name)]
        named.sort(key=lambda row: (-row[1], row[0]))
        return cls(counts.get(TOTAL, 0), named)

    def line(self, most: int) -> str:
        """``12: {{Coord}} 7, {{Infobox}} 3, other names 2``."""
        shown = [f"{name} {count:,}" for name, count in self.ranked[:most]]
        others = self.total - sum(count for _, count in self.ranked[:most])
        return f"{self.total:,}: " + ", ".join(
            [*shown, *([f"others {others:,}"] if others else [])]
        )


def _is_template(name: str) -> bool:
    return name.startswith("{{") and name != OTHERS
