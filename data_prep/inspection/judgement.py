"""Finds anomalies in the statistics of records and explains what to do, in sentences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from bert_tf.config.masking import MaskingOptions
from bert_tf.records.info import one_sided_labels, unusual_shares
from data_prep.inspection.hash_sample import HashSample
from data_prep.inspection.record_statistics import Statistics

PRETRAINING_LABEL = "next_sentence_labels"

# How a predicted token is replaced (Devlin et al. 2018, appendix A.1): by [MASK], by itself or, in
# the remaining cases, by a random token.
MASK_SHARE, KEEP_SHARE = 0.8, 0.1

# Statistics are unusual beyond these fractions.
MOST_REPEATED = 0.05  # in addition to what the passes over the text explain
# Number of predictions relative to the expected number. Words and n-grams that do not fit are
# skipped.
LEAST_PREDICTIONS, LEAST_OF_WHOLE_WORDS, MOST_PREDICTIONS = 0.98, 0.85, 1.02
# A fraction of replacements is unusual if it is off by this many standard deviations and this much.
DEVIATIONS, LEAST_DIFFERENCE = 4.0, 0.005


@dataclasses.dataclass(frozen=True)
class Making:
    """How records were made, as far as their manifest records it.

    Attributes:
      next_sentence: whether there are next-sentence labels; None if unknown.
      masks: how stored masks were drawn; None if unknown.
      passes: passes over the text (``dupe_factor``); None if unknown.
      vocab_size: size of the vocabulary; None if unknown.
    """

    next_sentence: bool | None = None
    masks: MaskingOptions | None = None
    passes: int | None = None
    vocab_size: int | None = None


def unusual(
    found: Statistics,
    repeated: HashSample,
    making: Making,
    *,
    label: str | None,
    unknown_id: int | None = None,
) -> Iterator[str]:
    """Yields a sentence for each anomaly.

    Args:
      found: the statistics.
      repeated: the hashes of the records.
      making: how the records were made.
      label: the name of the records' label; None if they have none.
      unknown_id: the id of the unknown token.
    """
    if not found.records:
        yield "there are no records; make them again"
        return
    if found.empty:
        yield (
            f"{found.empty:,} records have no text tokens, only special tokens and padding; look "
            "for empty lines in the text that they were made from, and make them again"
        )
    # Fine-tuning batches leave out most of the padding.
    padding = found.padding_share if label == PRETRAINING_LABEL else 0.0
    yield from unusual_shares(padding=padding, unknown=found.share_of(unknown_id))
    yield from _unusual_repetitions(repeated, making)
    yield from _unusual_labels(found, making, label)
    if found.answers_outside:
        yield (
            f"{found.answers_outside:,} answers end before they start, or in padding; make the "
            "records again"
        )
    if len(found.predictions):
        yield from _unusual_masks(found, making)


def _unusual_repetitions(repeated: HashSample, making: Making) -> Iterator[str]:
    share = repeated.repeated_share()
    if making.passes is None:
        return
    explained = 1 - 1 / making.passes  # all passes may give the same sequences
    if share > explained + MOST_REPEATED:
        yield (
            f"{share:.1%} of the records repeat another one, not counting masks, of which "
            f"{making.passes} passes over the text explain at most {explained:.1%}; remove "
            "repeated documents with data_prep.clean"
        )


def _unusual_labels(found: Statistics, making: Making, label: str | None) -> Iterator[str]:
    if label is None or making.next_sentence is False:
        return
    if label == PRETRAINING_LABEL:
        what = one_sided_labels(found.labels[1], sum(found.labels.values()))
        if what:
            yield what
    elif len(found.labels) == 1:
        [value] = found.labels
        if label == "is_impossible" and not value:
            return  # SQuAD 1.1
        yield (
            f"all records have the same {label}, {value:g}, from which nothing is learned; make "
            "them again with a different mix of labels"
        )


def _unusual_masks(found: Statistics, making: Making) -> Iterator[str]:
    if not found.num_predictions:
        yield "no token is masked in any record, so nothing is predicted; make them again"
        return
    if found.wanted:
        ratio = found.num_predictions / found.wanted
        may_skip = making.masks is not None and making.masks.together
        least = LEAST_OF_WHOLE_WORDS if may_skip else LEAST_PREDICTIONS
        if not least <= ratio <= MOST_PREDICTIONS:
            yield (
                f"{found.num_predictions:,} tokens are masked, {ratio:.3f} times the "
                f"{found.wanted:,} that masked_lm_prob and max_predictions_per_seq ask for; make "
                "the records again"
            )
    for name, (share, expected, spread) in replacement_shares(found, making).items():
        if abs(share - expected) > max(spread, LEAST_DIFFERENCE):
            yield (
                f"{share:.2%} of the masked tokens are replaced by {_REPLACEMENTS[name]}, but "
                f"{expected:.2%} should be, plus or minus {spread:.2%}; check the program that "
                "made the records, and the vocabulary"
            )
    if found.repeated:
        yield (
            f"{found.repeated:,} masks are at an already masked position, which counts twice "
            "in the loss; make the records again"
        )
    if found.on_special:
        yield (
            f"{found.on_special:,} masks are on special tokens or padding; make the records again"
        )
    if making.masks is not None and making.masks.needs_words and found.split_words:
        yield (
            f"{found.split_words:,} times, a piece of a word is masked without its neighbour, "
            "but according to the manifest whole words are masked; make the records again"
        )


_REPLACEMENTS = {"mask": "[MASK]", "random": "a random token", "kept": "themselves"}


def replacement_shares(found: Statistics, making: Making) -> dict[str, tuple[float, float, float]]:
    """The fraction of each replacement, the expected fraction, and the tolerance.

    The tolerance is ``DEVIATIONS`` standard deviations of a binomial fraction; of tokens that are
    replaced together, a run is one draw. A random token may happen to be the original one.
    """
    number = found.num_predictions
    together = making.masks is not None and making.masks.replaces_together
    draws = number**2 / found.squared_runs if together else number
    same = (1 - MASK_SHARE - KEEP_SHARE) / making.vocab_size if making.vocab_size else 0.0
    expected = {
        "mask": MASK_SHARE,
        "random": 1 - MASK_SHARE - KEEP_SHARE - same,
        "kept": KEEP_SHARE + same,
    }
    return {
        name: (
            found.replaced[name] / number,
            share,
            DEVIATIONS * math.sqrt(share * (1 - share) / draws),
        )
        for name, share in expected.items()
    }
