"""Labelling words: fine-tuning on CoNLL's files, scores and predictions."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from bert_tf.finetune import run as finetuning
from bert_tf.finetune.classes import (
    check_taught,
    check_trained_on,
    log_frequencies,
    read_files,
    stored_classes,
)
from bert_tf.finetune.run import as_stored, first_weights
from bert_tf.finetune.settings import EVAL, PREDICT, TRAIN
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.classes import WORD_LABELS, Classes
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.records.layouts import WORD_STARTS
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.tagging.chunks import (
    Counts,
    are_of_entities,
    count_entities,
    total,
    without_prefix,
    without_type,
)
from bert_tf.tasks.tagging.files import (
    TaggedFile,
    WindowSettings,
    check_labels,
    feature_stage,
    find_split,
    predicted_labels,
    read_tagged,
    unknown_labels,
    with_predictions,
)
from bert_tf.tasks.tagging.flags import TaggingSettings
from bert_tf.tasks.tagging.report import write_report
from bert_tf.tasks.tagging.task import CROSS_ENTROPIES, TAGGING_HEAD, TaggingTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.checks import check_has_heads, check_trains
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import atomic_open, write_json

ENTITIES_NAME = "eval_entities.json"

_MOST_USED_ONCE = 36  # labels; with more, the columns of the training file may be swapped


def run(settings: TaggingSettings) -> Results | None:
    """Trains, evaluates and predicts as the settings say (see :func:`bert_tf.finetune.run.run`)."""
    return finetuning.run(Tagging.open, settings)


@dataclasses.dataclass(frozen=True)
class Tagging(SequenceTask):
    """One label for each word of a sentence.

    The results are ``eval_accuracy`` of words and ``eval_loss``, the mean cross entropy of words
    whose label the model has. If the file's labels mark entities, there are also
    ``eval_precision``, ``eval_recall`` and ``eval_f1``, and a file with the scores of each type.
    """

    settings: TaggingSettings
    files: Mapping[str, TaggedFile]
    labels: tuple[str, ...]  # by class number

    # Where classification has the name of a GLUE task.
    name: ClassVar[str] = "labels of words"
    predictions_name: ClassVar[str] = "predictions.txt"

    @classmethod
    def open(cls, settings: TaggingSettings, run: Run) -> Tagging:
        """Reads the files of a run and agrees on labels. Collective.

        Raises UserError for bad input, and if there is nothing to train or evaluate.
        """
        settings = as_stored(settings, run)
        _windows(settings).validate()
        check_trained_on(run, cls.name)
        files = read_files(settings, find=find_split, read=read_tagged)
        labels = _agree_on_labels(settings, run, files.get(TRAIN))
        if TRAIN in files:
            _check_training_file(files[TRAIN], labels, run)
        if EVAL in files:
            _check_development_file(files[EVAL], labels, run)
        return cls(settings, files, labels)

    @property
    def classes(self) -> Classes:
        """The labels, as they are stored."""
        return Classes(WORD_LABELS, self.labels)

    @property
    def metrics(self) -> Sequence[str]:
        """F1 of entities, if the labels to predict mark some."""
        has_entities = self.evaluated in self.files and self._has_entities
        return ["eval_f1" if has_entities else "eval_accuracy"]

    @functools.cached_property
    def _has_entities(self) -> bool:
        return are_of_entities(self.files[EVAL].labels)

    def network(self, config: BertConfig) -> TaggingTask:
        """A head whose bias starts from the frequencies of the labels, as classifiers' do."""
        bias: float | tuple[float, ...] = 0.0
        if TRAIN in self.files:
            counts = self.files[TRAIN].label_counts
            bias = log_frequencies([counts[label] for label in self.labels])
        return TaggingTask(config, len(self.labels), bias)

    def stage(self, kind: str, tokenizer_files: TokenizerFiles) -> SequenceStage:
        """A file to evaluate has labels too, for the loss."""
        return feature_stage(
            self.files[kind],
            tokenizer_files=tokenizer_files,
            windows=_windows(self.settings),
            labels=None if kind == PREDICT else self.labels,
            num_workers=self.settings.num_workers,
        )

    def decode(self, predicted: Predicted) -> TaggedSentences:
        """The predicted labels of each sentence, and the cross entropies of words with labels."""
        outputs, losses = predicted.outputs, np.zeros(0, np.float32)
        if CROSS_ENTROPIES in outputs:
            losses = outputs[CROSS_ENTROPIES][outputs[WORD_STARTS] > 0]
        words = [sentence.words for sentence in predicted.file.sentences]
        return TaggedSentences(predicted_labels(words, self.labels, outputs), losses)

    def score(self, predicted: Predicted, answers: TaggedSentences, output_dir: Path) -> Results:
        """The scores and the loss; writes the report and the scores of every entity type."""
        file, labels, losses = predicted.file, answers.labels, answers.losses
        counts = None
        if self._has_entities:
            counts = count_entities((sentence.labels for sentence in file.sentences), labels)
            table = {kind: {**each.scores, **each._asdict()} for kind, each in counts.items()}
            write_json(output_dir / ENTITIES_NAME, table)
        is_in_model = [label in self.labels for s in file.sentences for label in s.labels]
        loss = float(losses[is_in_model].mean(dtype=np.float64))
        results = {**scores(file, labels, counts), "eval_loss": loss}
        write_report(output_dir, file, labels, np.where(is_in_model, losses, 0.0), results)
        return results

    def write(self, predicted: Predicted, answers: TaggedSentences, output_dir: Path) -> None:
        """Writes the file's lines with the predicted labels."""
        lines = with_predictions(predicted.file, answers.labels)
        with atomic_open(output_dir / self.predictions_name) as output:
            output.writelines(f"{line}\n" for line in lines)


