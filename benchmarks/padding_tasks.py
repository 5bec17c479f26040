"""What padding is measured on: real files as arrays, with their networks and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_tf.config.bert_config import INPUTS, BertConfig
from bert_tf.glue.formats import GLUE_TASKS, read_rows, sequence_of
from bert_tf.glue.metrics import METRICS
from bert_tf.model.task import Task
from bert_tf.records.layouts import decode_example
from bert_tf.records.tfrecord import RecordSet
from bert_tf.squad.answers import AnswerSettings, SpanCandidates, decode_answers
from bert_tf.squad.examples import read_squad
from bert_tf.squad.features import build_features
from bert_tf.squad.metrics import evaluate
from bert_tf.squad.windows import WindowSettings
from bert_tf.tasks.classification_task import LABELS, ClassificationTask
from bert_tf.tasks.span_task import SpanTask
from bert_tf.text.loading import load_tokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles

Batch = dict[str, np.ndarray]


class Sequences(NamedTuple):
    """A file's examples.

    Attributes:
      features: ``INPUTS`` [N, S] integers, padded to S; labels [N, ...].
      lengths: [N], the tokens of each.
    """

    features: Mapping[str, np.ndarray]
    lengths: np.ndarray

    def batch(self, indices: np.ndarray, positions: int) -> Batch:
        """The features of some of them, cut to so many positions."""
        rows = {name: values[indices] for name, values in self.features.items()}
        return {n: v[:, :positions] if n in INPUTS else v for n, v in rows.items()}

    def spread(self, most: int) -> Sequences:
        """So many of them, evenly spread; all where there are no more."""
        total = len(self.lengths)
        kept = np.arange(min(most, total)) * total // min(most, total)
        features = {name: values[kept] for name, values in self.features.items()}
        return Sequences(features, self.lengths[kept])


class Case(Protocol):
    """A fine-tuning with real data.

    Attributes:
      name: in tables.
      max_seq_length: positions that the padded form has.
      batch_size: sequences of an update and of a prediction.
      train, dev: what to learn and what to predict.
    """

    name: str
    max_seq_length: int
    batch_size: int
    train: Sequences
    dev: Sequences

    def task(self, config: BertConfig) -> Task:
        """What is trained and predicted."""

    def answers(self, predictions: Mapping[str, np.ndarray]) -> list[Any]:
        """What is said of each example of ``dev``, from the predictions of all of it."""

    def scores(self, answers: Sequence[Any]) -> dict[str, float]:
        """Name of a score -> its value in percent."""


class SpanCase:
    """SQuAD, in the windows of run_squad.py."""

    name = "squad"

    def __init__(
        self,
        train_file: Path,
        dev_file: Path,
        *,
        vocab_file: Path,
        work_dir: Path,
        max_seq_length: int,
        batch_size: int,
    ) -> None:
        """Reads the files; their records are kept in ``work_dir``."""
        self.max_seq_length, self.batch_size = max_seq_length, batch_size
        self._tokenizer = load_tokenizer(vocab_file=vocab_file, do_lower_case=True)
        self._windows = WindowSettings(
            max_seq_length,
            doc_stride=min(128, max_seq_length // 3),
            max_query_length=min(64, max_seq_length // 4),
        )
        files = {"squad_train_file": train_file, "squad_predict_file": dev_file}
        loaded = []
        for flag, path in files.items():
            training = flag == "squad_train_file"
            self._squad = read_squad(
                path, flag=flag, version_2_with_negative=False, needs_answers=training
            )
            features = build_features(
                self._squad,
                work_dir / f"{path.stem}-{max_seq_length}",
                tokenizer_files=TokenizerFiles(vocab_file),
                windows=self._windows,
                training=training,
            )
            records = RecordSet(features.files).read(list(range(len(features.lengths))))
            labels = ("start_positions", "end_positions") if training else ()
            loaded.append(Sequences(_columns(records, (*INPUTS, *labels)), features.lengths))
        self.train, self.dev = loaded

    def task(self, config: BertConfig) -> Task:
        """As in :class:`Case`."""
        return SpanTask(config, num_candidates=AnswerSettings.n_best_size)

    def answers(self, predictions: Mapping[str, np.ndarray]) -> list[str]:
        """As in :class:`Case`: a text for each question."""
        candidates = SpanCandidates(**predictions)
        settings = AnswerSettings()
        found = decode_answers(self._squad, self._tokenizer, self._windows, candidates, settings)
        return list(found.answers.values())

    def scores(self, answers: Sequence[str]) -> dict[str, float]:
        """As in :class:`Case`."""
        ids = (example.question_id for example in self._squad.examples)
        found = evaluate(self._squad, dict(zip(ids, answers)))
        return {name: found[name] for name in ("exact_match", "f1")}


class SentenceCase:
    """One of GLUE's, by google-research/bert's sequences."""

    def __init__(
        self,
        name: str,
        glue_dir: Path,
        *,
        tokenizer: Tokenizer,
        max_seq_length: int,
        batch_size: int,
    ) -> None:
        """Reads the files."""
        self.name = name
        self.max_seq_length, self.batch_size = max_seq_length, batch_size
        self._glue = GLUE_TASKS[name]
        self.train, self.dev = (
            self._read(glue_dir / path, tokenizer) for path in (self._glue.train, self._glue.dev)
        )

    def _read(self, path: Path, tokenizer: Tokenizer) -> Sequences:
        rows = read_rows(self._glue, path, flag="glue_dir")
        found = [sequence_of(row, tokenizer, self.max_seq_length) for row in rows]
        lengths = np.array([len(ids) for ids, _ in found], np.int32)
        features = {name: np.zeros((len(rows), self.max_seq_length), np.int32) for name in INPUTS}
        features["input_ids"] += tokenizer.pad_id
        features["input_mask"] += np.arange(self.max_seq_length) < lengths[:, None]
        for row, (ids, segments) in enumerate(found):
            features["input_ids"][row, : len(ids)] = ids
            features["segment_ids"][row, : len(ids)] = segments
        labels = np.array([row.label for row in rows], np.float32)
        return Sequences({**features, LABELS: labels}, lengths)

    def task(self, config: BertConfig) -> Task:
        """As in :class:`Case`."""
        return ClassificationTask(config, self._glue.classes)

    def answers(self, predictions: Mapping[str, np.ndarray]) -> list[float]:
        """As in :class:`Case`: a class's number, or a rating to a tenth."""
        logits = predictions["logits"]
        if self._glue.classes == 1:
            return [round(float(rating), 1) for rating in logits[:, 0]]
        return logits.argmax(axis=1).tolist()

    def scores(self, answers: Sequence[float]) -> dict[str, float]:
        """As in :class:`Case`."""
        score = METRICS[self._glue.metric]
        return {self._glue.metric: score(self.dev.features[LABELS], np.array(answers))}


def _columns(records: Sequence[bytes], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Some features of records, int32 [N, ...]."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for record in records:
        decoded = decode_example(record)
        for name, column in columns.items():
            column.append(decoded[name])
    return {name: np.array(column, np.int32) for name, column in columns.items()}
