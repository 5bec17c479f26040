"""Pre-training with a teacher; runs without one do not import this module."""

from __future__ import annotations

import dataclasses

from bert_tf.input.pipeline import PretrainingRecords
from bert_tf.tasks.distillation.kept_targets import TargetFiles, make_targets
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import DistillationTask
from bert_tf.tasks.distillation.teacher import (
    Teacher,
    check_vocabulary,
    open_teacher,
    student_config,
    with_teacher,
)
from bert_tf.tasks.pretraining.data import RunRecords
from bert_tf.tasks.pretraining.network import Inherited
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.train.job import RunModel
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.errors import UserError


def open_teacher_of(distillation: DistillationSettings, run: Run, records: RunRecords) -> Teacher:
    """Opens the teacher; UserError if it is damaged or does not suit the records. Collective."""
    teacher = open_teacher(distillation, run)
    records.check_positions(teacher.config, "the teacher's")
    vocabulary = records.vocabulary
    if vocabulary is not None and run.ranks.is_chief:
        digest = vocabulary.entry.digest
        check_vocabulary(teacher, vocabulary_named_in(vocabulary.manifest_file, digest))
    return teacher


def student_of(distillation: DistillationSettings, teacher: Teacher) -> Inherited:
    """A teacher's architecture, with fewer layers, and its vocabulary."""
    return Inherited(student_config(distillation, teacher.config), teacher.files.tokenizer_files)


def distilled(
    distillation: DistillationSettings, run: Run, model: RunModel, teacher: Teacher
) -> RunModel:
    """Makes ``model`` a student of ``teacher`` (see ``teacher.with_teacher``)."""
    if not isinstance(model.task, PretrainingTask):
        raise UserError(
            "a teacher is only for BERT's own heads; drop the teacher or the other objective."
        )
    scores_all = distillation.alpha_ce > 0 and not distillation.restrict_ce_to_mask
    task = DistillationTask(
        dataclasses.replace(model.task, score_all_tokens=scores_all, whole_scores=True),
        PretrainingTask(teacher.config, next_sentence=False, score_all_tokens=scores_all),
        distillation,
    )
    return with_teacher(model, teacher, task, run)


def cached_targets(
    model: RunModel, teacher: Teacher, records: PretrainingRecords, run: Run, arithmetic: Arithmetic
) -> TargetFiles | None:
    """The teacher's soft targets of ``records``, made for its network; None if none are cached."""
    task = model.task
    assert isinstance(task, DistillationTask), "it has a teacher"
    directory = task.settings.teacher_cache
    if directory is None:
        return None
    return make_targets(task, teacher, records, directory, run, arithmetic)
