"""Classification of texts and pairs: fine-tuning on published tasks or own tables, prediction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.finetune import run as finetuning
from bert_tf.finetune.classes import (
    StoredClasses,
    check_taught,
    check_trained_on,
    read_files,
    stored_classes,
)
from bert_tf.finetune.run import as_stored, first_weights
from bert_tf.finetune.settings import PREDICT, TRAIN
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import OUTPUT_BIAS, OUTPUT_WEIGHTS
from bert_tf.model_directory.classes import TEXT_KINDS, Classes
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.classification.answers import (
    OWN_PREDICTIONS_NAME,
    PROBABILITIES_NAME,
    Answers,
    labels_of,
    logits_of_texts,
    scores,
    write_own_predictions,
    write_part,
)
from bert_tf.tasks.classification.features import check_length, feature_stage
from bert_tf.tasks.classification.flags import BALANCED, ClassificationSettings
from bert_tf.tasks.classification.glue import GLUE_TASKS, GlueTask, find_split, read_glue
from bert_tf.tasks.classification.losses import (
    ClassificationLoss,
    balanced_weights,
    best_constant,
    rating_unit,
)
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
from bert_tf.tasks.classification.task import CLS, ClassificationTask, Pooling
from bert_tf.tasks.classification.text_task import TextFile, TextTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.checks import check_trains
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
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
      stored: what is stored of ``task`` with the model.
      thresholds_from: the records on which the thresholds of a resumed model were chosen.
    """

    settings: ClassificationSettings
    files: Mapping[str, TextFile]
    task: TextTask
    stored: Classes
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
        known = stored_classes(settings, run, kinds=TEXT_KINDS)
        if settings.glue is not None:
            task, files, stored = _published_files(settings.glue, settings, run, known)
        else:
            task, files, stored = _own_files(settings, run, known)
        settings.thresholds.check(task.classes, multi_label=task.multi_label)
        _check_trained_on(run, task)
        return cls(settings, files, task, stored, known.chosen_on, pooling)

    @property
    def name(self) -> str:
        """The name of the published task, or of own texts or pairs."""
        return self.task.name

    @property
    def classes(self) -> Classes:
        """The classes, as they are stored."""
        return self.stored

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

    def fitted(self, run: Run, max_seq_length: int) -> TextClassification:
        """With room for the texts."""
        check_length(self.task, max_seq_length)
        return super().fitted(run, max_seq_length)

    def most_records(self) -> int:
        """One for each row; windows of long texts count as one."""
        return len(self.files[TRAIN].rows)

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
            task.num_outputs,
            self.pooling,
            ClassificationLoss(task.kind, weights, settings.loss.label_smoothing),
            bias,
            self._unit,
            None if settings.task_name else self.stored.labels,
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

    def decode(self, predicted: Predicted) -> Answers:
        """The predictions of texts, each from one sequence or from several windows."""
        windows = predicted.records.records_per_item
        return Answers(predicted.file.task, logits_of_texts(predicted.outputs["logits"], windows))

    def score(self, predicted: Predicted, answers: Answers, output_dir: Path) -> Results:
        """The task's metrics and the loss of each part; writes ``report.html``."""
        file, found = predicted.file, {}
        labels = labels_of(file)
        if file.task.multi_label:
            thresholds = self.settings.thresholds.chosen(
                output_dir,
                labels,
                answers.probabilities,
                digest=predicted.records.digest,
                trains=self.settings.run.do_train,
            )
            answers = dataclasses.replace(answers, thresholds=thresholds)
            if len(set(thresholds)) == 1:
                found["eval_threshold"] = thresholds[0]
        results = {}
        for part in file.parts:
            of_part = scores(answers.of(part.rows), labels[part.rows])
            results.update({part.named(name): value for name, value in of_part.items()})
        results.update(found)
        write_report(output_dir, file, answers, results)
        return results

    def write(self, predicted: Predicted, answers: Answers, output_dir: Path) -> None:
        """Writes the probabilities, and the class or the rating, of each part."""
        file = predicted.file
        if file.task.multi_label:
            thresholds = self.settings.thresholds.stored(output_dir)
            answers = dataclasses.replace(answers, thresholds=thresholds)
        for part in file.parts:
            write_part(answers.of(part.rows), part, output_dir)
        if not isinstance(file.task, GlueTask):
            write_own_predictions(file, answers, output_dir / OWN_PREDICTIONS_NAME)

    def about_predictions(self, output_dir: Path) -> Iterator[str]:
        """Also names the files that GLUE takes, if a test set of it was predicted."""
        yield from super().about_predictions(output_dir)
        test = self.files[PREDICT]
        if isinstance(test.task, GlueTask):
            for name in filter(None, (test.task.submission(p.path.name) for p in test.parts)):
                yield f"the file for GLUE is {output_dir / name}"


