"""Pre-training with a teacher; runs without one do not import this module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bert_tf.input.pipeline import PretrainingRecords
from bert_tf.model.config import BertConfig
from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.distillation.kept_targets import TargetFiles, TargetSource, make_targets
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
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.train.job import RunModel
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.errors import UserError

MakeTargets = Callable[[PretrainingRecords, Run, Arithmetic], TargetFiles]


def open_student(
    settings: PretrainingSettings, distillation: DistillationSettings, run: Run, records: RunRecords
) -> tuple[Teacher, PretrainingSettings]:
    """The teacher, and settings that determine the student's network. Collective.

    Raises UserError if the teacher cannot be read or does not suit the records.
    """
    teacher = open_teacher(distillation, run)
    records.check_positions(teacher.config, "the teacher's")
    network = student_config(distillation, teacher.config)
    return teacher, _with_students_network(settings, network, teacher, run, records.vocabulary)


def _with_students_network(
    settings: PretrainingSettings,
    student: BertConfig,
    teacher: Teacher,
    run: Run,
    records: RecordVocabulary | None,
) -> PretrainingSettings:
    """The student's settings; without an architecture of its own, it gets that of ``student``.

    Only rank 0 needs the result. Raises UserError if ``records`` and the teacher have different
    vocabularies.
    """
    files = settings.tokenizer_files
    if run.ranks.is_chief:
        if records is not None:
            used = vocabulary_named_in(records.manifest_file, records.entry.digest)
            check_vocabulary(teacher, used)
        files = files.with_vocabulary_of(teacher.files.tokenizer_files)
    network = settings.network
    has_weights = run.start.checkpoint or settings.run.start.init_checkpoint
    if not (has_weights or settings.bert_config_file):
        network = {**student.to_dict(), **network}
    return dataclasses.replace(settings, tokenizer_files=files, network=network)


def distilled(
    distillation: DistillationSettings, run: Run, model: RunModel, teacher: Teacher
) -> tuple[RunModel, MakeTargets | None]:
    """Makes ``model`` a student of ``teacher`` (see ``teacher.with_teacher``).

    Also returns what caches the soft targets of all training records; None if they are not cached.
    """
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
    student = with_teacher(model, teacher, task, run)
    cache = distillation.teacher_cache
    if cache is None:
        return student, None

    def make(records: PretrainingRecords, run: Run, arithmetic: Arithmetic) -> TargetFiles:
        sizes = teacher.config.vocab_size, teacher.config.type_vocab_size
        read = PretrainingRecords(records.record_set, records.info, *sizes, records.masking)
        return make_targets(TargetSource(task, teacher, read), cache, run, arithmetic)

    return student, make
