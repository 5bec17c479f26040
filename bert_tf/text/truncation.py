"""How many tokens are kept of texts that share a sequence."""

from __future__ import annotations

from collections.abc import Sequence


def kept_counts(counts: Sequence[int], room: int) -> list[int]:
    """The tokens to keep of each text, so that all of them fit into ``room`` tokens.

    The longer text, or else the later one, loses one token at a time, as in google-research/bert.
    """
    if len(counts) == 1:
        return [min(counts[0], room)]
    kept = list(counts)
    for _ in range(sum(kept) - room):
        longest = max(range(len(kept)), key=lambda number: (kept[number], number))
        kept[longest] -= 1
    return kept