def _published_files(
    task: GlueTask, settings: ClassificationSettings, run: Run, known: StoredClasses
) -> tuple[TextTask, dict[str, TextFile], Classes]:
    """The task, its files, and what is stored of it; tells of lines that were left out."""
    classes = known.own or known.taught
    if classes is not None:
        task = task.numbered_as(classes.labels)
    find, read = functools.partial(find_split, task), functools.partial(read_glue, task)
    files = read_files(settings, find=find, read=read)
    for file in files.values():
        if file.skipped_lines:
            lines = f"{file.skipped_lines:,} {'line' if file.skipped_lines == 1 else 'lines'}"
            run.message(f"{file.path.name}: {lines} with too few columns left out")
    return task, files, task.stored_classes


def _own_files(
    settings: ClassificationSettings, run: Run, known: StoredClasses
) -> tuple[TextTask, dict[str, TextFile], Classes]:
    """The task that a user's files describe, the files, and what is stored of it."""
    table, stored = settings.table, known.own
    texts = {
        kind: read_texts(path, table, flag=f"{kind}_file", needs_labels=kind != PREDICT)
        for kind, path in settings.files.items()
        if path is not None
    }
    train = texts.get(TRAIN)
    if stored is not None and (train is None or run.start.checkpoint is not None):
        require_same_kind(stored, table, source=first_weights(run))
    names: tuple[str, ...] = ()
    if not table.regression:
        names = _agree_on_classes(train, run, table, known)
        check_taught(settings, known.taught, names, what="classes")
        fraction = first_fraction(names) if train is not None else None
        if fraction is not None:
            run.message(
                f"the {len(names):,} classes are numbers such as {fraction}; if they are ratings, "
                "give --regression"
            )
    task = own_task(next(iter(texts.values())).columns, table, names)
    classes = task.stored_classes
    if stored is not None and stored.labels == names:
        classes = dataclasses.replace(classes, thresholds=stored.thresholds)
    return task, {kind: found.with_numbers(task) for kind, found in texts.items()}, classes


def _agree_on_classes(
    train: Texts | None, run: Run, table: TableSettings, known: StoredClasses
) -> tuple[str, ...]:
    """The classes of a run, by number.

    A run that resumes or does not train has those stored with its weights, as does one that trains
    further on some of them. Otherwise they are those of the teacher, if it has all of the training
    file's, or else those of that file.
    """
    own, stored, taught = None if train is None else train.classes(), known.own, known.taught
    weights = first_weights(run)
    if stored is not None and (
        own is None or run.start.checkpoint is not None or set(own) <= set(stored.labels)
    ):
        require_same_kind(stored, table, source=weights)
        return stored.labels
    if own is not None and taught is not None and set(own) <= set(taught.labels):
        return taught.labels
    if own is not None:
        return own
    if weights is None:
        check_trains(run)
    raise UserError(
        f"{weights} has no {MODEL_RECORD_NAME} next to it, so its classes are unknown; restore the "
        "file, or train with --do_train first."
    )


def _check_trained_on(run: Run, task: TextTask) -> None:
    """Raises UserError if a run would use the head of another task."""
    advice = {known.name: f"give --task_name={known.name}, or " for known in GLUE_TASKS.values()}
    if not isinstance(task, GlueTask):
        advice[OWN_PAIRS] = "give --pair_column, or "
        advice[OWN_TEXTS] = "leave out --pair_column, or "
    same_head = task.same_head if isinstance(task, GlueTask) else ()
    check_trained_on(run, task.name, same_head=same_head, advice=advice)
