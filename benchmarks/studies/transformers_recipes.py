"""Fine-tuning with the recipes of transformers' run_glue.py and run_ner.py.

Without the bookkeeping of the library's Trainer: batches in random order that are padded to their
longest sequence, AdamW without weight decay, a rate that falls linearly from the first update,
gradients clipped to a norm of 1, float32 or the Trainer's ``--bf16``. Predictions are scored by our
rules.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import transformers

from benchmarks.speed.huggingface import autocast, parameter_groups
from benchmarks.studies.fine_tuning_jobs import FineTuningJob, read_sets
from bert_tf.model_directory.classes import Classes
from bert_tf.tasks.classification.answers import Answers, labels_of, scores
from bert_tf.tasks.classification.metrics import best_threshold
from bert_tf.tasks.classification.texts import TextFile
from bert_tf.tasks.tagging.chunks import count_entities, total
from bert_tf.tasks.tagging.files import Sentence, TaggedFile

_CLIP_NORM = 1.0  # the Trainer's
_PREDICT_BATCH_SIZE = 8  # the Trainer's
_NO_LABEL = -100

Row = dict[str, Any]


class Recipe(Protocol):
    """What depends on the task."""

    def model(self, directory: str) -> torch.nn.Module:
        """The network, with a new head."""

    def rows(self, length: int) -> list[Row]:
        """The training set, encoded with labels."""

    def collator(self) -> Any:
        """What pads rows to a batch."""

    def score(self, model: torch.nn.Module, length: int) -> float:
        """The figure of the task on the development set."""


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """A training; returns ``score`` and ``sequences_per_second``.

    ``settings`` of the request has the ``precision``, fp32 or bf16.
    """
    job, precision = FineTuningJob.from_json(request), request["settings"]["precision"]
    transformers.set_seed(job.seed)
    torch.set_num_threads(job.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.model_dir, use_fast=True)
    train_set, dev_set = read_sets(job)
    recipe: Recipe = (
        _Words(tokenizer, train_set, dev_set)
        if isinstance(train_set, TaggedFile)
        else _Texts(tokenizer, train_set, dev_set)
    )
    model = recipe.model(job.model_dir).train()
    rows, pad = recipe.rows(job.seq_length), recipe.collator()
    updates = round(job.epochs * -(-len(rows) // job.batch_size))
    groups = parameter_groups(model, weight_decay=0.0)
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, updates)
    sequences, started = 0, 0.0
    for number, chosen in enumerate(itertools.islice(_batches(len(rows), job.batch_size), updates)):
        batch = pad([rows[index] for index in chosen])
        with autocast(precision):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number:
            sequences += len(chosen)
        else:
            started = time.monotonic()
    rate = sequences / (time.monotonic() - started)
    with autocast(precision):
        score = recipe.score(model.eval(), job.seq_length)
    return {"score": score, "sequences_per_second": rate}


def _batches(num_rows: int, batch_size: int) -> Iterator[list[int]]:
    """Endless epochs, each in a new order."""
    while True:
        for chosen in torch.randperm(num_rows).split(batch_size):
            yield chosen.tolist()


def _logits(model: Any, tokenizer: Any, rows: Sequence[Row]) -> Iterator[np.ndarray]:
    """The outputs for each row, padded to its batch."""
    for first in range(0, len(rows), _PREDICT_BATCH_SIZE):
        batch = list(rows[first : first + _PREDICT_BATCH_SIZE])
        with torch.inference_mode():
            yield from model(**tokenizer.pad(batch, return_tensors="pt")).logits.float().numpy()


class _Texts:
    """Classes or ratings of texts, as in run_glue.py and run_classification.py."""

    def __init__(self, tokenizer: Any, train: TextFile, dev: TextFile) -> None:
        self._tokenizer, self._train, self._dev = tokenizer, train, dev

    def model(self, directory: str) -> Any:
        task = self._train.task
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            directory, num_labels=task.classes.num_outputs, problem_type=task.classes.kind
        )

    def rows(self, length: int) -> list[Row]:
        labels = labels_of(self._train)
        if self._train.task.classes.kind == "single_label_classification":
            labels = labels.astype(np.int64)
        rows = self._encoded(self._train, length)
        return [{**row, "labels": label} for row, label in zip(rows, labels.tolist())]

    def collator(self) -> Any:
        pad = transformers.DataCollatorWithPadding(self._tokenizer)
        if self._train.task.classes.kind == "single_label_classification":
            return pad

        def with_floats(rows: Sequence[Row]) -> Any:
            batch = pad(rows)
            return {**batch, "labels": batch["labels"].float()}

        return with_floats

    def score(self, model: torch.nn.Module, length: int) -> float:
        rows, labels = self._encoded(self._dev, length), labels_of(self._dev)
        task = self._dev.task
        answers = Answers(task.classes, np.stack([*_logits(model, self._tokenizer, rows)]))
        if task.multi_label:
            threshold = best_threshold(labels, answers.probabilities)
            classes = Classes.of_texts(task.classes.kind, task.classes.labels, threshold)
            answers = Answers(classes, answers.logits)
        return next(iter(scores(task, answers, labels).values()))

    def _encoded(self, file: TextFile, length: int) -> list[Row]:
        pairs = [row.sentences for row in file.rows]
        encoded = self._tokenizer(
            *(list(texts) for texts in zip(*pairs)), truncation=True, max_length=length
        )
        return [{name: encoded[name][index] for name in encoded} for index in range(len(pairs))]


class _Words:
    """Labels of words, at their first pieces, as in run_ner.py."""

    def __init__(self, tokenizer: Any, train: TaggedFile, dev: TaggedFile) -> None:
        self._tokenizer, self._train, self._dev = tokenizer, train, dev

    def model(self, directory: str) -> Any:
        return transformers.AutoModelForTokenClassification.from_pretrained(
            directory, num_labels=len(self._train.labels)
        )

    def rows(self, length: int) -> list[Row]:
        numbers = {label: number for number, label in enumerate(self._train.labels)}
        rows = []
        for row, words, sentence in self._encoded(self._train.sentences, length):
            first = [word is not None and word != last for last, word in zip([None, *words], words)]
            labels = [
                numbers[sentence.labels[word]] if is_first else _NO_LABEL
                for word, is_first in zip(words, first)
            ]
            rows.append({**row, "labels": labels})
        return rows

    def collator(self) -> Any:
        return transformers.DataCollatorForTokenClassification(self._tokenizer)

    def score(self, model: torch.nn.Module, length: int) -> float:
        """F1 of entities; words that were cut off have no label."""
        encoded = [*self._encoded(self._dev.sentences, length)]
        outputs = _logits(model, self._tokenizer, [row for row, _, _ in encoded])
        found = []
        for (_, words, sentence), logits in zip(encoded, outputs):
            labels = ["O"] * len(sentence.words)
            for place, word in reversed([*enumerate(words)]):
                if word is not None:
                    labels[word] = self._train.labels[logits[place].argmax()]
            found.append(labels)
        counts = count_entities((sentence.labels for sentence in self._dev.sentences), found)
        return total(counts.values()).scores["f1"]

    def _encoded(
        self, sentences: Sequence[Sentence], length: int
    ) -> Iterator[tuple[Row, list[int | None], Sentence]]:
        """Each sentence, cut off at a length, with the word of each of its tokens."""
        encoded = self._tokenizer(
            [sentence.words for sentence in sentences],
            is_split_into_words=True,
            truncation=True,
            max_length=length,
        )
        for index, sentence in enumerate(sentences):
            row = {name: encoded[name][index] for name in encoded}
            yield row, encoded.word_ids(index), sentence
