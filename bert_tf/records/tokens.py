"""The tokens in records, before masking, and what is unusual about them.

Symbols: N records, S positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

# Fractions beyond which padding and unknown tokens are unusual.
MOST_PADDING = 0.5
MOST_UNKNOWN = 0.05


def original_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64 [N, S]: the ids before masking."""
    ids = batch["input_ids"].astype(np.int64)
    if "masked_lm_ids" in batch:
        rows, places = np.nonzero(batch["masked_lm_weights"])
        ids[rows, batch["masked_lm_positions"][rows, places]] = batch["masked_lm_ids"][rows, places]
    return ids


def text_positions(
    ids: np.ndarray, input_mask: np.ndarray, special_ids: Mapping[str, int]
) -> np.ndarray:
    """bool [N, S]: tokens other than [CLS], [SEP] and padding, as far as their ids are known."""
    others = [special_ids[name] for name in ("pad", "cls", "sep") if name in special_ids]
    return (input_mask != 0) & ~np.isin(ids, others)


def unusual_shares(*, padding: float, unknown: float) -> Iterator[str]:
    """Yields a sentence for each unusual fraction.

    Args:
      padding: the fraction of positions that are padding; 0 if computation leaves it out.
      unknown: the fraction of text tokens that are unknown to the vocabulary.
    """
    if padding > MOST_PADDING:
        yield (
            f"{padding:.1%} of all positions are padding, on which computation is wasted; make the "
            "records with a smaller --max_seq_length, or with --nsp=false --pack_documents"
        )
    if unknown > MOST_UNKNOWN:
        yield (
            f"{unknown:.1%} of the tokens are unknown to the vocabulary; use one that was made for "
            "this text, and check its casing and --markup"
        )