class TaggedSentences(NamedTuple):
    """What is predicted of a file's sentences.

    Attributes:
      labels: the predicted labels of each.
      losses: the words' cross entropies, float32 [words of all sentences]; empty without labels.
    """

    labels: list[list[str]]
    losses: np.ndarray


def scores(
    file: TaggedFile, predicted: Sequence[Sequence[str]], counts: Mapping[str, Counts] | None
) -> dict[str, float]:
    """The accuracy of words and, if ``counts`` is given, the scores over all entity types."""
    pairs = zip(file.sentences, predicted)
    correct = sum(sum(map(operator.eq, sentence.labels, guessed)) for sentence, guessed in pairs)
    results = {} if counts is None else total(counts.values()).scores
    results["accuracy"] = correct / file.num_words
    return {f"eval_{name}": value for name, value in results.items()}


def _windows(settings: TaggingSettings) -> WindowSettings:
    return WindowSettings(settings.max_seq_length, settings.doc_stride)


def _check_training_file(file: TaggedFile, labels: Sequence[str], run: Run) -> None:
    """Raises UserError for labels that the model lacks or that contradict each other, or one only.

    Also says if the columns may be swapped.
    """
    check_labels(file, labels)
    if len(labels) < 2:
        raise UserError(
            f"--{file.flag}: {file.path} has only the label {short_repr(*labels)}, so there is "
            "nothing to distinguish; give a file with two labels or more."
        )
    _check_scheme(file, run)
    rare = {label for label, count in file.label_counts.items() if count == 1}
    if len(rare) > _MOST_USED_ONCE:
        line, label = file.first_use(rare)
        run.warn(
            f"{file.path.name}: {len(rare):,} of {len(file.labels):,} labels are used once, such "
            f"as {short_repr(label)} (line {line}); the label must be the last column of a line, "
            "and the word the first"
        )


def _check_development_file(file: TaggedFile, labels: Sequence[str], run: Run) -> None:
    """Says which labels the model lacks; raises UserError if it has none of the file's."""
    unknown = unknown_labels(file, labels)
    if len(unknown) == len(file.labels):
        check_labels(file, labels)
    if unknown:
        shown = ", ".join(f"{label} of {count:,} words" for label, count in unknown.items())
        run.message(
            f"{file.path.name}: the model does not have the labels {shown}; these words count as "
            "wrong, and not in eval_loss"
        )
    _check_scheme(file, run)


def _check_scheme(file: TaggedFile, run: Run) -> None:
    """Says if labels keep a file from being scored by entities; raises UserError for a mixture."""
    untyped, unprefixed = without_type(file.labels), without_prefix(file.labels)
    if untyped:
        line, label = file.first_use(untyped)
        raise UserError(
            f"--{file.flag}: line {line} of {file.path} has the label {label!r} without a type, "
            "which the labels of other lines have; correct it."
        )
    if unprefixed:
        line, label = file.first_use(unprefixed)
        run.message(
            f"{file.path.name}: the label {short_repr(label)} (line {line}) has none of the "
            "prefixes B-, I- (M-), E- (L-) and S- (U-), so there is the accuracy of words but no "
            "F1 of entities"
        )


def _agree_on_labels(
    settings: TaggingSettings, run: Run, train: TaggedFile | None
) -> tuple[str, ...]:
    """The labels of a run, by class number. Collective.

    They are those stored with the weights that the run starts from; or else the teacher's, since
    soft targets compare classes; or else those of the training file, sorted. Raises UserError if
    there is nothing to train or evaluate, and if labels contradict each other.
    """
    own, taught, _ = stored_classes(settings, run, kinds=(WORD_LABELS,))
    if own is not None:
        check_taught(settings, taught, own.labels, what="labels")
        return own.labels
    if run.start.checkpoint is not None:
        raise UserError(
            f"{run.start.checkpoint} has no {MODEL_RECORD_NAME} next to it, so its labels are "
            "unknown; restore the file, or choose another --output_dir."
        )
    weights = first_weights(run)
    if weights is None:
        check_trains(run)
    else:
        check_has_heads(weights, [TAGGING_HEAD], run)
    if taught is not None:
        return taught.labels
    return tuple(train.labels if train is not None else ())
