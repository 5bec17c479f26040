"""Encodes labelled sentences as records, once per combination of file, vocabulary and settings.

A sequence is ``[CLS] some words [SEP]``; sentences that are too long become windows, which overlap
and are cut between words. A word may be in several of them, but is trained, scored and predicted
only in the one where it has the most context, as in google-research/bert's run_squad.py. Records
are in the order of the file, so predictions at word starts are in its words' order.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bert_tf.records.layouts import LABEL_IDS, TAGGING_PREDICTION, TAGGING_TRAINING, WORD_STARTS
from bert_tf.records.sequences import Encoded, SequenceStage, padded, padded_inputs
from bert_tf.tasks.tagging.formats import Sentence, TaggedFile
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

STAGE = "tagging_features"
VERSION = 2  # goes up when the records of equal input change
_NUM_SPECIAL = 2  # [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths and distances in tokens.

    Attributes:
      max_seq_length: maximum length of a sequence, [CLS] and [SEP] included.
      doc_stride: maximum distance between the starts of consecutive windows, at least 1; None for
        half of the room in a window.
    """

    max_seq_length: int
    doc_stride: int | None = None

    @property
    def room(self) -> int:
        """Tokens of words in a sequence."""
        return self.max_seq_length - _NUM_SPECIAL

    @property
    def stride(self) -> int:
        """The distance that is used; with ``room``, windows do not overlap."""
        return min(self.room, self.doc_stride or max(1, self.room // 2))

    def validate(self) -> None:
        """Raises UserError if a sequence has no room for a word."""
        if self.room < 1:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} has no room for [CLS], a word and [SEP]; "
                f"give at least {_NUM_SPECIAL + 1}."
            )


class Window(NamedTuple):
    """One sequence of a sentence.

    Attributes:
      words: the words in it.
      scored: those that are trained, scored and predicted in it; the others are context.
    """

    words: slice
    scored: slice


def windows_of_words(num_pieces: Sequence[int], settings: WindowSettings) -> list[Window]:
    """Splits a sentence into windows, each with as many whole words as fit.

    Every word is scored in exactly one window, and each window scores at least one word. The
    context of a word is the number of tokens to its left or right in the window, whichever is
    smaller; of equal windows the first one counts. ``num_pieces`` are the words' numbers of tokens,
    from 1 to ``settings.room``.
    """
    offsets = [0, *itertools.accumulate(num_pieces)]
    spans = _spans(offsets, settings)
    first_scored = [0, *(_first_scored(offsets, *pair) for pair in zip(spans, spans[1:]))]
    return [
        Window(slice(*span), slice(first, end))
        for span, first, end in zip(spans, first_scored, [*first_scored[1:], len(num_pieces)])
        if first < end
    ]


def _spans(offsets: Sequence[int], settings: WindowSettings) -> list[tuple[int, int]]:
    """The words [start, end) of windows; ``offsets`` are the tokens before each word and in all."""
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(offsets) - 1:
        end = bisect_right(offsets, offsets[start] + settings.room) - 1
        spans.append((start, end))
        if end < len(offsets) - 1:
            farthest = bisect_right(offsets, offsets[start] + settings.stride) - 1
            # The next window has at least one more word.
            nearest = bisect_left(offsets, offsets[end + 1] - settings.room)
            start = min(max(farthest, nearest, start + 1), end)
    return spans


def _first_scored(offsets: Sequence[int], window: tuple[int, int], later: tuple[int, int]) -> int:
    """The first word that has more context in the later one of two consecutive windows.

    In the overlap, each has its end nearer to the word on one side: the earlier window to the right
    of it, the later one to the left.
    """
    (_, end), (start, _) = window, later
    return next(
        (
            word
            for word in range(start, end)
            if offsets[word] - offsets[start] > offsets[end] - offsets[word + 1]
        ),
        end,
    )


