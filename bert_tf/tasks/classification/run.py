"""Classification of texts and pairs: fine-tuning on published tasks or own tables, prediction."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.finetune import run as finetuning
from bert_tf.finetune.classes import (
    StoredClasses,
    check_taught,
    check_trained_on,
    log_frequencies,
    read_files,
    stored_classes,
)
from bert_tf.finetune.run import as_stored, first_weights
from bert_tf.finetune.settings import PREDICT, TRAIN
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, TEXT_KINDS, Classes
from bert_tf.model_directory.record import (
    MODEL_RECORD_NAME,
    ModelRecord,
    require_record,
    write_record,
)
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.classification.answers import (
    OWN_PREDICTIONS_NAME,
    PROBABILITIES_NAME,
    Answers,
    labels_of,
    logits_of_texts,
    predictions_name,
    scores,
    write_own_predictions,
    write_predictions,
    write_probabilities,
)
from bert_tf.tasks.classification.features import feature_stage
from bert_tf.tasks.classification.flags import (
    BALANCED,
    ClassificationSettings,
    ThresholdSettings,
)
from bert_tf.tasks.classification.glue import GLUE_TASKS, GlueTask, find_split, read_glue
from bert_tf.tasks.classification.metrics import best_threshold
from bert_tf.tasks.classification.own_files import (
    OWN_PAIRS,
    OWN_TEXTS,
    TableSettings,
    Texts,
    first_fraction,
    own_task,
    read_texts,
    require_same_kind,
)
from bert_tf.tasks.classification.report import write_report
from bert_tf.tasks.classification.task import CLS, ClassificationLoss, ClassificationTask, Pooling
from bert_tf.tasks.classification.texts import TextFile, TextTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.checks import check_trains
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
from bert_tf.util.console import say
from bert_tf.util.errors import UserError


def run(settings: ClassificationSettings, *, pooling: Pooling = CLS) -> Results | None:
    """Trains, evaluates and predicts as the settings say; ``pooling`` is how the head reads."""
    return finetuning.run(functools.partial(TextClassification.open, pooling=pooling), settings)


@dataclasses.dataclass(frozen=True)
class TextClassification(SequenceTask):
    """A class, any number of classes, or a rating for each text or pair of texts.

    The results are the metrics of the task, under google-research/bert's names, and ``eval_loss``,
    the mean of the cross entropies, or of the squared errors in a regression. Where texts may have
    several classes, a run that trains stores the threshold with the model that is best for its
    development file.

    Attributes:
      thresholds_from: the records on which the thresholds of a resumed model were chosen.
    """

    settings: ClassificationSettings
    files: Mapping[str, TextFile]
    task: TextTask
    thresholds_from: str | None
    pooling: Pooling

    @classmethod
    def open(
        cls, settings: ClassificationSettings, run: Run, *, pooling: Pooling = CLS
    ) -> TextClassification:
        """Reads the files of a run and agrees on classes. Collective.

        Raises UserError for bad input.
        """
        # A published task has its own columns and labels.
        settings = as_stored(settings, run, without=TableSettings if settings.task_name else None)
        stored = stored_classes(settings, run, kinds=TEXT_KINDS)
        if settings.glue is not None:
            task, files = _published_files(settings.glue, settings, run, stored)
        else:
            task, files = _own_files(settings, run, stored)
        settings.thresholds.check(task.classes)
        _check_trained_on(run, task)
        return cls(settings, files, task, stored.chosen_on, pooling)

    @property
    def name(self) -> str:
        """The name of the published task, or of own texts or pairs."""
        return self.task.name

    @property
    def classes(self) -> Classes:
        """The classes, as they are stored."""
        return self.task.classes

    @property
    def chosen_on(self) -> str | None:
        """The records on which the thresholds of a resumed model were chosen."""
        return self.thresholds_from

    @property
    def metrics(self) -> Sequence[str]:
        """The task's metrics for each part of the file to evaluate."""
        if self.evaluated in self.files:
            return self.files[self.evaluated].score_names
        return [f"eval_{name}" for name in self.task.metrics]

    @property
    def rate_factors(self) -> tuple[tuple[str, float], ...]:
        """A head of ratings learns in their unit."""
        if self._unit == 1:
            return ()
        return ((rf"^({OUTPUT_WEIGHTS}|{OUTPUT_BIAS})$", self._unit),)

    @property
    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """What the loss on classes depends on."""
        loss = self.settings.loss
        return {} if self.task.is_regression else {"loss": dataclasses.asdict(loss)}

    @property
    def predictions_name(self) -> str:
        """The file with the predictions."""
        return PROBABILITIES_NAME if self.settings.task_name else OWN_PREDICTIONS_NAME

    @functools.cached_property
    def _unit(self) -> float:
        return rating_unit(self.files[TRAIN]) if TRAIN in self.files else 1.0

    def network(self, config: BertConfig) -> ClassificationTask:
        """A head that starts from the best constant answer to the training file."""
        settings, task = self.settings, self.task
        weights: tuple[float, ...] | None = None
        bias: float | tuple[float, ...] = 0.0
        if TRAIN in self.files:
            train = self.files[TRAIN]
            weights = balanced_weights(train) if settings.loss.class_weights == BALANCED else None
            bias = best_constant(train, weights)
        return ClassificationTask(
            config,
            task.classes.num_outputs,
            self.pooling,
            ClassificationLoss(task.classes.kind, weights, settings.loss.label_smoothing),
            bias,
            self._unit,
            None if settings.task_name else task.classes.labels,
        )

    def stage(self, kind: str, tokenizer_files: TokenizerFiles) -> SequenceStage:
        """Only training needs labels in records."""
        return feature_stage(
            self.files[kind],
            tokenizer_files=tokenizer_files,
            max_seq_length=self.settings.max_seq_length,
            training=kind == TRAIN,
            long_texts=self.settings.length,
            num_workers=self.settings.num_workers,
        )

    def decode(self, predicted: Predicted) -> np.ndarray:
        """The logits of texts, each from one sequence or from several windows."""
        return logits_of_texts(predicted.outputs["logits"], predicted.records.records_per_item)

    def score(self, predicted: Predicted, answers: np.ndarray, output_dir: Path) -> Results:
        """The task's metrics and the loss of each part; writes ``report.html``."""
        file, of_model = predicted.file, Answers(predicted.file.task.classes, answers)
        labels, results = labels_of(file), {}
        if file.task.multi_label:
            classes = chosen_thresholds(
                self.settings.thresholds,
                output_dir,
                labels,
                of_model.probabilities,
                digest=predicted.records.digest,
                trains=self.settings.run.do_train,
            )
            of_model = Answers(classes, answers)
        for part in file.parts:
            of_part = Answers(of_model.classes, answers[part.rows])
            named = scores(file.task, of_part, labels[part.rows]).items()
            results.update({part.named(name): value for name, value in named})
        if len(set(of_model.classes.thresholds)) == 1:
            results["eval_threshold"] = of_model.classes.thresholds[0]
        write_report(output_dir, file, of_model, results)
        return results

    def write(self, predicted: Predicted, answers: np.ndarray, output_dir: Path) -> None:
        """Writes the probabilities, and the class or the rating, of each part."""
        file, classes = predicted.file, predicted.file.task.classes
        if file.task.multi_label:
            classes = stored_thresholds(self.settings.thresholds, output_dir)
        for part in file.parts:
            of_part = Answers(classes, answers[part.rows])
            write_probabilities(of_part, output_dir / part.named(PROBABILITIES_NAME))
            if isinstance(file.task, GlueTask):
                path = output_dir / predictions_name(file.task, part)
                write_predictions(file.task, of_part, path)
        if not isinstance(file.task, GlueTask):
            path = output_dir / OWN_PREDICTIONS_NAME
            write_own_predictions(file, Answers(classes, answers), path)

    def about_predictions(self, output_dir: Path) -> Iterator[str]:
        """Also names the files that GLUE takes, if a test set of it was predicted."""
        yield from super().about_predictions(output_dir)
        test = self.files[PREDICT]
        if isinstance(test.task, GlueTask):
            for name in filter(None, (test.task.submission(p.path.name) for p in test.parts)):
                yield f"the file for GLUE is {output_dir / name}"


