"""Makes training instances from documents of token ids: sentence pairs, or single segments.

The rules for pairs are those of google-research/bert, create_pretraining_data.py: a run of whole
sentences is collected up to a target length (the maximum, or a random shorter one for some
documents) and split at a random sentence boundary; half of the time (always, if there is no second
part) its second part is replaced by text from a random place in another document, and the replaced
part is used again for the next instance; a pair that is too long loses tokens from the front or the
back of its longer segment. Pairs for the sentence order (Lan et al. 2020, section 3.1) are split in
the same way, and half of them are swapped; a pair of one sentence gets the next one too, or at the
end of a document the one before. Here an instance is two ranges in one array of ids, so all token
operations are done by numpy for many instances at once.

Symbols: N instances, S positions, T tokens in the block.
"""

from __future__ import annotations

import dataclasses
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable, ClassVar

import numpy as np

from bert_tf.config.declared import Settings, setting
from bert_tf.util.options import Interval


@dataclasses.dataclass(frozen=True)
class TokenizedBlock:
    """Several documents as one array of token ids.

    Attributes:
      tokens: int32 [T].
      sentence_starts: start of each sentence in ``tokens``, followed by T.
      document_starts: start of each document in ``sentence_starts``, followed by the number of
        sentences.
    """

    tokens: np.ndarray
    sentence_starts: Sequence[int]
    document_starts: Sequence[int]

    @property
    def num_documents(self) -> int:
        """Number of documents with at least one token."""
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences with at least one token."""
        return len(self.sentence_starts) - 1

    @property
    def num_documents_of_one_token(self) -> int:
        """Number of documents that cannot be divided into two segments."""
        starts = np.array(self.sentence_starts)[np.array(self.document_starts)]
        return int((np.diff(starts) == 1).sum())


@dataclasses.dataclass(frozen=True)
class Spans:
    """N instances as ranges of a block's tokens.

    Attributes:
      a: int64 [N, 2], start and end of the first segment.
      b: int64 [N, 2], start and end of the second segment; empty without next sentences.
      is_random: int64 [N], 1 where the second segment does not follow the first, but is from
        elsewhere or, with sentence order, precedes it.
    """

    a: np.ndarray
    b: np.ndarray
    is_random: np.ndarray

    def __len__(self) -> int:
        return len(self.a)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all segments."""
        return int(np.diff(self.a).sum() + np.diff(self.b).sum())

    def __getitem__(self, chosen: slice | np.ndarray) -> Spans:
        return Spans(self.a[chosen], self.b[chosen], self.is_random[chosen])

    @classmethod
    def concatenate(cls, parts: Sequence[Spans]) -> Spans:
        """Concatenates instances, in order."""
        return cls(
            np.concatenate([part.a for part in parts]),
            np.concatenate([part.b for part in parts]),
            np.concatenate([part.is_random for part in parts]),
        )

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, int, int, int]]) -> Spans:
        """Makes spans from rows (start a, end a, start b, end b, is random)."""
        table = np.array(rows, np.int64).reshape(-1, 5)
        return cls(table[:, 0:2], table[:, 2:4], table[:, 4])


@dataclasses.dataclass(frozen=True)
class SequenceRules(Settings):
    """Length and contents of sequences."""

    heading: ClassVar[str] = "Records"
    # 5: [CLS] and two [SEP] leave room for two tokens, the shortest target length.
    max_seq_length: int = setting(128, "Positions of a sequence.", bounds=Interval(5))
    short_seq_prob: float = setting(
        0.1,
        "Share of the documents that are cut to a random shorter target length.",
        bounds=Interval(0, 1),
    )
    nsp: bool = setting(
        True, "Sentence pairs for the next-sentence task; false: single segments of full length."
    )
    pack_documents: bool = setting(
        False,
        "With --nsp=false: segments continue with the next document after a [SEP], so sequences "
        "are full; --short_seq_prob has no effect.",
    )
    sentence_order: bool = setting(
        False,
        "Sentence pairs for ALBERT's sentence-order task instead: consecutive segments, half of "
        "them swapped (label 1).",
    )

    def contradictions(self) -> Iterator[str]:
        """Raises UserError for settings of pairs that contradict each other."""
        if self.sentence_order and not self.nsp:
            yield (
                "--sentence_order and --nsp=false contradict each other: the order is that of two "
                "segments, and --nsp=false makes single ones; leave one of the flags out."
            )
        if self.pack_documents and self.nsp:
            yield (
                "--pack_documents and --nsp contradict each other: the next sentence of a pair is "
                "of the same document; give --nsp=false."
            )
        yield from super().contradictions()

    @property
    def max_tokens(self) -> int:
        """Positions left besides [CLS] and one or two [SEP]."""
        return self.max_seq_length - (3 if self.nsp else 2)

    def draw_target(self, rng: random.Random) -> int:
        """Draws the target length for a document, in tokens."""
        if not self.pack_documents and rng.random() < self.short_seq_prob:
            return 2 + int(rng.random() * (self.max_tokens - 1))
        return self.max_tokens


