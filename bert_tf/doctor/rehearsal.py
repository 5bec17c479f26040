"""A dry run on planned ranks, with all the checks that the run itself makes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from bert_tf.config.settings import dry
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.machine import judge_disk, judge_memory
from bert_tf.doctor.planned import HELD_OUT, TRAINING, PlannedRun, Records, Updates
from bert_tf.doctor.training_scripts import CLASSIFIER, OF_RECORDS, SQUAD, TAGGER
from bert_tf.finetune import run as finetuning
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.tasks.classification.run import TextClassification
from bert_tf.tasks.pretraining.run import OpenedPretraining, open_pretraining
from bert_tf.tasks.question_answering.run import QuestionAnswering
from bert_tf.tasks.tagging.run import Tagging
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.arithmetic import Arithmetic
from bert_tf.train.execute import report_changes, report_resuming, sizes_in, whole_ledger
from bert_tf.train.job import Job, JobData
from bert_tf.train.memory import estimate_memory, free_memory
from bert_tf.train.prepare import Opened, prepare
from bert_tf.train.run import Run, begin

_QUESTIONS = 4  # number of questions to make records of, to learn the size of a batch


class _FewQuestions(finetuning.Opened):
    """A run that makes the records of a few questions, but is planned for all of them."""

    task: QuestionAnswering

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """As in the superclass, but with the number of all records."""
        few = finetuning.Opened(self.task.first(_QUESTIONS), self.model)
        data = few.make_data(run, arithmetic)
        training = dataclasses.replace(data.training, num_records=self.max_records)
        return dataclasses.replace(data, training=training)


def _open_few_questions(settings: Any, run: Run) -> _FewQuestions:
    opened = finetuning.open_run(QuestionAnswering.open, settings, run)
    return _FewQuestions(opened.task, opened.model)


_OPENERS: Mapping[str, Callable[[Any, Run], Opened]] = {
    **dict.fromkeys(OF_RECORDS, open_pretraining),
    SQUAD: _open_few_questions,
    CLASSIFIER: functools.partial(finetuning.open_run, TextClassification.open),
    TAGGER: functools.partial(finetuning.open_run, Tagging.open),
}


def rehearse(findings: Findings, script: str, settings: Any, ranks: PlannedRanks) -> PlannedRun:
    """Opens and prepares a run, with each seed and trial; raises UserError if it would fail."""

    def once(settings: Any, _: object = None) -> PlannedRun:
        with begin(settings.run, settings.runtime, planned=ranks) as run:
            opened = _OPENERS[script](settings, run)
            job = prepare(opened, run)
            _report(findings, settings.tokenizer_files, opened, job)
            return _planned(opened, job)

    settings = dry(settings)
    if script in OF_RECORDS:
        return once(settings)
    return finetuning.run_repeatedly(settings, once)


def _report(findings: Findings, files: TokenizerFiles, opened: Opened, job: Job) -> None:
    """Reports what is known while the run is open, and what the run itself says at its start."""
    run = job.run
    if files.file is not None:
        findings.fine("vocabulary", f"{files.file} has {files.load().vocab_size:,} entries")
    if isinstance(opened, _FewQuestions):
        for kind, file in opened.task.files.items():
            findings.fine("questions", f"--{kind}_file has {len(file.examples):,} questions")
        passed = "all checks before records are made have passed"
    else:  # all of its data is there, so it can be compared with the last start
        if run.settings.do_train:
            report_changes(job, whole_ledger(job))
        report_resuming(job)
        passed = "all checks of the run itself have passed"
    if run.settings.do_train:
        has_gpu = run.hardware.has_gpu
        judge_memory(findings, estimate_memory(job), free_memory(), has_gpu=has_gpu)
        judge_disk(findings, sizes_in(job), run.settings.output_dir)
    arithmetic = job.plan.arithmetic
    findings.fine("precision", f"{arithmetic.precision}, {arithmetic.kernels.description}")
    findings.fine("whole run", passed)


def _planned(opened: Opened, job: Job) -> PlannedRun:
    start, records, mixture = job.run.start, [], None
    if isinstance(opened, OpenedPretraining):
        found, given = opened.records, job.settings.command.values
        if found.train is not None:
            records.append(Records(TRAINING, *found.train[:2]))
            mixture = found.train.mixture
        if found.held_out is not None and (given["eval_file"] or given["eval_files_dir"]):
            records.append(Records(HELD_OUT, *found.held_out[:2]))
    updates = Updates(job.optimization, job.plan.batch, job.plan.steps)
    return PlannedRun(
        isinstance(opened, OpenedPretraining),
        job.settings.output_dir,
        start,
        is_new=not (start.checkpoint or job.model.initial.checkpoint),
        vocabulary=job.model.vocabulary,
        config=job.model.config,
        max_seq_length=opened.max_seq_length,
        updates=updates if job.settings.do_train else None,
        records=records,
        mixture=mixture,
    )
