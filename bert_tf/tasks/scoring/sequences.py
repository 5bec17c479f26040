"""Reads texts or records, and converts them to the sequences that the network scores.

A text is split into as few consecutive sequences as possible, equal in length to within a token, so
that none has only a few tokens of context. [CLS] and [SEP] enclose each one, and are not scored.
"""

from __future__ import annotations

import bisect
import collections
import csv
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.durable.executor import batched
from bert_tf.records.info import RecordInfo
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.scoring.settings import DOCUMENT, TextSettings
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.digest import digest_of, digest_of_blocks
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_lines

# Why a text is not scored.
EMPTY, UNKNOWN, NOT_SAMPLED = "empty", "no known token", "not in the sample"

_WORD = re.compile(r"\S+")
_RECORDS_AT_A_TIME = 256
# WikiText (Merity et al. 2016) writes these for a sign inside a number or word, and for rare words.
_WIKITEXT_SIGN = re.compile(r" @([-,.])@ ")
WIKITEXT_UNKNOWN = "<unk>"


class TokenSequence(NamedTuple):
    """A sequence to score.

    Attributes:
      text: index of its text, from 0 over all texts that were read.
      ids: int32 [L], the tokens.
      segment_ids: int32 [L].
      is_scored: bool [L], whether each token is scored.
    """

    text: int
    ids: np.ndarray
    segment_ids: np.ndarray
    is_scored: np.ndarray


class ScoredText(NamedTuple):
    """A text to score.

    Attributes:
      number: its index, from 0 over all texts that were read.
      sequences: what it was split into.
      words: the number of words with a scored token; None if its words are unknown.
      unknown_tokens: the number of [UNK] tokens.
    """

    number: int
    sequences: Sequence[TokenSequence]
    words: int | None
    unknown_tokens: int

    @property
    def tokens(self) -> int:
        """The number of scored tokens."""
        return sum(int(sequence.is_scored.sum()) for sequence in self.sequences)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """All sequences to score.

    Attributes:
      texts: the texts that have a sequence, in their order.
      skipped: number of texts that are not scored, by reason.
    """

    texts: Sequence[ScoredText]
    skipped: Mapping[str, int]

    @functools.cached_property
    def sequences(self) -> list[TokenSequence]:
        """The sequences of all texts, in their order."""
        return [sequence for text in self.texts for sequence in text.sequences]

    @functools.cached_property
    def tokens(self) -> int:
        """The number of scored tokens."""
        return sum(text.tokens for text in self.texts)

    @property
    def words(self) -> int | None:
        """The number of scored words; None if words are unknown."""
        words = [text.words for text in self.texts if text.words is not None]
        return sum(words) if len(words) == len(self.texts) else None

    @property
    def digest(self) -> str:
        """A digest of everything that is scored."""
        return digest_of_blocks(
            array.tobytes()
            for sequence in self.sequences
            for array in (np.array([sequence.text, len(sequence.ids)], np.int64), *sequence[1:])
        )

    @functools.cached_property
    def counts(self) -> dict[str, object]:
        """The counts for the results file."""
        return {
            "texts_read": len(self.texts) + sum(self.skipped.values()),
            "texts_scored": len(self.texts),
            "texts_skipped": dict(self.skipped),
            "texts_cut": sum(len(text.sequences) > 1 for text in self.texts),
            "sequences": len(self.sequences),
            "tokens": self.tokens,
            "unknown_tokens": sum(text.unknown_tokens for text in self.texts),
            "words": self.words,
        }