def _published_files(
    task: GlueTask, settings: ClassificationSettings, run: Run, stored: StoredClasses
) -> tuple[TextTask, dict[str, TextFile]]:
    """The task and its files; tells of lines that were left out."""
    classes = stored.own or stored.taught
    if classes is not None:
        task = task.numbered_as(classes.labels)
    find, read = functools.partial(find_split, task), functools.partial(read_glue, task)
    files = read_files(settings, find=find, read=read)
    for file in files.values():
        if file.skipped_lines:
            lines = f"{file.skipped_lines:,} {'line' if file.skipped_lines == 1 else 'lines'}"
            run.message(f"{file.path.name}: {lines} with too few columns left out")
    return task, files


def _own_files(
    settings: ClassificationSettings, run: Run, stored: StoredClasses
) -> tuple[TextTask, dict[str, TextFile]]:
    """The task that a user's files describe, and the files."""
    texts = {
        kind: read_texts(path, settings.table, flag=f"{kind}_file", needs_labels=kind != PREDICT)
        for kind, path in settings.files.items()
        if path is not None
    }
    classes = _own_classes(texts.get(TRAIN), run, settings.table, stored)
    if classes.kind != REGRESSION:
        check_taught(settings, stored.taught, classes.labels, what="classes")
        fraction = first_fraction(classes.labels) if TRAIN in texts else None
        if fraction is not None:
            run.message(
                f"the {len(classes.labels):,} classes are numbers such as {fraction}; if they are "
                "ratings, give --regression"
            )
    task = own_task(next(iter(texts.values())).columns, settings.table, classes)
    return task, {kind: of_kind.with_numbers(task) for kind, of_kind in texts.items()}


