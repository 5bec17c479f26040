"""Plans the copies of sequences that the network reads, each masked differently, in batches.

For the pseudo-perplexity a sequence has one copy per scored token, in which that token is [MASK],
or one per word, in which all of its pieces are. For the masked perplexity it has one per draw of
masks. Copies of sequences of equal length share batches, so that no batch has padding: a metric's
copies are sorted by length, longest first, and cut into batches of about equal numbers of tokens.

The batches are the same for any number of ranks, and each can be computed independently.

Symbols: B copies in a batch, S tokens in each, P positions to score, C copies in total.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.tasks.scoring.sequences import TokenSequence
from bert_tf.tasks.scoring.settings import MASKED, PSEUDO


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies for a metric.

    Attributes:
      sequence: int64 [C], index of the sequence.
      variant: int64 [C], the masked position or, if words are masked, that of its first piece; or
        the index of the draw.
    """

    sequence: np.ndarray
    variant: np.ndarray


class Batch(NamedTuple):
    """Copies ``start`` to ``stop`` for a metric, all of ``length`` tokens."""

    metric: str
    start: int
    stop: int
    length: int

    @property
    def tokens(self) -> int:
        """The number of tokens that the network reads."""
        return (self.stop - self.start) * self.length


class BatchInputs(NamedTuple):
    """The network's input, and which of its losses count.

    Attributes:
      input_ids, segment_ids: [B, S].
      positions, label_ids: [B, P].
      is_scored: bool [B, P], False where a copy has fewer positions.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray
    label_ids: np.ndarray
    is_scored: np.ndarray

    def features(self) -> dict[str, np.ndarray]:
        """The inputs of ``tasks.scoring.task.ScoringTask``."""
        return {
            "input_ids": self.input_ids,
            "segment_ids": self.segment_ids,
            "masked_lm_positions": self.positions,
            "masked_lm_ids": self.label_ids,
        }


class CopyScores(NamedTuple):
    """The scores of copies.

    Attributes:
      losses: float64 [C], the sum of each copy's losses (nats).
      counts: int64 [C], the number of tokens in that sum.
    """

    losses: np.ndarray
    counts: np.ndarray


class Work:
    """All computations for one checkpoint.

    Attributes:
      copies: the copies, by metric.
      batches: the batches of all metrics; within a metric, longest sequences first.
    """

    def __init__(
        self,
        sequences: Sequence[TokenSequence],
        masking: MaskingSettings,
        *,
        metrics: tuple[str, ...],
        batch_tokens: int,
        num_draws: int,
        seed: int,
        begins_word: np.ndarray | None = None,
    ) -> None:
        """Plans the batches.

        Args:
          sequences: the sequences to score.
          masking, num_draws, seed: how masks are drawn for the masked perplexity.
          metrics: a subset of ``settings.METRICS``.
          batch_tokens: maximum number of tokens in a batch, which has at least one copy.
          begins_word: bool [vocabulary], whether an entry begins a word, to mask all pieces of a
            word together for the pseudo-perplexity; None masks one token at a time.
        """
        self._sequences, self._begins_word = sequences, begins_word
        self._masking, self._num_draws, self._seed = masking, num_draws, seed
        lengths = np.array([len(sequence.ids) for sequence in sequences])
        order = np.argsort(-lengths, kind="stable")
        makers = {PSEUDO: self._each_position, MASKED: self._each_draw}
        self.copies = {metric: makers[metric](order) for metric in metrics}
        self.batches = [
            Batch(metric, start, stop, length)
            for metric, copies in self.copies.items()
            for start, stop, length in _cut(lengths[copies.sequence], batch_tokens)
        ]

    def inputs(self, batch: Batch) -> BatchInputs:
        """The input arrays of a batch."""
        copies = self.copies[batch.metric]
        numbers = copies.sequence[batch.start : batch.stop]
        variants = copies.variant[batch.start : batch.stop]
        chosen = [self._sequences[number] for number in numbers]
        ids = np.stack([sequence.ids for sequence in chosen])
        segment_ids = np.stack([sequence.segment_ids for sequence in chosen])
        may_score = np.stack([sequence.is_scored for sequence in chosen])
        if batch.metric == PSEUDO:
            is_masked = np.arange(batch.length) == variants[:, np.newaxis]
            if self._begins_word is not None:
                words = [self._first_pieces(sequence, self._begins_word) for sequence in chosen]
                is_masked = np.stack(words) == variants[:, np.newaxis]
            # The masked positions first; copies with fewer are filled up with others.
            most = is_masked.sum(axis=1).max()
            positions = np.argsort(~is_masked, axis=1, kind="stable")[:, :most]
            labels = np.take_along_axis(ids, positions, axis=1)
            is_scored = np.take_along_axis(is_masked & may_score, positions, axis=1)
            ids[is_masked] = self._masking.special_ids["mask"]
            return BatchInputs(ids, segment_ids, positions, labels, is_scored)
        unmaskable = [self._masking.special_ids[name] for name in ("pad", "cls", "sep")]
        tokens = np.isin(ids, unmaskable, invert=True).sum(axis=1)
        most = int(np.round(tokens.max() * self._masking.options.masked_lm_prob))
        masked = mask_batch(
            ids,
            np.full(len(ids), batch.length),
            keys=example_keys(self._seed, variants, numbers),
            settings=self._masking.with_options(max_predictions_per_seq=max(1, most)),
            counted=tokens,
        )
        is_scored = np.take_along_axis(may_score, masked.positions, axis=1) & (masked.weights > 0)
        return BatchInputs(
            masked.input_ids, segment_ids, masked.positions, masked.label_ids, is_scored
        )

    def text_of(self, metric: str, copy: int) -> int:
        """The index of the text of a copy."""
        return self._sequences[self.copies[metric].sequence[copy]].text

    def _each_position(self, order: np.ndarray) -> Copies:
        places = [np.flatnonzero(self._sequences[number].is_scored) for number in order]
        if self._begins_word is not None:
            for place, number in enumerate(order):
                words = self._first_pieces(self._sequences[number], self._begins_word)
                places[place] = np.unique(words[places[place]])
        return Copies(np.repeat(order, list(map(len, places))), np.concatenate(places))

    def _first_pieces(self, sequence: TokenSequence, begins_word: np.ndarray) -> np.ndarray:
        """The position of the first piece of each position's word: int64 [S].

        A sequence that begins inside a word begins with a word of its own.
        """
        is_border = np.isin(sequence.ids, [self._masking.special_ids[n] for n in ("cls", "sep")])
        begins = begins_word[sequence.ids] | is_border | np.roll(is_border, 1)
        return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))

    def _each_draw(self, order: np.ndarray) -> Copies:
        draws = self._num_draws
        # A sequence's draws are adjacent, so that copies of equal length stay together.
        return Copies(np.repeat(order, draws), np.tile(np.arange(draws), len(order)))


def sum_losses(losses: np.ndarray, inputs: BatchInputs) -> CopyScores:
    """The scores of a batch's copies, from the losses at their positions, [B, P] float32."""
    kept = np.where(inputs.is_scored, losses, 0.0).astype(np.float64)
    return CopyScores(kept.sum(axis=1), inputs.is_scored.sum(axis=1, dtype=np.int64))


def _cut(lengths: np.ndarray, batch_tokens: int) -> list[tuple[int, int, int]]:
    """(start, stop, length) of batches, made of adjacent copies with equal lengths, [C]."""
    borders = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    found = []
    for first, last in zip(borders, borders[1:]):
        length = int(lengths[first])
        size = max(1, batch_tokens // length)
        starts = range(first, last, size)
        found += [(start, min(start + size, last), length) for start in starts]
    return found
