"""The doctor for run_squad.py, run_classifier.py and run_ner.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from bert_tf.config.settings import FinetuningSettings, SquadSettings
from bert_tf.doctor import machine, model, schedule
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.rehearsal import dry, planned_run
from bert_tf.doctor.training_scripts import CLASSIFIER, SCRIPTS, SQUAD, TAGGER
from bert_tf.inference.model_directory import check_vocabulary_fits
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.tasks.classification import run as classification
from bert_tf.tasks.finetuning.run import count_steps
from bert_tf.tasks.question_answering import run as squad
from bert_tf.tasks.tagging import run as tagging
from bert_tf.train.context import RunContext
from bert_tf.train.plans import resolve_plans
from bert_tf.util.files import sha256_of_file

_FLAGS, _DATA, _WHOLE = "flags", "questions", "whole run"
_QUESTIONS = 4  # whose records are made, to see how large a batch is

_RUNS: Mapping[str, Callable[[Any], object]] = {
    CLASSIFIER: classification.run,
    TAGGER: tagging.run,
}


def examine(findings: Findings, script: str, values: flags.FlagValues, ranks: PlannedRanks) -> None:
    """Looks at each part of a run and then at the whole."""
    start = model.judge_output(findings, values)
    stored = model.open_weights(findings, values, start)
    files = model.open_vocabulary(findings, values)
    config = model.open_config(findings, values, stored, vocab_size=None)
    if config is not None:
        length = values.max_seq_length
        if not values["max_seq_length"].present:
            length = min(length, config.max_position_embeddings)
        model.judge_positions(findings, config, length, trains_new_ones=False)
    if files.file is not None:
        tokenizer = findings.attempt(model.VOCABULARY, files.load)
        if None not in (tokenizer, config):
            findings.attempt(model.VOCABULARY, check_vocabulary_fits, tokenizer, config)
        model.judge_vocabulary_of_weights(findings, stored, files.vocabulary())
    if values.do_train and not (values.init_checkpoint or values.resume_from or start.checkpoint):
        findings.warn(
            model.CHECKPOINT,
            "no weights are given, so fine-tuning starts from random ones; give --init_checkpoint",
        )
    settings = findings.attempt(_FLAGS, SCRIPTS[script].settings, values)
    _judge_rate(findings, script, values, ranks)
    if settings is None:
        return
    if script == SQUAD:
        _judge_questions(findings, settings)
        findings.attempt(_WHOLE, _rehearse_squad, findings, settings, ranks)
    elif findings.attempt(_WHOLE, _dry_run, script, settings):
        findings.fine(_WHOLE, "all checks of the run itself have passed")


def _judge_rate(
    findings: Findings, script: str, values: flags.FlagValues, ranks: PlannedRanks
) -> None:
    """Looks at the learning rate, which does not depend on the length of the run."""
    if not values.do_train:
        return
    read = SCRIPTS[script].optimization_and_length
    found = findings.attempt(schedule.SCHEDULE, read, values)
    if found is None:
        return
    # Any length, since the records are not counted yet.
    optimization = dataclasses.replace(
        found[0], num_train_steps=1, num_warmup_steps=0, scale_steps_by_ranks=False
    )
    plans = findings.attempt(schedule.SCHEDULE, resolve_plans, optimization, ranks, trains=False)
    if plans is not None:
        schedule.judge_rate(findings, optimization, *plans, schedule.FINETUNING_RATES)


def _judge_questions(findings: Findings, settings: SquadSettings) -> None:
    both = settings.train_file, settings.predict_file
    if None not in both and sha256_of_file(both[0]) == sha256_of_file(both[1]):
        findings.warn(
            _DATA,
            f"{both[1]} are the training questions, whose scores say nothing about others; give "
            "another --predict_file",
        )


def _rehearse_squad(findings: Findings, settings: SquadSettings, ranks: PlannedRanks) -> None:
    """Opens the run; UserError for what would end it."""
    settings = dataclasses.replace(settings, run=dry(settings.run))
    with planned_run(settings.run, settings.runtime, ranks) as context:
        opened = squad.open_run(settings, context)
        for name, file in (("train_file", opened.train), ("predict_file", opened.predict)):
            if file is not None:
                findings.fine(_DATA, f"--{name} has {len(file.examples):,} questions")
        if opened.train is not None:
            _judge_training(findings, opened.settings, opened.context, opened)
        findings.fine("precision", opened.context.precision)
        findings.fine(_WHOLE, "all checks before records are made have passed")


def _judge_training(
    findings: Findings, settings: FinetuningSettings, context: RunContext, opened: squad.Opened
) -> None:
    optimization = count_steps(settings, context, opened.max_records, is_bound=True)
    batch, steps = resolve_plans(optimization, context.ranks)
    schedule.judge_steps(findings, batch, steps)
    schedule.judge_warmup(findings, steps, is_pretraining=False)
    machine.judge_disk(
        findings,
        opened.model.task.specs(),
        settings.run,
        optimization,
        steps,
        start_step=context.start.step,
    )
    with squad.job_on_first_questions(opened, _QUESTIONS) as job:
        machine.judge_memory_of(findings, job)


def _dry_run(script: str, settings: FinetuningSettings) -> bool:
    """A dry run of the script in this process alone."""
    _RUNS[script](dataclasses.replace(settings, run=dry(settings.run)))
    return True