def _own_classes(
    train: Texts | None, run: Run, table: TableSettings, stored: StoredClasses
) -> Classes:
    """The classes of a run.

    A run that resumes or does not train has those stored with its weights, as does one that trains
    further on some of them. Otherwise they are those of the teacher, if it has all of the training
    file's, or else those of that file.
    """
    own, weights = stored.own, first_weights(run)
    names = () if train is None or table.regression else train.classes()
    if own is not None:
        is_subset = bool(names) and set(names) <= set(own.labels)
        if train is None or run.start.checkpoint is not None or is_subset:
            require_same_kind(own, table, source=weights)
            return own
    if train is None and not table.regression:
        if weights is None:
            check_trains(run)
        raise UserError(
            f"{weights} has no {MODEL_RECORD_NAME} next to it, so its classes are unknown; restore "
            "the file, or train with --do_train first."
        )
    taught = stored.taught
    if names and taught is not None and set(names) <= set(taught.labels):
        names = taught.labels
    return Classes.of_texts(table.kind, names)


def _check_trained_on(run: Run, task: TextTask) -> None:
    """Raises UserError if a run would use the head of another task."""
    advice = {each.name: f"give --task_name={each.name}, or " for each in GLUE_TASKS.values()}
    if not isinstance(task, GlueTask):
        advice[OWN_PAIRS] = "give --pair_column, or "
        advice[OWN_TEXTS] = "leave out --pair_column, or "
    same_head = task.same_head if isinstance(task, GlueTask) else ()
    check_trained_on(run, task.name, same_head=same_head, advice=advice)


def stored_thresholds(settings: ThresholdSettings, output_dir: Path) -> Classes:
    """The classes of a model, after the thresholds that the user gave were stored with it."""
    record = require_record(output_dir)
    thresholds = settings.of_classes(record.required_classes)
    if thresholds == record.required_classes.thresholds:
        return record.required_classes
    return _store(record, thresholds, chosen_on=None)


def chosen_thresholds(
    settings: ThresholdSettings,
    output_dir: Path,
    labels: np.ndarray,
    probabilities: np.ndarray,
    *,
    digest: str,
    trains: bool,
) -> Classes:
    """The classes of a model, with the thresholds with which a file is evaluated.

    A run that trains chooses the one that is best for its development file, and so does a run of
    which the user wants it; it is stored with the model. On a file that only tests the model, it
    would make the scores too good. ``labels`` are bool [N, classes], ``probabilities``
    [N, classes]; ``digest`` is that of the file's records.
    """
    record = require_record(output_dir)
    is_own = trains and record.chosen_on in (None, digest)
    if not settings.threshold and (settings.tune_threshold or is_own):
        best = best_threshold(labels, probabilities)
        return _store(record, (best,) * labels.shape[1], chosen_on=digest)
    if trains and not settings.threshold:
        say(
            "the thresholds were chosen on another development file and stay as they are; "
            "--tune_threshold chooses new ones"
        )
    return stored_thresholds(settings, output_dir)


def _store(record: ModelRecord, thresholds: tuple[float, ...], *, chosen_on: str | None) -> Classes:
    classes = Classes(MULTI_LABEL, record.required_classes.labels, thresholds)
    write_record(dataclasses.replace(record, classes=classes, chosen_on=chosen_on))
    return classes


def balanced_weights(file: TextFile) -> tuple[float, ...]:
    """Weights that make up for uneven classes.

    For one class per text N / (classes * texts of the class), as scikit-learn's "balanced"; for
    several, texts without the class / texts with it. A class without texts has weight 1.
    """
    counts, total = file.class_counts, len(file.rows)
    if file.task.multi_label:
        ratios = [(total - count) / count if count else 1.0 for count in counts]
        return tuple(ratio or 1.0 for ratio in ratios)
    return tuple(total / (len(counts) * count) if count else 1.0 for count in counts)


def best_constant(
    file: TextFile, class_weights: tuple[float, ...] | None = None
) -> tuple[float, ...]:
    """The outputs with the least loss on a training set for a network that ignores the text.

    The mean of ratings, the logarithms of the frequencies of classes (:func:`log_frequencies`), or
    the log-odds of each class of several, with one text of weight 1 more per class and answer.
    """
    if file.task.is_regression:
        return (statistics.fmean(file.ratings),)
    counts, total = file.class_counts, len(file.rows)
    weighted = [
        weight * count for weight, count in zip(class_weights or [1.0] * len(counts), counts)
    ]
    if file.task.multi_label:
        pairs = zip(weighted, counts)
        return tuple(math.log((given + 1) / (total - count + 1)) for given, count in pairs)
    return log_frequencies(weighted)


def rating_unit(file: TextFile) -> float:
    """The standard deviation of ratings: 1 if all are equal, and for classes.

    An update changes a weight by about the learning rate, whatever the ratings are. In this unit,
    the head learns a range of 0 to 100 as fast as one of 0 to 5.
    """
    return (statistics.pstdev(file.ratings) if file.ratings else 0.0) or 1.0