def tokenize_documents(
    documents: Iterable[Iterable[str]], encode: Callable[[str], list[int]]
) -> TokenizedBlock:
    """Encodes the sentences of documents; those without tokens are left out."""
    tokens: list[int] = []
    sentence_starts, document_starts = [0], [0]
    for sentences in documents:
        for sentence in sentences:
            tokens += encode(sentence)
            if len(tokens) > sentence_starts[-1]:
                sentence_starts.append(len(tokens))
        if len(sentence_starts) - 1 > document_starts[-1]:
            document_starts.append(len(sentence_starts) - 1)
    return TokenizedBlock(np.array(tokens, np.int32), sentence_starts, document_starts)


def join_documents(block: TokenizedBlock, separator: int) -> TokenizedBlock:
    """The same as one document, with a separator where another one began.

    Sequences then continue with the next document: FULL-SENTENCES of RoBERTa (Liu et al. 2019,
    section 4.2).
    """
    sentences = np.array(block.sentence_starts)
    borders = sentences[np.array(block.document_starts[1:-1], np.int64)]
    tokens = np.insert(block.tokens, borders, separator)
    sentences += np.searchsorted(borders, sentences, side="right")
    return TokenizedBlock(tokens, sentences.tolist(), [0, block.num_sentences])


def make_spans(
    block: TokenizedBlock, rules: SequenceRules, *, pass_number: int, rng: random.Random
) -> Spans:
    """The instances of one pass over a block, not yet truncated to the maximum length."""
    if rules.sentence_order:
        return Spans.from_rows(_ordered_pairs(block, rules, rng))
    if rules.nsp:
        return Spans.from_rows(_pairs(block, rules, rng))
    return Spans.from_rows(_segments(block, rules, pass_number, rng))


def _pairs(block: TokenizedBlock, rules: SequenceRules, rng: random.Random) -> list[tuple]:
    starts, draw = block.sentence_starts, rng.random
    rows = []
    for document in range(block.num_documents):
        sentence, last = block.document_starts[document : document + 2]
        target = rules.draw_target(rng)
        while sentence < last:
            # The fewest whole sentences that reach the target, or the rest of the document.
            end = bisect_left(starts, starts[sentence] + target, sentence + 1, last)
            count = end - sentence
            a_end = sentence + 1 + (int(draw() * (count - 1)) if count > 1 else 0)
            is_random = count == 1 or draw() < 0.5
            if is_random:
                wanted = target - (starts[a_end] - starts[sentence])
                b, b_end = _random_text(block, document, wanted, rng)
            else:
                b, b_end = a_end, end
            rows.append((starts[sentence], starts[a_end], starts[b], starts[b_end], int(is_random)))
            sentence = a_end if is_random else end
    return rows


def _random_text(
    block: TokenizedBlock, document: int, wanted: int, rng: random.Random
) -> tuple[int, int]:
    """Sentences from a random position in another document, of ``wanted`` tokens if possible.

    If the block has a single document, that document is used, as in google's code.
    """
    other = document
    if block.num_documents > 1:
        other = int(rng.random() * (block.num_documents - 1))
        other += other >= document
    first, last = block.document_starts[other : other + 2]
    sentence = first + int(rng.random() * (last - first))
    starts = block.sentence_starts
    return sentence, bisect_left(starts, starts[sentence] + wanted, sentence + 1, last)


