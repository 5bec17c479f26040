"""How many tokens are predicted, and which: settings of data preparation, training and scoring."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tf.config.declared import AT_LEAST_ONE, Settings, options_of, setting
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
    span_masking: bool = setting(
        False,
        "Mask spans of 1 to 10 whole words together, 3.8 on average, as SpanBERT does (Joshi et "
        "al. 2020).",
    )

    def contradictions(self) -> Iterator[str]:
        """Two distributions of how many words are masked together."""
        if self.span_masking and self.ngram > 1:
            yield (
                f"--span_masking draws the lengths of spans by itself, and {self.given('ngram')} "
                "those of n-grams; drop one of them."
            )

    @property
    def together(self) -> tuple[str, ...]:
        """The settings that were given of those which have tokens masked together."""
        names = ("do_whole_word_mask", "ngram", "span_masking")
        return tuple(name for name in names if getattr(self, name) != getattr(type(self), name))

    @property
    def needs_words(self) -> bool:
        """Whether it has to be known where words begin, since they are masked as a whole."""
        return self.do_whole_word_mask or self.span_masking

    @property
    def replaces_together(self) -> bool:
        """Whether what is masked together also becomes [MASK], stays or is random together."""
        return self.span_masking

    def parameters(self) -> dict[str, Any]:
        """What the manifest of stored masks records, by name."""
        names = ["max_predictions_per_seq", "masked_lm_prob", "do_whole_word_mask"]
        if self.ngram > 1:
            names += ["ngram", "favor_shorter_ngram"]
        if self.span_masking:
            names.append("span_masking")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> MaskingOptions | None:
        """The settings that a manifest records; None if it has none, as without stored masks."""
        names = options_of(MaskingOptions).keys() & parameters.keys()
        known = "do_whole_word_mask" in names
        return cls(**{name: parameters[name] for name in names}) if known else None
