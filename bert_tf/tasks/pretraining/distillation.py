"""Pre-training with a teacher; runs without one do not import this module."""

from __future__ import annotations

import dataclasses

from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.distillation.kept_targets import TargetFiles, TargetSource, make_targets
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.teacher import (
    Teacher,
    check_vocabulary,
    open_teacher,
    student_config,
    with_teacher,
)
from bert_tf.tasks.pretraining.data import RunRecords
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.job import RunModel
from bert_tf.train.run import Run


def open_student(
    settings: PretrainingSettings, run: Run, records: RunRecords
) -> tuple[Teacher, PretrainingSettings]:
    """The teacher, and settings that determine the student's network. Collective.

    Raises UserError if the teacher cannot be read or does not suit the records.
    """
    teacher = open_teacher(settings.distillation, run)
    records.check_positions(teacher.config, "the teacher's")
    return teacher, _with_students_network(settings, teacher, run, records.vocabulary)


def _with_students_network(
    settings: PretrainingSettings,
    teacher: Teacher,
    run: Run,
    records: RecordVocabulary | None,
) -> PretrainingSettings:
    """The student's settings; without an architecture of its own, it gets the teacher's, smaller.

    Only rank 0 needs the result. Raises UserError if ``records`` and the teacher have different
    vocabularies.
    """
    files = settings.tokenizer_files
    if run.ranks.is_chief:
        if records is not None:
            used = vocabulary_named_in(records.manifest_file, records.entry.sha256)
            check_vocabulary(teacher, used)
        files = files.with_vocabulary_of(teacher.files.tokenizer_files)
    network = settings.network
    has_weights = run.start.checkpoint or settings.run.start.init_checkpoint
    if not (has_weights or settings.bert_config_file):
        network = {**student_config(settings.distillation, teacher.config).to_dict(), **network}
    return dataclasses.replace(settings, tokenizer_files=files, network=network)


def distilled(
    distillation: DistillationSettings, run: Run, model: RunModel, teacher: Teacher
) -> RunModel:
    """Makes ``model`` a student of ``teacher`` (see ``teacher.with_teacher``)."""
    scores_all = distillation.alpha_ce > 0 and not distillation.restrict_ce_to_mask
    task = dataclasses.replace(model.task, score_all_tokens=scores_all)
    teacher_task = PretrainingTask(teacher.config, next_sentence=False, score_all_tokens=scores_all)
    student = with_teacher(
        dataclasses.replace(model, task=task),
        teacher,
        teacher_task,
        distillation,
        run,
    )
    return dataclasses.replace(student, evaluated=model.task)


def targets_of(
    model: RunModel,
    teacher: Teacher,
    records: RunRecords,
    distillation: DistillationSettings,
    run: Run,
    arithmetic: Arithmetic,
) -> TargetFiles:
    """The cached soft targets of all training records. Collective."""
    source = TargetSource(model.task, teacher, records.for_training(teacher.config))
    return make_targets(source, distillation.teacher_cache, run, arithmetic)
