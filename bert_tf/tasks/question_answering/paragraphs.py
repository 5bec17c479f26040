"""Converts paragraphs with their questions to the features of records."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.records.layouts import RecordSpec
from bert_tf.records.sequences import EncodedSequences
from bert_tf.tasks.question_answering.windows import Window, WindowSettings, question_windows
from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.text.unknown_share import CountingTokenizer


class Question(NamedTuple):
    """A question: its text and, for training, the characters [start, end) of its answer."""

    text: str
    answer: tuple[int, int] | None
    is_impossible: bool


class Paragraph(NamedTuple):
    """A context with its questions."""

    context: str
    questions: list[Question]


class ParagraphEncoder:
    """Converts paragraphs to records; one instance per worker process."""

    def __init__(
        self, open_tokenizer: Callable[[], Tokenizer], windows: WindowSettings, spec: RecordSpec
    ):
        """Loads the tokenizer; ``spec`` lists the features of the records."""
        self._tokenizer = CountingTokenizer(open_tokenizer())
        self._settings = windows
        self._spec = spec

    def __call__(self, paragraphs: Sequence[Paragraph]) -> EncodedSequences:
        """Encodes paragraphs in order."""
        counts = dict.fromkeys(
            ("questions", "windows", "cut_questions", "impossible_questions", "unusable_answers"), 0
        )
        rows = _Rows(self._tokenizer, self._settings.max_seq_length)
        for paragraph in paragraphs:
            context = self._tokenizer.encode_with_offsets(paragraph.context)
            context_ids = np.array(context.ids, np.int32)
            for question in paragraph.questions:
                answer = question.answer and tokens_of(context, *question.answer)
                if question.answer and not answer:  # its characters have no token
                    counts["unusable_answers"] += 1
                    continue
                ids = self._tokenizer.encode(question.text)
                counts["questions"] += 1
                counts["cut_questions"] += len(ids) > self._settings.max_query_length
                counts["impossible_questions"] += question.is_impossible
                rows.add(
                    question_windows(ids, len(context_ids), self._settings),
                    context_ids,
                    answer,
                    question.is_impossible,
                )
        counts["windows"] = len(rows)
        return EncodedSequences.of(self._spec, rows.features(), counts, self._tokenizer.take())


def tokens_of(encoding: Encoding, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token that overlap characters [start, end); None if there is none.

    If start or end lies between tokens (in white space, say), the nearest token inside is taken.
    """
    first = bisect.bisect_right(encoding.ends, start)
    last = bisect.bisect_left(encoding.starts, end) - 1
    return (first, last) if first <= last else None


class _Rows:
    """Collects windows for the features of one batch of records."""

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int):
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length
        self._windows: list[tuple[Window, np.ndarray]] = []
        self._positions: list[tuple[int, int]] = []
        self._impossible: list[bool] = []

    def __len__(self) -> int:
        return len(self._windows)

    def add(
        self,
        windows: Sequence[Window],
        context_ids: np.ndarray,
        answer: tuple[int, int] | None,
        is_impossible: bool,
    ) -> None:
        """Adds the windows of a question; ``answer`` is its first and last token in the context."""
        for window in windows:
            first, last = map(window.position, answer or (-1, -1))
            self._windows.append((window, context_ids))
            self._positions.append((0, 0) if first is None or last is None else (first, last))
            self._impossible.append(is_impossible)

    def features(self) -> dict[str, np.ndarray]:
        """Arrays [N, L] for the features of the records, except unique_ids."""
        answers = np.array(self._positions, np.int64).reshape(-1, 2)
        return {
            **sequence_arrays(self._windows, self._tokenizer, self._max_seq_length),
            "start_positions": answers[:, :1],
            "end_positions": answers[:, 1:],
            "is_impossible": np.array(self._impossible, np.int64)[:, None],
        }


def sequence_arrays(
    windows: Sequence[tuple[Window, Sequence[int] | np.ndarray]],
    tokenizer: Tokenizer,
    num_positions: int,
) -> dict[str, np.ndarray]:
    """The network's inputs for windows, each paired with the token ids of its whole paragraph.

    Returns: ``input_ids`` int32, ``input_mask`` and ``segment_ids`` uint8, [N, num_positions].
    """
    input_ids = np.full((len(windows), num_positions), tokenizer.pad_id, np.int32)
    for row, (window, context_ids) in zip(input_ids, windows):
        offset, end = window.context_offset, window.length - 1
        tokens = slice(window.first_token, window.first_token + window.num_tokens)
        row[:offset] = [tokenizer.cls_id, *window.question_ids, tokenizer.sep_id]
        row[offset:end] = context_ids[tokens]
        row[end] = tokenizer.sep_id
    positions = np.arange(num_positions)
    offsets, lengths = (
        np.array([getattr(window, name) for window, _ in windows], np.int64)[:, None]
        for name in ("context_offset", "length")
    )
    return {
        "input_ids": input_ids,
        "input_mask": (positions < lengths).astype(np.uint8),
        "segment_ids": ((positions >= offsets) & (positions < lengths)).astype(np.uint8),
    }