def _ordered_pairs(block: TokenizedBlock, rules: SequenceRules, rng: random.Random) -> list[tuple]:
    """Pairs of consecutive segments, swapped with a probability of one half.

    A document of one sentence is split between two tokens, at random; of one token, it is left out.
    """
    starts, draw = block.sentence_starts, rng.random
    rows = []

    def add(start: int, middle: int, end: int) -> None:
        is_swapped = draw() < 0.5
        a, b = ((middle, end), (start, middle)) if is_swapped else ((start, middle), (middle, end))
        rows.append((*a, *b, int(is_swapped)))

    for document in range(block.num_documents):
        sentence, last = block.document_starts[document : document + 2]
        target = rules.draw_target(rng)
        if last - sentence == 1:
            start, end = starts[sentence], starts[last]
            if end - start > 1:
                add(start, start + 1 + int(draw() * (end - start - 1)), end)
            continue
        while sentence < last:
            end = bisect_left(starts, starts[sentence] + target, sentence + 1, last)
            if end - sentence == 1:
                end = min(sentence + 2, last)
                sentence = end - 2
            middle = sentence + 1 + int(draw() * (end - sentence - 1))
            add(starts[sentence], starts[middle], starts[end])
            sentence = end
    return rows


def _segments(
    block: TokenizedBlock, rules: SequenceRules, pass_number: int, rng: random.Random
) -> list[tuple]:
    """Full-length segments of each document, the last one shorter; no token is left out.

    From the second pass on, the first segment has a random length, so that passes differ.
    """
    rows = []
    for document in range(block.num_documents):
        first, last = block.document_starts[document : document + 2]
        start, stop = block.sentence_starts[first], block.sentence_starts[last]
        target = rules.draw_target(rng)
        length = 1 + int(rng.random() * target) if pass_number else target
        while start < stop:
            end = min(start + length, stop)
            rows.append((start, end, end, end, 0))
            start, length = end, target
    return rows


def truncate_spans(spans: Spans, max_tokens: int, generator: np.random.Generator) -> Spans:
    """Truncates instances to ``max_tokens``.

    Tokens are removed one by one from the currently longer segment (from the second if they are
    equal), at its front or back with equal probability. The number that each segment loses follows
    from the lengths; how many of them at the front is a binomial draw.
    """
    a_length, b_length = np.diff(spans.a)[:, 0], np.diff(spans.b)[:, 0]
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    until_equal = np.minimum(excess, np.abs(a_length - b_length))
    rest = excess - until_equal
    a_loss = np.where(a_length > b_length, until_equal, 0) + rest // 2
    b_loss = np.where(a_length > b_length, 0, until_equal) + (rest + 1) // 2
    return Spans(
        _cut(spans.a, a_loss, generator), _cut(spans.b, b_loss, generator), spans.is_random
    )


def _cut(spans: np.ndarray, loss: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    front = generator.binomial(loss, 0.5)
    return spans + np.stack([front, front - loss], axis=1)


def assemble(
    block: TokenizedBlock,
    spans: Spans,
    rules: SequenceRules,
    *,
    special_ids: dict[str, int],
    starts_word: np.ndarray,
) -> dict[str, np.ndarray]:
    """Puts [CLS] a [SEP], or [CLS] a [SEP] b [SEP], and padding into arrays.

    Args:
      block: the tokens.
      spans: the truncated instances.
      rules: the sequence length, and whether there is a second segment.
      special_ids: ids of "pad", "cls" and "sep".
      starts_word: bool [vocab_size], whether an id begins a word.

    Returns:
      int64 input_ids, input_mask, segment_ids and word_starts [N, S], and next_sentence_labels
      [N, 1] (0 without next sentences). The first token of a segment counts as the start of a word.
    """
    columns = np.arange(rules.max_seq_length)
    first_sep = np.diff(spans.a) + 1
    last = first_sep + np.diff(spans.b) + 1 if rules.nsp else first_sep
    in_a = (columns > 0) & (columns < first_sep)
    in_b = (columns > first_sep) & (columns < last)
    is_text = in_a | in_b
    index = columns + np.where(in_a, spans.a[:, :1] - 1, spans.b[:, :1] - first_sep - 1)
    text = block.tokens.take(index * is_text).astype(np.int64)
    input_ids = np.where(is_text, text, special_ids["pad"])
    input_ids[:, 0] = special_ids["cls"]
    rows = np.arange(len(spans))
    input_ids[rows, first_sep[:, 0]] = special_ids["sep"]
    input_ids[rows, last[:, 0]] = special_ids["sep"]
    used = columns <= last
    word_starts = used & (
        ~is_text | starts_word[input_ids] | (columns == 1) | (columns == first_sep + 1)
    )
    return {
        "input_ids": input_ids,
        "input_mask": used.astype(np.int64),
        "segment_ids": (used & (columns > first_sep)).astype(np.int64),
        "word_starts": word_starts.astype(np.int64),
        "next_sentence_labels": spans.is_random[:, None],
    }
