"""Compares a run's length, warm-up, learning rate and checkpoints with what is usual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from bert_tf.config.settings import OptimizationSettings
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.records import TRAINING, Records
from bert_tf.train.job import Job
from bert_tf.update.batch_plan import BatchPlan, StepPlan

# How often a run may see each stored mask. In published runs it is about 4 times: 40 epochs over a
# text that was masked 10 times (Devlin et al. 2019; Liu et al. 2019, section 4.1).
_MOST_EPOCHS_OF_MASKS = 10
_MOST_EPOCHS = 200
_MOST_WARMUP = 0.3
_MOST_LOST = 0.1  # fraction of a run, lost by a kill just before a checkpoint
_WORTH_SAVING = 1000  # updates; shorter runs are simply repeated
_FACTOR = 10  # how far a learning rate may be from published ones


class UsualRate(NamedTuple):
    """A published peak learning rate, its global batch size, and the source."""

    rate: float
    batch: int
    source: str

    def bounds(self, global_batch_size: int) -> tuple[float, float]:
        """The usual range for a batch size; for larger batches, rates grow with the square root."""
        scaled = self.rate * math.sqrt(max(1.0, global_batch_size / self.batch))
        return self.rate / _FACTOR, scaled * _FACTOR


PRETRAINING_RATES = {
    "adam": UsualRate(1e-4, 256, "Devlin et al. 2019: 1e-4 for batches of 256"),
    "lamb": UsualRate(6.25e-4, 512, "You et al. 2020: 6.25e-4 for batches of 512"),
}
_FINETUNING_RATES = {"adam": UsualRate(3e-5, 32, "Devlin et al. 2019: 2e-5 to 5e-5")}


def judge_updates(
    findings: Findings, values: flags.FlagValues, job: Job, records: Sequence[Records]
) -> None:
    """Examines a job's updates: learning rate, number of updates and checkpoints.

    ``records`` are those of pre-training; empty for fine-tuning.
    """
    batch, steps, start = job.plan.batch, job.plan.steps, job.run.start
    rates = PRETRAINING_RATES if records else _FINETUNING_RATES
    judge_rate(findings, job.plan.requested, batch, steps, rates)
    findings.fine("batch", batch.arithmetic())
    _judge_warmup(findings, steps, is_pretraining=bool(records))
    for opened in records:
        if opened.part == TRAINING:
            _judge_length(findings, batch, steps, opened, learns_masks=values.mlm)
            _judge_saving(findings, values.save_checkpoints_steps, steps.last_step)
    if steps.divisor > 1:
        findings.hint(
            "length",
            f"--num_train_steps={steps.requested_train_steps} counts the updates of one rank: "
            f"{steps.divisor} ranks make {steps.num_train_steps:,} of them, "
            f"{steps.num_warmup_steps:,} in the warm-up, with the same number of sequences "
            "(--scale_steps_by_ranks=false makes all of them)",
        )
    if start.checkpoint is not None and start.step >= steps.last_step:
        findings.warn(
            "output directory",
            f"{start.checkpoint} is at step {start.step:,}, and the run ends at "
            f"{steps.last_step:,}, so nothing is left to train; choose another --output_dir, or "
            "more steps",
        )


def judge_rate(
    findings: Findings,
    optimization: OptimizationSettings,
    batch: BatchPlan,
    steps: StepPlan,
    usual: dict[str, UsualRate],
) -> None:
    """Compares the peak learning rate with published ones for the same optimizer."""
    rate, known = steps.learning_rate, usual.get(optimization.optimizer)
    if known is None:
        findings.fine(
            "learning rate", f"{rate:g}; no published range is known for {optimization.optimizer}"
        )
        return
    low, high = known.bounds(batch.global_batch_size)
    if low <= rate <= high:
        findings.fine("learning rate", f"{rate:g} is in the usual range, {low:.2g} to {high:.2g}")
        return
    how, effect = ("above", "diverge") if rate > high else ("below", "learn hardly anything")
    findings.warn(
        "learning rate",
        f"--learning_rate={rate:g} is {how} the usual range of {optimization.optimizer} for global "
        f"batches of {batch.global_batch_size:,}, {low:.2g} to {high:.2g} ({known.source}); the "
        f"run may {effect}",
    )


def _judge_warmup(findings: Findings, steps: StepPlan, *, is_pretraining: bool) -> None:
    """Checks the fraction of updates that the warm-up takes."""
    share = steps.num_warmup_steps / steps.num_train_steps
    if share > _MOST_WARMUP:
        findings.warn(
            "learning rate",
            f"the warm-up takes {share:.0%} of all updates ({steps.num_warmup_steps:,} of "
            f"{steps.num_train_steps:,}); usual is 1 to 10 %; lower --num_warmup_steps",
        )
    elif not steps.num_warmup_steps and is_pretraining:
        findings.warn(
            "learning rate",
            "there is no warm-up, without which pre-training often diverges; give "
            "--num_warmup_steps",
        )


def _judge_length(
    findings: Findings, batch: BatchPlan, steps: StepPlan, opened: Records, *, learns_masks: bool
) -> None:
    """Compares the number of sequences that the run consumes with the number of records."""
    info, sequences = opened.info, batch.sequences(0, steps.last_position)
    used = [("", sequences, info.num_records, batch.global_batch_size)]
    if opened.mixture is not None:
        used = [
            (f" from {source.pattern}", count, size, math.ceil(source.weight * used[0][3]))
            for source, size, count in opened.mixture.rows(sequences)
        ]
    for source, number, num_records, of_a_batch in used:
        epochs = number / num_records
        times = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
        findings.fine(
            "length",
            f"{steps.last_position:,} updates consume {number:,} sequences{source}, {times} epochs "
            f"of {num_records:,} records",
        )
        if of_a_batch > num_records:
            findings.warn(
                "length",
                f"there are only {num_records:,} records{source} for a global batch of "
                f"{of_a_batch:,}, so every batch repeats some of them; use a smaller batch or more "
                "text",
            )
        elif info.masked and learns_masks and epochs > _MOST_EPOCHS_OF_MASKS:
            findings.warn(
                "length",
                f"each stored mask{source} is seen {times} times, but about 4 times in published "
                "runs (Liu et al. 2019, section 4.1); make records with --masking=dynamic or a "
                "larger --dupe_factor, or train for fewer steps",
            )
        elif epochs > _MOST_EPOCHS:
            findings.warn(
                "length",
                f"each record{source} is seen {times} times, so the network may memorize them; "
                "give more text or train for fewer steps",
            )
        elif epochs < 1:
            findings.hint("length", f"only {epochs:.0%} of the records{source} are used")


def _judge_saving(findings: Findings, save_checkpoints_steps: int, last_step: int) -> None:
    """Checks how many updates a kill would cost."""
    if last_step <= _WORTH_SAVING:
        return
    every = min(save_checkpoints_steps, last_step)
    share = every / last_step
    if share > _MOST_LOST:
        findings.warn(
            "checkpoints",
            f"--save_checkpoints_steps={save_checkpoints_steps}: a run that is killed loses up "
            f"to {every:,} of its {last_step:,} updates ({share:.0%}); save more often",
        )
    else:
        findings.fine("checkpoints", f"a run that is killed loses at most {every:,} updates")