def feature_stage(
    file: TaggedFile,
    *,
    tokenizer_files: TokenizerFiles,
    windows: WindowSettings,
    labels: Sequence[str] | None,
    num_workers: int = 0,
    sentences_per_batch: int = 256,
    sentences_per_worker: int = 10_000,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records are ``sentences``, ``words``, ``sequences`` (N), and
    ``cut_sentences``, the number of sentences that do not fit in one sequence. ``labels`` are the
    model's by class number, None for records without; words with other labels get class 0, and must
    be excluded from the loss. Raises UserError if the length is too small.
    """
    windows.validate()
    # Windows without overlap are what earlier versions made, whose manifests have no stride.
    stride = {"doc_stride": windows.stride} if windows.stride < windows.room else {}
    names = None if labels is None else list(labels)
    return SequenceStage(
        STAGE,
        [file.path],
        tokenizer_files,
        {"max_seq_length": windows.max_seq_length, **stride, "labels": names},
        TAGGING_PREDICTION if labels is None else TAGGING_TRAINING,
        VERSION,
        file.sentences,
        SentenceEncoder(windows, {label: number for number, label in enumerate(labels or ())}),
        unit="sentences",
        total=len(file.sentences),
        items_per_batch=sentences_per_batch,
        total_per_worker=sentences_per_worker,
        num_workers=num_workers,
    )


class WordSequence(NamedTuple):
    """One sequence of a sentence.

    Attributes:
      ids: its tokens, [CLS] and [SEP] included.
      word_starts: 1 at the first pieces of the words that are scored in it, 0 at other tokens.
    """

    ids: list[int]
    word_starts: list[int]


def sequences_of(
    words: Sequence[str], tokenizer: Tokenizer, windows: WindowSettings
) -> list[WordSequence]:
    """The sequences of a sentence: one if it fits, otherwise overlapping windows.

    The sequences' word starts, one after the other, are in the order of the words, one for each. A
    word that has no pieces becomes [UNK], and one that does not fit in a sequence is truncated.
    """
    pieces = [tokenizer.encode(word)[: windows.room] or [tokenizer.unk_id] for word in words]
    sequences = []
    for inside, scored in windows_of_words([len(word) for word in pieces], windows):
        starts = [0]
        for number, word in enumerate(pieces[inside], start=inside.start):
            starts += [int(scored.start <= number < scored.stop), *[0] * (len(word) - 1)]
        ids = itertools.chain.from_iterable(pieces[inside])
        sequences.append(WordSequence([tokenizer.cls_id, *ids, tokenizer.sep_id], [*starts, 0]))
    return sequences


@dataclasses.dataclass(frozen=True)
class SentenceEncoder:
    """Encodes sentences as records (see :class:`bert_tf.records.sequences.Encoder`).

    ``numbers`` are the classes of labels, none for records without labels.
    """

    windows: WindowSettings
    numbers: Mapping[str, int]

    def encode(self, items: Sequence[Sentence], tokenizer: Tokenizer) -> Encoded:
        """Encodes sentences in order."""
        size = self.windows.max_seq_length
        sequences: list[WordSequence] = []
        labels, cut = [], 0
        for sentence in items:
            of_sentence = sequences_of(sentence.words, tokenizer, self.windows)
            cut += len(of_sentence) > 1
            sequences += of_sentence
            if sentence.labels and self.numbers:
                numbers = (self.numbers.get(label, 0) for label in sentence.labels)
                labels += [
                    [next(numbers) if is_start else 0 for is_start in sequence.word_starts]
                    for sequence in of_sentence
                ]
        ids = [sequence.ids for sequence in sequences]
        features = {
            **padded_inputs(ids, size, pad_id=tokenizer.pad_id),
            WORD_STARTS: padded([sequence.word_starts for sequence in sequences], size),
            LABEL_IDS: padded(labels, size),
        }
        counts = {
            "sentences": len(items),
            "words": sum(len(sentence.words) for sentence in items),
            "sequences": len(ids),
            "cut_sentences": cut,
        }
        return Encoded(features, counts)
