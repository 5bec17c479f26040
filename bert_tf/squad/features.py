"""Converts questions to records, once for every combination of file, vocabulary and lengths.

This is a stage (records/stage.py): records are made on all cores and kept in a separate directory
with a manifest, so that later runs can use them. A paragraph is tokenized once for all of its
questions. Memory: the SQuAD file, and a few hundred kB for each worker's batch of paragraphs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from bert_tf.errors import UserError
from bert_tf.files import PathLike
from bert_tf.progress import Progress
from bert_tf.records.layouts import SQUAD_PREDICTION, SQUAD_TRAINING, RecordSpec
from bert_tf.records.manifest import describe_file, describe_vocabulary, is_up_to_date
from bert_tf.records.sequences import (
    RECORDS_NAME,
    SequenceRecords,
    open_sequences,
    without_ids,
    write_sequences,
)
from bert_tf.records.stage import Built, report, run_stage
from bert_tf.squad.examples import MOST_MOVED, Example, SquadFile
from bert_tf.squad.paragraphs import Paragraph, ParagraphEncoder, Question
from bert_tf.squad.windows import WindowSettings, cut_windows
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.workers import batched, ordered_map, resolve_num_workers

STAGE = "squad_features"
FIRST_UNIQUE_ID = 1_000_000_000  # as in google-research/bert

_PARAGRAPHS_PER_BATCH = 16
_QUESTIONS_PER_WORKER = 5000  # starting a process takes as long as converting these
_SHOWN_IDS = 5


def build_features(
    squad: SquadFile,
    output_dir: PathLike,
    *,
    tokenizer_files: TokenizerFiles,
    windows: WindowSettings,
    training: bool,
    num_workers: int = 0,
) -> SequenceRecords:
    """Makes the records of a file, unless they exist.

    Args:
      squad: the questions; for training, questions with unusable answers are left out.
      output_dir: a directory for these records only.
      tokenizer_files: the tokenizer, which each worker loads.
      windows: lengths.
      training: whether records have the positions of the first answer; if not, all questions are
        included, without positions.
      num_workers: the largest number of processes, 0 for all cores; it does not change the records.

    Raises:
      UserError: impossible lengths, an invalid vocabulary, an unusable directory, or no text to
        make records from.
    """
    windows.validate()
    if training and squad.unusable:
        shown = ", ".join(squad.unusable[:_SHOWN_IDS])
        more = ", ..." if len(squad.unusable) > _SHOWN_IDS else ""
        report(
            f"{STAGE}: {len(squad.unusable)} questions of {squad.path} are left out, because their "
            f"answer is not within {MOST_MOVED} characters of its answer_start: {shown}{more}"
        )
    num_workers = min(
        resolve_num_workers(num_workers), -(-len(squad.examples) // _QUESTIONS_PER_WORKER)
    )
    directory = run_stage(
        STAGE,
        output_dir,
        parameters=_parameters(squad, windows, training),
        inputs=[squad.path],
        build=functools.partial(
            _build, squad, tokenizer_files.load, windows, training, num_workers
        ),
        vocabulary=describe_vocabulary(tokenizer_files.load()),
    )
    return open_features(directory)


def find_features(
    squad: SquadFile,
    directory: PathLike,
    *,
    tokenizer: Tokenizer,
    windows: WindowSettings,
    training: bool,
) -> SequenceRecords | None:
    """The records that :func:`build_features` would make, if ``directory`` already has them."""
    if is_up_to_date(
        directory,
        stage=STAGE,
        parameters=_parameters(squad, windows, training),
        inputs=[describe_file(squad.path)],
        vocabulary=describe_vocabulary(tokenizer),
    ):
        return open_features(directory)
    return None


def most_windows(squad: SquadFile, windows: WindowSettings) -> int:
    """An upper bound of the number of records that :func:`build_features` makes for training."""
    num_windows = {}
    for example in squad.examples:
        if example.paragraph not in num_windows:
            # No tokenizer makes more tokens than a text has bytes in its longest normalisation.
            longest = len(unicodedata.normalize("NFKD", example.context).encode("utf-8", "replace"))
            spans = cut_windows(windows.max_query_length, longest, windows)
            num_windows[example.paragraph] = len(spans)
    return sum(num_windows[example.paragraph] for example in squad.examples)


def _parameters(squad: SquadFile, windows: WindowSettings, training: bool) -> dict[str, object]:
    moved = {"most_moved": MOST_MOVED} if training else {}
    first = {} if squad.first_of is None else {"first_questions": len(squad.examples)}
    return {**dataclasses.asdict(windows), "training": training, **moved, **first}


def open_features(directory: PathLike) -> SequenceRecords:
    """The records that :func:`build_features` left in a directory.

    Their ``counts``: ``questions`` with records, ``windows`` (N), ``cut_questions`` (longer than
    max_query_length), ``impossible_questions``, ``unusable_answers`` (questions left out of
    training because their answer was not found in the context) and ``moved_answers`` (questions
    whose answer was found up to ``MOST_MOVED`` characters from its offset).

    Raises UserError if there are none, or if their lengths file does not match them.
    """
    return open_sequences(
        directory,
        stage=STAGE,
        what="SQuAD records",
        spec=lambda parameters: _spec(parameters["training"]),
    )


def _spec(training: bool) -> RecordSpec:
    return SQUAD_TRAINING if training else SQUAD_PREDICTION


def _build(
    squad: SquadFile,
    open_tokenizer: Callable[[], Tokenizer],
    windows: WindowSettings,
    training: bool,
    num_workers: int,
    directory: Path,
) -> Built:
    progress = Progress(STAGE, len(squad.examples), "questions")
    results = ordered_map(
        functools.partial(ParagraphEncoder, open_tokenizer, windows, without_ids(_spec(training))),
        batched(_paragraphs(squad, training), _PARAGRAPHS_PER_BATCH),
        num_workers=num_workers,
        what=STAGE,
    )
    built = write_sequences(
        directory,
        results,
        first_id=FIRST_UNIQUE_ID,
        counts={
            "unusable_answers": len(squad.unusable) if training else 0,
            "moved_answers": len(squad.moved) if training else 0,
        },
        progress=progress,
        unit="questions",
    )
    if not built.outputs[RECORDS_NAME]:
        raise UserError(f"{squad.path} has no text to look for answers in; give another file.")
    progress.finish()
    return built


def _paragraphs(squad: SquadFile, training: bool) -> Iterator[Paragraph]:
    unusable = frozenset(squad.unusable) if training else frozenset()
    for _, examples in itertools.groupby(squad.examples, key=lambda example: example.paragraph):
        kept = [example for example in examples if example.question_id not in unusable]
        if kept:
            yield Paragraph(kept[0].context, [_question(example, training) for example in kept])


def _question(example: Example, training: bool) -> Question:
    answer = None
    if training and not example.is_impossible:
        text, start = example.answers[0]
        answer = (start, start + len(text))
    return Question(example.question, answer, example.is_impossible)