def sequences_of_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    settings: TextSettings,
    *,
    max_seq_length: int,
    seed: int,
) -> Sequences:
    """Tokenizes the texts and splits them into sequences; ``seed`` is that of the sample."""

    def read(number: int, text: str) -> ScoredText | str:
        ids, word_of = encode_words(text, tokenizer, wikitext=settings.wikitext)
        sequences = []
        for part in _parts(ids, max_seq_length - 2):
            enclosed = np.array([tokenizer.cls_id, *part, tokenizer.sep_id], np.int32)
            is_own = np.ones(len(enclosed), bool)
            is_own[[0, -1]] = False
            sequences.append(TokenSequence(number, enclosed, np.zeros_like(enclosed), is_own))
        return _scored(sequences, tokenizer, settings, word_of=np.array(word_of))

    contents = (text.encode("utf-8", "surrogatepass") for text in texts)
    is_sampled = sampled(contents, fraction=settings.sample, seed=seed)
    return _collected(
        read(number, text) if is_sampled[number] else NOT_SAMPLED
        for number, text in enumerate(texts)
    )


def sequences_of_records(
    record_set: RecordSet,
    info: RecordInfo,
    tokenizer: Tokenizer,
    settings: TextSettings,
    *,
    seed: int,
) -> Sequences:
    """The sequences in pre-training records, unmasked, each as a text of its own."""

    def read(number: int, example: Mapping[str, np.ndarray]) -> ScoredText | str:
        ids = _tokens(example, info)
        segment_ids = example["segment_ids"][: len(ids)].astype(np.int32)
        is_own = ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id])
        return _scored([TokenSequence(number, ids, segment_ids, is_own)], tokenizer, settings)

    is_sampled = np.ones(len(record_set), bool)
    if settings.sample < 1:  # requires another pass over all records
        contents = (_tokens(example, info).tobytes() for example in _examples(record_set, info))
        is_sampled = sampled(contents, fraction=settings.sample, seed=seed)
    return _collected(
        read(number, example) if is_sampled[number] else NOT_SAMPLED
        for number, example in enumerate(_examples(record_set, info))
    )


def _scored(
    sequences: Sequence[TokenSequence],
    tokenizer: Tokenizer,
    settings: TextSettings,
    *,
    word_of: np.ndarray | None = None,
) -> ScoredText | str:
    """The text that some sequences are made of; or the reason why it is not scored.

    ``is_scored`` says of every token whether it is the text's own; ``word_of`` is the word of each
    that is, int64 [own tokens].
    """
    own = [sequence.ids[sequence.is_scored] for sequence in sequences]
    is_known = np.concatenate([np.zeros(0), *own]) != tokenizer.unk_id
    if not is_known.any():
        return UNKNOWN if len(is_known) else EMPTY
    is_scored = is_known | settings.score_unknown
    words = None if word_of is None else len(np.unique(word_of[is_scored]))
    kept = [
        TokenSequence(*s[:-1], s.is_scored & (settings.score_unknown | (s.ids != tokenizer.unk_id)))
        for s in sequences
    ]
    return ScoredText(sequences[0].text, kept, words, int((~is_known).sum()))


def _collected(texts: Iterable[ScoredText | str]) -> Sequences:
    """All texts that are scored, and how often each reason stands in the place of one."""
    scored: list[ScoredText] = []
    skipped = collections.Counter[str]()
    for text in texts:
        if isinstance(text, str):
            skipped[text] += 1
        else:
            scored.append(text)
    return Sequences(scored, skipped)


def _tokens(example: Mapping[str, np.ndarray], info: RecordInfo) -> np.ndarray:
    """A record's tokens without padding, with masks undone: int32 [L]."""
    ids = example["input_ids"][: int(example["input_mask"].sum())].astype(np.int32)
    if info.masked:
        used = example["masked_lm_weights"] > 0
        ids[example["masked_lm_positions"][used]] = example["masked_lm_ids"][used]
    return ids


def encode_words(
    text: str, tokenizer: Tokenizer, *, wikitext: bool = False
) -> tuple[list[int], list[int]]:
    """The token ids of a text, and for each the index of its word (text between white space)."""
    ends = [match.end() for match in _WORD.finditer(text)]
    ids: list[int] = []
    places: list[int] = []
    offset = 0
    for part in text.split(WIKITEXT_UNKNOWN) if wikitext else [text]:
        if offset:
            ids.append(tokenizer.unk_id)
            places.append(offset - len(WIKITEXT_UNKNOWN))
        encoding = tokenizer.encode_with_offsets(part)
        ids += encoding.ids
        places += [offset + start for start in encoding.starts]
        offset += len(part) + len(WIKITEXT_UNKNOWN)
    return ids, [bisect.bisect_right(ends, place) for place in places]


