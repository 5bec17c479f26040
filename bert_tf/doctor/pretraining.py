"""The doctor for run_pretraining.py, run_electra.py and run_distillation.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from absl import flags

from bert_tf.config.settings import PretrainingSettings, dry
from bert_tf.doctor import machine, model, records, schedule
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.training_scripts import TrainingScript
from bert_tf.model.config import BertConfig
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.records.info import RecordInfo, check_records, lengths_of
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.objective import objective_of
from bert_tf.train.plan import plan_batch_and_steps
from bert_tf.train.run import begin
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import StepPlan

_FLAGS, _WHOLE = "flags", "whole run"


def examine(
    findings: Findings, script: TrainingScript, values: flags.FlagValues, ranks: PlannedRanks
) -> None:
    """Looks at each part of a run and then at the whole."""
    start = model.judge_output(findings, values)
    stored = model.open_weights(findings, values, start)
    files = model.open_vocabulary(findings, values)
    is_new = not model.has_weights(values, start)
    train, held_out = _open_records(findings, values, is_new=is_new)
    some = train or held_out
    lengths = _lengths(values, [info for info in (train, held_out) if info is not None])
    config = model.open_config(
        findings, values, stored, vocab_size=some.vocab_size if some else None
    )
    if some is not None:
        _judge_records(findings, values, train, held_out, config, lengths)
    used = model.vocabulary_of(files, some.vocabulary if some else None)
    model.judge_vocabulary_of_weights(findings, stored, used)
    if config is not None:
        length = lengths["max_seq_length"]
        model.judge_positions(findings, config, length, trains_new_ones=is_new)
        if is_new:
            records.judge_size_for_gpus(findings, config.vocab_size)
    settings = findings.attempt(_FLAGS, script.settings, values)
    steps = _judge_schedule(findings, script, values, ranks, train)
    if None not in (settings, steps, config) and settings.run.do_train:
        _judge_disk(findings, settings, steps, config, start)
    if settings is not None:
        findings.attempt(_WHOLE, _rehearse, findings, settings, ranks)


def _lengths(values: flags.FlagValues, infos: Sequence[RecordInfo]) -> dict[str, int]:
    """The flags that must match the records; those that nobody gave do."""
    given = {name: values[name].value for name in ("max_seq_length", "max_predictions_per_seq")}
    follow = lengths_of(infos)
    return given | {name: n for name, n in follow.items() if not values[name].present}


def _open_records(
    findings: Findings, values: flags.FlagValues, *, is_new: bool
) -> tuple[RecordInfo | None, RecordInfo | None]:
    found = []
    for part, is_read, names in (
        (records.TRAINING, values.do_train, ("input_file", "input_files_dir")),
        (records.HELD_OUT, values.do_eval, ("eval_file", "eval_files_dir")),
    ):
        flag = next((name for name in names if values[name].value), None)
        is_given = is_read and flag is not None
        found.append(
            records.open_records(findings, part, values[flag].value, flag, is_new=is_new)
            if is_given
            else None
        )
    return found[0], found[1]


def _judge_records(
    findings: Findings,
    values: flags.FlagValues,
    train: RecordInfo | None,
    held_out: RecordInfo | None,
    config: BertConfig | None,
    lengths: Mapping[str, int],
) -> None:
    for part, info in ((records.TRAINING, train), (records.HELD_OUT, held_out)):
        if info is None:
            continue
        size = config.vocab_size if config else max(info.vocab_size or 0, info.highest_id + 1)
        findings.attempt(
            part,
            check_records,
            info,
            vocab_size=size,
            **lengths,
        )
        if values.nsp and not info.next_sentence:
            findings.error(
                part,
                "the records were made without next sentences; give --nsp=false, or make them "
                "again with --nsp=true.",
            )
    findings.attempt(records.VOCABULARY, records.judge_casing, findings, train or held_out)
    if train is not None and held_out is not None:
        records.judge_separation(findings, train, held_out)


def _judge_schedule(
    findings: Findings,
    script: TrainingScript,
    values: flags.FlagValues,
    ranks: PlannedRanks,
    train: RecordInfo | None,
) -> StepPlan | None:
    """The planned steps; None if they are not known or contradictory."""
    if not values.do_train:
        return None
    optimization = findings.attempt(schedule.SCHEDULE, script.optimization, values)
    if optimization is None or (optimization.counts_epochs and train is None):
        return None
    plans = findings.attempt(
        schedule.SCHEDULE,
        plan_batch_and_steps,
        optimization,
        ranks.world_size,
        scaled=optimization.scales_steps(by_default=values.horovod or ranks.world_size > 1),
        records=train.num_records if train else 1,
    )
    if plans is None:
        return None
    batch, steps = plans
    schedule.judge_steps(findings, batch, steps)
    schedule.judge_rate(findings, optimization, batch, steps, schedule.PRETRAINING_RATES)
    schedule.judge_warmup(findings, steps, is_pretraining=True)
    if train is not None:
        schedule.judge_length(
            findings,
            batch,
            steps,
            num_records=train.num_records,
            stores_masks=train.masked and values.mlm,
            is_pretraining=True,
        )
    schedule.judge_saving(findings, values.save_checkpoints_steps, steps.last_step)
    return steps


def _judge_disk(
    findings: Findings,
    settings: PretrainingSettings,
    steps: StepPlan,
    config: BertConfig,
    start: StartPoint,
) -> None:
    task = objective_of(settings).task(config, sentence_order=False)
    machine.judge_disk(
        findings, task.specs(), settings.run, settings.optimization, steps, start_step=start.step
    )
    if start.checkpoint is not None and start.step >= steps.last_step:
        findings.warn(
            model.OUTPUT,
            f"{start.checkpoint} is at step {start.step:,}, and the run ends at "
            f"{steps.last_step:,}, so nothing is left to train; choose another --output_dir, or "
            "more steps",
        )


def _rehearse(findings: Findings, settings: PretrainingSettings, ranks: PlannedRanks) -> None:
    """A dry run, with all checks of a run; UserError for what would end it."""
    settings = dry(settings)
    with begin(settings.run, settings.runtime, planned=ranks) as run:
        prepared = pretraining.prepare_pretraining(settings, run)
        pretraining.train_and_evaluate(prepared)
        job = prepared.job
        if settings.run.do_train:
            machine.judge_memory_of(findings, job)
        arithmetic = job.plan.arithmetic
        findings.fine("precision", f"{arithmetic.precision}, {arithmetic.kernels.description}")
        findings.fine(_WHOLE, "all checks of the run itself have passed")
