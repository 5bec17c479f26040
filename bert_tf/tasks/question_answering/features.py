"""Converts questions to records, once per combination of file, vocabulary and lengths.

This is a stage (records/sequences.py): records are written on all cores and kept in a separate
directory with a manifest, so that later runs reuse them. A paragraph is tokenized once for all its
questions. Memory: the SQuAD file, plus a few hundred kB for each worker's batch of paragraphs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from bert_tf.durable.executor import Executor, Processes
from bert_tf.durable.stage import Built
from bert_tf.records.layouts import SQUAD_PREDICTION, SQUAD_TRAINING
from bert_tf.records.sequences import (
    RECORDS_NAME,
    SequenceRecords,
    SequenceStage,
    encode_and_write,
    without_ids,
)
from bert_tf.tasks.question_answering.examples import MOST_MOVED, Example, SquadFile
from bert_tf.tasks.question_answering.paragraphs import Paragraph, ParagraphEncoder, Question
from bert_tf.tasks.question_answering.windows import WindowSettings, cut_windows
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

STAGE = "squad_features"
VERSION = 1  # goes up when the records of equal input change
FIRST_UNIQUE_ID = 1_000_000_000  # as in google-research/bert

_PARAGRAPHS_PER_BATCH = 16
_SHOWN_IDS = 5


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions of a file, with their records.

    Attributes:
      squad: the questions.
      features: the records of all windows.
      windows: how contexts were split into windows.
    """

    squad: SquadFile
    features: SequenceRecords
    windows: WindowSettings

    @property
    def are_scored(self) -> bool:
        """Whether the file has answers to compare with."""
        return self.squad.is_scored


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

    Args:
      squad: the questions; for training, those with unusable answers are left out.
      tokenizer_files: the tokenizer, which each worker opens.
      windows: lengths.
      training: whether records have the positions of the first answer; if not, all questions are
        included, without positions.
      num_workers: maximum number of processes, 0 for one per core; it does not change the records.
      questions_per_worker: the fewest; starting a process takes as long as converting these.

    Raises:
      UserError: if lengths are impossible or the number of workers invalid; when the records are
        made, if there is no text to make them from.
    """
    windows.validate()
    executor = Processes.of(num_workers, at_most=-(-len(squad.examples) // questions_per_worker))
    spec = SQUAD_TRAINING if training else SQUAD_PREDICTION
    encoder = functools.partial(ParagraphEncoder, tokenizer_files.load, windows, without_ids(spec))
    return SequenceStage(
        STAGE,
        squad.path,
        tokenizer_files,
        _parameters(squad, windows, training),
        spec,
        version=VERSION,
        write=functools.partial(_write, squad, encoder, training, executor),
        note=_note_on_unusable(squad) if training and squad.unusable else None,
    )


def build_features(squad: SquadFile, output_dir: PathLike, **options: Any) -> SequenceRecords:
    """Makes the records of a file in a directory of their own, unless they exist already.

    ``options`` and errors are those of :func:`feature_stage` and :meth:`SequenceStage.build`.
    """
    return feature_stage(squad, **options).build(output_dir)


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


def _note_on_unusable(squad: SquadFile) -> str:
    shown = ", ".join(squad.unusable[:_SHOWN_IDS])
    more = ", ..." if len(squad.unusable) > _SHOWN_IDS else ""
    return (
        f"{STAGE}: {len(squad.unusable)} questions of {squad.path} are left out, because their "
        f"answer is not within {MOST_MOVED} characters of its answer_start: {shown}{more}"
    )


def _write(
    squad: SquadFile,
    make_encoder: Callable[[], ParagraphEncoder],
    training: bool,
    executor: Executor,
    directory: Path,
) -> Built:
    built = encode_and_write(
        directory,
        _paragraphs(squad, training),
        make_encoder,
        items_per_batch=_PARAGRAPHS_PER_BATCH,
        executor=executor,
        stage=STAGE,
        unit="questions",
        total=len(squad.examples),
        first_id=FIRST_UNIQUE_ID,
        counts={
            "unusable_answers": len(squad.unusable) if training else 0,
            "moved_answers": len(squad.moved) if training else 0,
        },
    )
    if not built.outputs[RECORDS_NAME]:
        raise UserError(f"{squad.path} has no text to look for answers in; give another file.")
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