def _parts(ids: Sequence[int], longest: int) -> Iterator[Sequence[int]]:
    count = -(-len(ids) // longest)
    borders = [len(ids) * number // max(1, count) for number in range(count + 1)]
    yield from (ids[start:stop] for start, stop in zip(borders, borders[1:]))


def _examples(record_set: RecordSet, info: RecordInfo) -> Iterator[Mapping[str, np.ndarray]]:
    for numbers in batched(range(len(record_set)), _RECORDS_AT_A_TIME):
        yield from map(info.spec.decode, record_set.read(numbers))


def read_texts(files: Sequence[Path], settings: TextSettings, *, flag: str) -> list[str]:
    """The texts of the files, in order; texts in a table may be blank.

    Raises UserError if a file cannot be read or lacks the column, or if there are no texts at all.
    """
    texts: list[str] = []
    for path in files:
        lines = read_lines(path, flag=flag)
        if settings.text_column is not None:
            texts += _column(path, lines, settings.text_column, flag=flag)
        else:
            texts += _blocks(lines, settings.text_unit)
    if not texts:
        raise UserError(f"--{flag}: {files[0]} contains no text; give a file with text.")
    return [_WIKITEXT_SIGN.sub(r"\1", text) for text in texts] if settings.wikitext else texts


def sampled(contents: Iterable[bytes], *, fraction: float, seed: int) -> np.ndarray:
    """Chooses a random sample of N texts: bool [N], True for round(fraction * N), but at least one.

    Texts are ranked by a hash of their content and the seed. So the sample does not depend on their
    order, and a larger fraction only adds texts to the sample of a smaller one.
    """
    ranks = np.array([_rank(content, seed) for content in contents], np.uint64)
    size = max(1, round(fraction * len(ranks)))
    is_sampled = np.zeros(len(ranks), bool)
    is_sampled[np.argsort(ranks, kind="stable")[:size]] = True
    return is_sampled


def _rank(content: bytes, seed: int) -> int:
    return int(digest_of(f"{seed}:".encode(), content)[:16], 16)


def _blocks(lines: Iterable[str], unit: str) -> Iterator[str]:
    for is_blank, block in itertools.groupby(lines, lambda line: not line.strip()):
        if not is_blank and unit == DOCUMENT:
            yield " ".join(block)
        elif not is_blank:
            yield from block


def _column(path: Path, lines: Sequence[str], column: str, *, flag: str) -> Iterator[str]:
    """The cells of a column; ``column`` is its name, or its number from 1."""
    rows = _rows(path, lines, flag=flag)
    if column.isdecimal():
        index = int(column) - 1
    else:
        _, names = next(rows, (1, []))
        if column not in names:
            raise UserError(
                f"--text_column={column}: line 1 of {path} names no such column, but "
                f"{', '.join(names)}; give one of these, or a number from 1 if there is no header."
            )
        index = names.index(column)
    if index < 0:
        raise UserError(f"--text_column={column}: columns are counted from 1.")
    for number, cells in rows:
        if index >= len(cells):
            raise UserError(
                f"--{flag}: line {number} of {path} has {len(cells)} columns, and no column "
                f"{index + 1} (--text_column={column}); correct it."
            )
        yield cells[index]


def _rows(path: Path, lines: Sequence[str], *, flag: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row, with the number of its last line.

    In ``.csv`` files cells are separated by commas and may be quoted (RFC 4180); in all others they
    are separated by tabs, and quotation marks are part of the text.
    """
    if path.suffix.lower() != ".csv":
        yield from ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
        return
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    try:
        for cells in reader:
            if cells:  # not a blank line
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(
            f"--{flag}: line {reader.line_num} of {path} is not CSV ({error}); correct it."
        ) from error
