"""Windows of questions and their paragraphs, and their records.

A sequence is ``[CLS] question [SEP] part of the paragraph [SEP]``. A paragraph that is too long is
split into overlapping windows by the rules of google-research/bert's run_squad.py. A token may be
in several windows, but counts only in the one where it has the most context.

Records are made once per combination of file, vocabulary and lengths. A paragraph is tokenized once
for all its questions. Memory: the SQuAD file, plus a few hundred kB for each worker's batch of
paragraphs.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.records.layouts import SQUAD_PREDICTION, SQUAD_TRAINING
from bert_tf.records.sequences import Encoded, SequenceStage
from bert_tf.tasks.question_answering.examples import MOST_MOVED, Example, SquadFile
from bert_tf.tasks.question_answering.settings import NUM_SPECIAL, WindowSettings
from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.windows import windows_of

STAGE = "squad_features"
VERSION = 1  # goes up when the records of equal input change
FIRST_UNIQUE_ID = 1_000_000_000  # as in google-research/bert

_PARAGRAPHS_PER_BATCH = 16
_SHOWN_IDS = 5


def fitting_windows(longest: int) -> WindowSettings:
    """run_squad.py's lengths, reduced so that sequences have at most ``longest`` tokens."""
    defaults = WindowSettings()
    if longest >= defaults.max_seq_length:
        return defaults
    return WindowSettings(
        max_seq_length=longest,
        doc_stride=max(1, longest // 3),
        max_query_length=min(defaults.max_query_length, longest // 4),
    )


class Window(NamedTuple):
    """One sequence of a question.

    Attributes:
      question_ids: the question, truncated to max_query_length.
      first_token: index in the paragraph of the window's first token.
      num_tokens: number of the paragraph's tokens in the window.
    """

    question_ids: list[int]
    first_token: int
    num_tokens: int

    @property
    def length(self) -> int:
        """The length of the sequence without padding."""
        return len(self.question_ids) + self.num_tokens + NUM_SPECIAL

    @property
    def context_offset(self) -> int:
        """The position in the sequence at which the paragraph begins."""
        return len(self.question_ids) + 2

    def position(self, token: int) -> int | None:
        """The position in the sequence of a paragraph's token; None outside the window."""
        if not self.first_token <= token < self.first_token + self.num_tokens:
            return None
        return token - self.first_token + self.context_offset


def cut_windows(
    num_question_ids: int, num_context_tokens: int, settings: WindowSettings
) -> list[tuple[int, int]]:
    """Splits a paragraph into the windows for a question, which may exceed max_query_length.

    Returns: (first token, number of tokens) per window; empty for a paragraph without tokens.
    """
    question = min(num_question_ids, settings.max_query_length)
    room = settings.max_seq_length - question - NUM_SPECIAL
    return windows_of(num_context_tokens, room, settings.doc_stride)


def question_windows(
    question_ids: Sequence[int], num_context_tokens: int, settings: WindowSettings
) -> list[Window]:
    """All sequences of a question (see :func:`cut_windows`)."""
    question = list(question_ids[: settings.max_query_length])
    ranges = cut_windows(len(question), num_context_tokens, settings)
    return [Window(question, first, length) for first, length in ranges]


def has_max_context(windows: Sequence[tuple[int, int]], window_index: int, token: int) -> bool:
    """Whether a window is the one in which a token has the most context.

    Context is the number of tokens to the left or right of the token, whichever is smaller, plus a
    hundredth of the window's length; of equal windows the first one counts. ``windows`` are those
    of a question, from :func:`cut_windows`.
    """

    def context(index: int) -> float:
        first, length = windows[index]
        left, right = token - first, first + length - 1 - token
        return min(left, right) + 0.01 * length if left >= 0 <= right else -1.0

    return max(range(len(windows)), key=context) == window_index


class SpanCandidates(NamedTuple):
    """The best positions in the context of each window, best first; ties in order of position.

    Holds arrays for all N windows in record order, or tensors for a batch in a graph; K candidates.

    Attributes:
      start_indices, end_indices: [N, K] int32 positions in the sequence.
      start_logits, end_logits: [N, K] float32, -inf in unused slots.
      null_logits: [N] float32, start plus end logit of [CLS], which represents "no answer".
    """

    start_indices: Any
    start_logits: Any
    end_indices: Any
    end_logits: Any
    null_logits: Any


def feature_stage(
    squad: SquadFile,
    *,
    tokenizer_files: TokenizerFiles,
    windows: WindowSettings,
    training: bool,
    num_workers: int = 0,
    questions_per_worker: int = 5000,
) -> SequenceStage:
    """The stage that makes the records of a file.

    The ``counts`` of the records: ``questions`` that have records, ``windows`` (N),
    ``cut_questions`` (longer than max_query_length), ``impossible_questions``, ``unusable_answers``
    (questions excluded from training because their answer was not found in the context) and
    ``moved_answers`` (questions whose answer was up to ``MOST_MOVED`` characters from its offset).

    For training, records have the positions of the first answer, and questions with unusable ones
    are left out; otherwise all are included. Raises UserError if lengths are impossible.
    """
    windows.validate()
    kept = [e for e in squad.examples if e.is_usable or not training]
    paragraphs = itertools.groupby(kept, key=lambda example: example.paragraph)
    return SequenceStage(
        STAGE,
        [squad.path],
        tokenizer_files,
        _parameters(squad, windows, training),
        SQUAD_TRAINING if training else SQUAD_PREDICTION,
        VERSION,
        [list(examples) for _, examples in paragraphs],
        ParagraphEncoder(windows, training),
        unit="questions",
        total=len(squad.examples),
        items_per_batch=_PARAGRAPHS_PER_BATCH,
        total_per_worker=questions_per_worker,
        num_workers=num_workers,
        first_id=FIRST_UNIQUE_ID,
        counts={
            "unusable_answers": len(squad.examples) - len(kept),
            "moved_answers": sum(e.is_moved for e in squad.examples) if training else 0,
        },
        lacking="text to look for answers in",
        most_records=most_windows(squad, windows) if training else None,
    )


def most_windows(squad: SquadFile, windows: WindowSettings) -> int:
    """An upper bound on the number of records that :func:`feature_stage` makes for training."""
    num_windows = {}
    for example in squad.examples:
        if example.paragraph not in num_windows:
            # A text never has more tokens than bytes in its longest normalisation.
            longest = len(unicodedata.normalize("NFKD", example.context).encode("utf-8", "replace"))
            spans = cut_windows(windows.max_query_length, longest, windows)
            num_windows[example.paragraph] = len(spans)
    return sum(num_windows[example.paragraph] for example in squad.examples)


def _parameters(squad: SquadFile, windows: WindowSettings, training: bool) -> dict[str, object]:
    moved = {"most_moved": MOST_MOVED} if training else {}
    first = {} if squad.first_of is None else {"first_questions": len(squad.examples)}
    return {**dataclasses.asdict(windows), "training": training, **moved, **first}


def note_on_unusable(squad: SquadFile) -> str:
    """Says which questions are not trained, if any."""
    shown = ", ".join(squad.unusable[:_SHOWN_IDS])
    more = ", ..." if len(squad.unusable) > _SHOWN_IDS else ""
    return (
        f"{STAGE}: {len(squad.unusable)} questions of {squad.path} are left out, because their "
        f"answer is not within {MOST_MOVED} characters of its answer_start: {shown}{more}"
    )


@dataclasses.dataclass(frozen=True)
class ParagraphEncoder:
    """Encodes the questions of paragraphs (see :class:`bert_tf.records.sequences.Encoder`).

    For ``training``, it looks for the tokens of the first answers.
    """

    windows: WindowSettings
    training: bool

    def encode(self, items: Sequence[Sequence[Example]], tokenizer: Tokenizer) -> Encoded:
        """Encodes paragraphs, each given as its questions, in order."""
        counts = dict.fromkeys(
            ("questions", "windows", "cut_questions", "impossible_questions", "unusable_answers"), 0
        )
        windows: list[tuple[Window, np.ndarray]] = []
        positions: list[tuple[int, int]] = []
        impossible: list[bool] = []
        for examples in items:
            context = tokenizer.encode_with_offsets(examples[0].context)
            context_ids = np.array(context.ids, np.int32)
            for example in examples:
                answer = None
                if self.training and not example.is_impossible:
                    text, start = example.answers[0]
                    answer = tokens_of(context, start, start + len(text))
                    if answer is None:  # its characters have no token
                        counts["unusable_answers"] += 1
                        continue
                ids = tokenizer.encode(example.question)
                counts["questions"] += 1
                counts["cut_questions"] += len(ids) > self.windows.max_query_length
                counts["impossible_questions"] += example.is_impossible
                for window in question_windows(ids, len(context_ids), self.windows):
                    windows.append((window, context_ids))
                    positions.append(_answer_positions(window, answer))
                    impossible.append(example.is_impossible)
        counts["windows"] = len(windows)
        answers = np.array(positions, np.int64).reshape(-1, 2)
        features = {
            **sequence_arrays(windows, tokenizer, self.windows.max_seq_length),
            "start_positions": answers[:, :1],
            "end_positions": answers[:, 1:],
            "is_impossible": np.array(impossible, np.int64)[:, None],
        }
        return Encoded(features, counts)


def tokens_of(encoding: Encoding, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token that overlap characters [start, end); None if there is none.

    If start or end lies between tokens (in white space, say), the nearest token inside is taken.
    """
    first = bisect.bisect_right(encoding.ends, start)
    last = bisect.bisect_left(encoding.starts, end) - 1
    return (first, last) if first <= last else None


def _answer_positions(window: Window, answer: tuple[int, int] | None) -> tuple[int, int]:
    """The positions of an answer's first and last token; [CLS] if the window lacks one of them."""
    first, last = map(window.position, answer or (-1, -1))
    return (0, 0) if first is None or last is None else (first, last)


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
