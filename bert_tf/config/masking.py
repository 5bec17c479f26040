"""How many tokens are predicted, and which: settings of data preparation, training and scoring."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_tf.config.declared import AT_LEAST_ONE, Settings, setting
from bert_tf.util.options import Interval


@dataclasses.dataclass(frozen=True)
class MaskingOptions(Settings):
    """How masks are drawn, whatever the vocabulary; ``input.masking`` says by which rules."""

    masked_lm_prob: float = setting(
        0.15, "Fraction of tokens to mask.", bounds=Interval(0, 1, open_low=True)
    )
    max_predictions_per_seq: int = setting(
        20, "Maximum number of masked tokens per sequence.", bounds=AT_LEAST_ONE
    )
    do_whole_word_mask: bool = setting(False, "Mask all pieces of a word together.")
    ngram: int = setting(
        1,
        "Mask up to this many consecutive words together, or tokens without --do_whole_word_mask.",
        bounds=AT_LEAST_ONE,
    )
    favor_shorter_ngram: bool = setting(
        True, "Masked n-grams have shares of 1/n; false: the longest have the largest share."
    )

    @property
    def together(self) -> tuple[str, ...]:
        """The settings that were given of those which have tokens masked together."""
        names = ("do_whole_word_mask", "ngram")
        return tuple(name for name in names if getattr(self, name) != getattr(type(self), name))

    def parameters(self) -> dict[str, Any]:
        """What the manifest of stored masks records, by name."""
        names = ["max_predictions_per_seq", "masked_lm_prob", "do_whole_word_mask"]
        if self.ngram > 1:
            names += ["ngram", "favor_shorter_ngram"]
        return {name: getattr(self, name) for name in names}
