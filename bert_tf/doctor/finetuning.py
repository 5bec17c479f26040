"""The doctor for run_squad.py, run_classifier.py and run_ner.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from bert_tf.config.settings import OptimizationSettings, dry
from bert_tf.doctor import machine, model, schedule
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.training_scripts import CLASSIFIER, SCRIPTS, SQUAD, TAGGER
from bert_tf.model_directory.complete import check_vocabulary_fits
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.tasks.classification import run as classification
from bert_tf.tasks.finetuning.settings import FinetuningSettings
from bert_tf.tasks.question_answering import run as squad
from bert_tf.tasks.question_answering.settings import SquadSettings
from bert_tf.tasks.tagging import run as tagging
from bert_tf.train.plan import plan_batch_and_steps, scales_steps
from bert_tf.train.prepare import prepare
from bert_tf.train.run import Run, begin
from bert_tf.update.batch_plan import BatchPlan, StepPlan
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
    optimization = findings.attempt(schedule.SCHEDULE, SCRIPTS[script].optimization, values)
    if optimization is None:
        return
    plans = findings.attempt(schedule.SCHEDULE, _plan_of_any_length, optimization, ranks)
    if plans is not None:
        schedule.judge_rate(findings, optimization, *plans, schedule.FINETUNING_RATES)


def _plan_of_any_length(
    optimization: OptimizationSettings, ranks: PlannedRanks
) -> tuple[BatchPlan, StepPlan]:
    """The plan as far as it does not depend on the records, which are not counted yet."""
    short = optimization.with_steps(1, 0)
    return plan_batch_and_steps(short, ranks.world_size, scaled=False, records=1, trains=False)


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
    settings = dry(settings)
    with begin(settings.run, settings.runtime, planned=ranks) as run:
        opened = squad.open_squad(settings, run)
        for name, file in (("train_file", opened.train), ("predict_file", opened.predict)):
            if file is not None:
                findings.fine(_DATA, f"--{name} has {len(file.examples):,} questions")
        judged = _judge_training(findings, opened, run) if opened.train else opened
        job = prepare(judged.first(_QUESTIONS), run)
        if opened.train is not None:
            machine.judge_memory_of(findings, job)
        findings.fine("precision", job.plan.arithmetic.precision)
        findings.fine(_WHOLE, "all checks before records are made have passed")


def _judge_training(findings: Findings, opened: squad.OpenedSquad, run: Run) -> squad.OpenedSquad:
    """Looks at the training; returns the run with its number of steps, as far as it is known."""
    optimization, records = opened.optimization, opened.max_records
    scaled = scales_steps(run, optimization)
    batch, steps = plan_batch_and_steps(
        optimization, run.ranks.world_size, scaled=scaled, records=records, is_bound=True
    )
    schedule.judge_steps(findings, batch, steps)
    schedule.judge_warmup(findings, steps, is_pretraining=False)
    machine.judge_disk(
        findings,
        opened.model.task.specs(),
        run.settings,
        optimization,
        steps,
        start_step=run.start.step,
    )
    in_steps = dataclasses.replace(
        optimization,
        steps=dataclasses.replace(
            optimization.steps,
            num_train_steps=steps.requested_train_steps,
            num_warmup_steps=steps.requested_warmup_steps,
            scale_steps_by_ranks=scaled,
        ),
    )
    settings = dataclasses.replace(opened.settings, optimization=in_steps)
    return dataclasses.replace(opened, settings=settings)


def _dry_run(script: str, settings: FinetuningSettings) -> bool:
    """A dry run of the script in this process alone."""
    _RUNS[script](dry(settings))
    return True
