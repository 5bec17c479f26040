"""Questions to records of fixed length, once for every combination of file, vocabulary and lengths.

A stage (data/stage.py): records are made on all cores and kept in a directory of their own with a
manifest, so that a second run finds them done. A paragraph is tokenized once for all of its
questions. Memory: the SQuAD file, and some hundred kB for each worker's batch of paragraphs.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.data.manifest import describe_vocabulary, read_manifest
from bert_tf.data.records import SEQUENCE, SQUAD_PREDICTION, SQUAD_TRAINING, RecordSpec
from bert_tf.data.stage import Built, report, run_stage
from bert_tf.data.tfrecord import OFFSETS_SUFFIX, TFRecordWriter, frame_records
from bert_tf.errors import UserError
from bert_tf.files import PathLike
from bert_tf.progress import Progress
from bert_tf.squad.examples import Example, SquadFile
from bert_tf.squad.windows import Window, WindowSettings, question_windows
from bert_tf.text.tokenizer import Encoding, Tokenizer, load_tokenizer
from bert_tf.workers import ordered_map, resolve_num_workers

STAGE = "squad_features"
RECORDS_NAME = "features.tfrecord"
LENGTHS_NAME = "lengths.npy"

FIRST_UNIQUE_ID = 1_000_000_000  # google's

_PARAGRAPHS_AT_ONCE = 16
_QUESTIONS_A_WORKER = 5000  # a process takes as long to start as these take
_SHOWN_IDS = 5


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """Finished records.

    Attributes:
      directory: where they are.
      files: TFRecord files, in the order of the questions and of each question's windows.
      lengths: int32 [N], the tokens of each record without padding.
      counts: ``questions`` with records, ``windows`` (N), ``cut_questions`` (longer than
        max_query_length), ``impossible_questions``, and ``unusable_answers``: questions left out
        of the training because their answer is not in the context.
      sha256: changes when any byte of the records changes.
      spec: layout of the records.
      max_seq_length: positions of a record.
    """

    directory: Path
    files: list[Path]
    lengths: np.ndarray
    counts: Mapping[str, int]
    sha256: str
    spec: RecordSpec
    max_seq_length: int

    @property
    def record_lengths(self) -> dict[str, int]:
        """The lengths for ``spec.parse_spec``."""
        return {SEQUENCE: self.max_seq_length}


def build_features(
    squad: SquadFile,
    output_dir: PathLike,
    *,
    vocab_file: PathLike | None = None,
    spm_model_file: PathLike | None = None,
    do_lower_case: bool = True,
    windows: WindowSettings,
    training: bool,
    num_workers: int = 0,
) -> FeatureSet:
    """Makes the records of a file, unless they are there.

    Args:
      squad: the questions; for training, those with unusable answers are left out.
      output_dir: belongs to these records alone.
      vocab_file, spm_model_file, do_lower_case: the tokenizer, see ``load_tokenizer``; it is
        opened in each worker.
      windows: lengths.
      training: with the positions of the first answer, or all questions without them.
      num_workers: processes at most, 0 for all cores; the records do not depend on it.

    Raises:
      UserError: impossible lengths, a wrong vocabulary, a directory that cannot be used, or nothing
        to make records of.
    """
    windows.validate()
    open_tokenizer = functools.partial(
        load_tokenizer,
        vocab_file=vocab_file,
        spm_model_file=spm_model_file,
        do_lower_case=do_lower_case,
    )
    if training and squad.unusable:
        shown = ", ".join(squad.unusable[:_SHOWN_IDS])
        more = ", ..." if len(squad.unusable) > _SHOWN_IDS else ""
        report(
            f"{STAGE}: {len(squad.unusable)} questions of {squad.path} are left out, because their "
            f"answer is not where answer_start says: {shown}{more}"
        )
    num_workers = min(
        resolve_num_workers(num_workers), -(-len(squad.examples) // _QUESTIONS_A_WORKER)
    )
    directory = run_stage(
        STAGE,
        output_dir,
        parameters={**dataclasses.asdict(windows), "training": training},
        inputs=[squad.path],
        build=functools.partial(_build, squad, open_tokenizer, windows, training, num_workers),
        vocabulary=describe_vocabulary(open_tokenizer()),
    )
    return open_features(directory)


def open_features(directory: PathLike) -> FeatureSet:
    """The records that :func:`build_features` left in a directory; UserError if there are none."""
    directory = Path(directory)
    manifest = read_manifest(directory)
    if manifest.stage != STAGE:
        raise UserError(f"{directory} holds the output of {manifest.stage}, not SQuAD records.")
    return FeatureSet(
        directory=directory,
        files=[directory / RECORDS_NAME],
        lengths=np.load(directory / LENGTHS_NAME),
        counts=manifest.counts,
        sha256=manifest.sha256,
        spec=_spec(manifest.parameters["training"]),
        max_seq_length=manifest.parameters["max_seq_length"],
    )


def _spec(training: bool) -> RecordSpec:
    return SQUAD_TRAINING if training else SQUAD_PREDICTION


class Question(NamedTuple):
    """What records are made of: the text, and for training the answer's characters [start, end)."""

    text: str
    answer: tuple[int, int] | None
    is_impossible: bool


class Paragraph(NamedTuple):
    """A context with its questions."""

    context: str
    questions: list[Question]


class EncodedParagraphs(NamedTuple):
    """Records, but for their unique_ids, which depend on all records before."""

    records: list[bytes]
    lengths: np.ndarray
    counts: dict[str, int]


