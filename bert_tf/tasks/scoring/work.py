"""Plans the copies of sequences that the network reads, each masked differently, in batches.

For the pseudo-perplexity a sequence has one copy per scored token, in which that token is [MASK],
or one per word, in which all of its pieces are. For the masked perplexity it has one per draw of
masks. Copies of sequences of equal length share batches, so that no batch has padding: a metric's
copies are sorted by length, longest first, and cut into batches of about equal numbers of tokens.

The batches are the same for any number of ranks, and each can be computed independently.

Symbols: B copies in a batch, S tokens in each, P positions to score, C copies in total.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.input.masking import MaskedBatch, MaskingSettings, example_keys, mask_batch
from bert_tf.tasks.scoring.sequences import TokenSequence
from bert_tf.tasks.scoring.settings import PSEUDO

# Tokens read for a part, which a killed run loses: some seconds of a large network on a CPU.
PART_TOKENS = 1 << 15


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
      features: the inputs of ``tasks.scoring.run.ScoringTask``.
      is_scored: bool [B, P], False where a copy has fewer positions.
    """

    features: dict[str, np.ndarray]
    is_scored: np.ndarray

    def summed(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sum (nats), float64, and the number, int64, of the losses that count: [B] each.

        ``losses`` are the network's, [B, P] float32.
        """
        kept = np.where(self.is_scored, losses, 0.0).astype(np.float64)
        return kept.sum(axis=1), self.is_scored.sum(axis=1, dtype=np.int64)


class Work:
    """All computations for one checkpoint.

    Attributes:
      sequence: int64 [C], the sequence of each copy, by its index.
      variant: int64 [C], the masked position or, if words are masked, the first of its pieces; or
        the index of the draw.
      copies: the range of each metric's copies.
      batches: the batches of all copies in order; within a metric, longest sequences first.
      parts: consecutive batches of about ``PART_TOKENS`` tokens each.
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
        self._masking, self._seed = masking, seed
        lengths = np.array([len(sequence.ids) for sequence in sequences])
        order = np.argsort(-lengths, kind="stable")
        positions = [self._masked_positions(sequences[number]) for number in order]
        draws = [np.arange(num_draws)] * len(order)
        self.copies: dict[str, range] = {}
        numbers, variants, start = [], [], 0
        for metric in metrics:
            # A sequence's copies are adjacent, so that copies of equal length stay together.
            of_sequences = positions if metric == PSEUDO else draws
            numbers.append(np.repeat(order, list(map(len, of_sequences))))
            variants.append(np.concatenate(of_sequences))
            self.copies[metric] = range(start, start + len(numbers[-1]))
            start += len(numbers[-1])
        self.sequence, self.variant = np.concatenate(numbers), np.concatenate(variants)
        self.batches = [
            batch
            for metric, copies in self.copies.items()
            for batch in _batches(metric, copies, lengths[self.sequence], batch_tokens)
        ]
        ends = itertools.accumulate(batch.tokens for batch in self.batches)
        part_of = {b: (end - b.tokens) // PART_TOKENS for b, end in zip(self.batches, ends)}
        self.parts = [list(part) for _, part in itertools.groupby(self.batches, part_of.get)]

    def inputs(self, batch: Batch) -> BatchInputs:
        """The input arrays of a batch."""
        numbers = self.sequence[batch.start : batch.stop]
        variants = self.variant[batch.start : batch.stop]
        chosen = [self._sequences[number] for number in numbers]
        ids, segment_ids, may_score = (np.stack(rows) for rows in list(zip(*chosen))[1:])
        if batch.metric == PSEUDO:
            is_masked = np.stack(list(map(self._word_of, chosen))) == variants[:, np.newaxis]
            masked = self._hidden(ids, is_masked)
            may_score &= is_masked
        else:
            masked = self._drawn(ids, example_keys(self._seed, variants, numbers))
        features = {
            "input_ids": masked.input_ids,
            "segment_ids": segment_ids,
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.label_ids,
        }
        is_scored = np.take_along_axis(may_score, masked.positions, axis=1) & (masked.weights > 0)
        return BatchInputs(features, is_scored)

    def _hidden(self, ids: np.ndarray, is_masked: np.ndarray) -> MaskedBatch:
        """Sequences with [MASK] at some positions, bool [B, S]."""
        # The masked positions first; copies with fewer are filled up with others.
        most = is_masked.sum(axis=1).max()
        positions = np.argsort(~is_masked, axis=1, kind="stable")[:, :most]
        labels = np.take_along_axis(ids, positions, axis=1)
        hidden = np.where(is_masked, self._masking.special_ids["mask"], ids)
        return MaskedBatch(hidden, positions, labels, np.ones(positions.shape, np.float32))

    def _drawn(self, ids: np.ndarray, keys: np.ndarray) -> MaskedBatch:
        """Sequences with masks as in pre-training, but with none for [CLS] and [SEP]."""
        unmaskable = [self._masking.special_ids[name] for name in ("pad", "cls", "sep")]
        tokens = np.isin(ids, unmaskable, invert=True).sum(axis=1)
        most = int(np.round(tokens.max() * self._masking.options.masked_lm_prob))
        return mask_batch(
            ids,
            np.full(len(ids), ids.shape[1]),
            keys=keys,
            settings=self._masking.with_options(max_predictions_per_seq=max(1, most)),
            counted=tokens,
        )

    def text_of(self, copy: int) -> int:
        """The index of the text of a copy."""
        return self._sequences[self.sequence[copy]].text

    def _masked_positions(self, sequence: TokenSequence) -> np.ndarray:
        """The ``variant`` of each copy for the pseudo-perplexity."""
        return np.unique(self._word_of(sequence)[sequence.is_scored])

    def _word_of(self, sequence: TokenSequence) -> np.ndarray:
        """What each position is masked with, by the first position of that: int64 [S].

        That is the position itself or, if words are masked, its word. A sequence that begins inside
        a word begins with a word of its own.
        """
        positions = np.arange(len(sequence.ids))
        if self._begins_word is None:
            return positions
        is_border = np.isin(sequence.ids, [self._masking.special_ids[n] for n in ("cls", "sep")])
        begins = self._begins_word[sequence.ids] | is_border | np.roll(is_border, 1)
        return np.maximum.accumulate(np.where(begins, positions, 0))


def _batches(metric: str, copies: range, lengths: np.ndarray, batch_tokens: int) -> list[Batch]:
    """The batches of a metric's adjacent copies of equal lengths; ``lengths`` are all copies'."""
    borders = (np.flatnonzero(np.diff(lengths[copies.start : copies.stop])) + 1).tolist()
    made = []
    for first, last in zip([0, *borders], [*borders, len(copies)]):
        length = int(lengths[copies[first]])
        size = max(1, batch_tokens // length)
        made += [
            Batch(metric, copies[start], copies.start + min(start + size, last), length)
            for start in range(first, last, size)
        ]
    return made
