"""Protein sequences that come with an installed package."""

from __future__ import annotations

import importlib.metadata
import re


def antiberty_chains() -> list[str]:
    """The antibody chains that the description of the package antiberty shows, heavy and light."""
    metadata = importlib.metadata.metadata("antiberty")
    # The standard library has the description as the payload; importlib_metadata, which takes
    # the place of its finder once some package imports it, has it as a header.
    description = metadata["Description"] or metadata.get_payload()
    chains = list(dict.fromkeys(re.findall(r'"([A-Z]{100,})"', description)))
    assert len(chains) >= 2
    return chains[:2]