def _build(
    squad: SquadFile,
    open_tokenizer: Callable[[], Tokenizer],
    windows: WindowSettings,
    training: bool,
    num_workers: int,
    directory: Path,
) -> Built:
    progress = Progress(STAGE, len(squad.examples), "questions")
    totals = {"unusable_answers": len(squad.unusable) if training else 0}
    lengths = [np.zeros(0, np.int32)]
    results = ordered_map(
        functools.partial(ParagraphEncoder, open_tokenizer, windows, training),
        _batches(_paragraphs(squad, training)),
        num_workers=num_workers,
        what=STAGE,
    )
    with TFRecordWriter(directory / RECORDS_NAME) as writer:
        for encoded in results:
            ids = _encode_ids(FIRST_UNIQUE_ID + writer.num_records, len(encoded.records))
            # Examples that follow each other without a border are one Example with the features
            # of both (protobuf's rule for merging messages).
            writer.write_framed(frame_records(map(bytes.__add__, ids, encoded.records)))
            lengths.append(encoded.lengths)
            for name, count in encoded.counts.items():
                totals[name] = totals.get(name, 0) + count
            progress.advance(encoded.counts["questions"])
    if not writer.num_records:
        raise UserError(f"{squad.path} has no text to look for answers in; give another file.")
    progress.finish()
    np.save(directory / LENGTHS_NAME, np.concatenate(lengths))
    outputs = {
        RECORDS_NAME: writer.num_records,
        RECORDS_NAME + OFFSETS_SUFFIX: None,
        LENGTHS_NAME: None,
    }
    return Built(outputs, totals)


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


def _batches(paragraphs: Iterator[Paragraph]) -> Iterator[list[Paragraph]]:
    while batch := list(itertools.islice(paragraphs, _PARAGRAPHS_AT_ONCE)):
        yield batch


def _encode_ids(first: int, count: int) -> list[bytes]:
    """The unique_ids of records, each as an Example of its own."""
    spec = RecordSpec("unique_ids", SQUAD_PREDICTION.features[:1])
    return spec.encode_batch({"unique_ids": np.arange(first, first + count)[:, np.newaxis]})


class ParagraphEncoder:
    """Paragraphs to records; one in each worker process."""

    def __init__(
        self, open_tokenizer: Callable[[], Tokenizer], windows: WindowSettings, training: bool
    ):
        self._tokenizer = open_tokenizer()
        self._settings = windows
        self._spec = RecordSpec("squad_without_ids", _spec(training).features[1:])
        self._training = training

    def __call__(self, paragraphs: Sequence[Paragraph]) -> EncodedParagraphs:
        """Encodes paragraphs, in order."""
        counts = dict.fromkeys(
            ("questions", "windows", "cut_questions", "impossible_questions", "unusable_answers"), 0
        )
        rows = _Rows(self._tokenizer, self._settings.max_seq_length)
        for paragraph in paragraphs:
            encoding = self._tokenizer.encode_with_offsets(paragraph.context)
            context_ids = np.array(encoding.ids, np.int32)
            for question in paragraph.questions:
                answer = question.answer and tokens_of(encoding, *question.answer)
                if question.answer and not answer:  # only characters that no token stands for
                    counts["unusable_answers"] += 1
                    continue
                question_ids = self._tokenizer.encode(question.text)
                counts["questions"] += 1
                counts["cut_questions"] += len(question_ids) > self._settings.max_query_length
                counts["impossible_questions"] += question.is_impossible
                for window in question_windows(question_ids, len(context_ids), self._settings):
                    rows.add(window, context_ids, answer, question.is_impossible)
        counts["windows"] = len(rows)
        features = rows.features(training=self._training)
        lengths = features["input_mask"].sum(axis=1, dtype=np.int32)
        return EncodedParagraphs(self._spec.encode_batch(features), lengths, counts)


def tokens_of(encoding: Encoding, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that characters [start, end) have a part in, None without any.

    Between tokens (at white space, say) it is the next one from the start, the one before the end.
    """
    first = bisect.bisect_right(encoding.ends, start)
    last = bisect.bisect_left(encoding.starts, end) - 1
    return (first, last) if first <= last else None


class _Rows:
    """Windows that become the features of one batch of records."""

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
        window: Window,
        context_ids: np.ndarray,
        answer: tuple[int, int] | None,
        is_impossible: bool,
    ) -> None:
        """Adds a window of a paragraph; ``answer`` is the first and the last token there."""
        first, last = map(window.position, answer or (-1, -1))
        is_inside = first is not None and last is not None
        self._windows.append((window, context_ids))
        self._positions.append((first, last) if is_inside else (0, 0))
        self._impossible.append(is_impossible)

    def features(self, *, training: bool) -> dict[str, np.ndarray]:
        """Arrays [N, L] by the names of the records' features, without unique_ids."""
        tokenizer, num_positions = self._tokenizer, self._max_seq_length
        input_ids = np.full((len(self), num_positions), tokenizer.pad_id, np.int32)
        for row, (window, context_ids) in zip(input_ids, self._windows):
            offset, end = window.context_offset, window.length - 1
            part = slice(window.first_token, window.first_token + window.num_tokens)
            row[:offset] = [tokenizer.cls_id, *window.question_ids, tokenizer.sep_id]
            row[offset:end] = context_ids[part]
            row[end] = tokenizer.sep_id
        positions = np.arange(num_positions)
        offsets, lengths = (
            np.array([getattr(window, name) for window, _ in self._windows], np.int64)[:, None]
            for name in ("context_offset", "length")
        )
        features = {
            "input_ids": input_ids,
            "input_mask": (positions < lengths).astype(np.uint8),
            "segment_ids": ((positions >= offsets) & (positions < lengths)).astype(np.uint8),
        }
        if training:
            answers = np.array(self._positions, np.int64).reshape(-1, 2)
            features["start_positions"], features["end_positions"] = answers[:, :1], answers[:, 1:]
            features["is_impossible"] = np.array(self._impossible, np.int64)[:, None]
        return features
