"""Length, warm-up, learning rate and checkpoints of a run, compared with what is usual."""

from __future__ import annotations

import dataclasses
import math

from bert_tf.config.settings import OptimizationSettings
from bert_tf.doctor.findings import Findings
from bert_tf.update.batch_plan import BatchPlan, StepPlan

SCHEDULE, LENGTH, RATE, CHECKPOINTS = "schedule", "length", "learning rate", "checkpoints"

# How often a run may see a mask that is stored. In published runs it is about 4 times: 40 epochs
# over a text that was masked 10 times (Devlin et al. 2019; Liu et al. 2019, section 4.1).
MOST_EPOCHS_OF_MASKS = 10
MOST_EPOCHS = 200
MOST_WARMUP = 0.3
MOST_LOST = 0.1  # of a run, from a kill just before a checkpoint
_WORTH_SAVING = 1000  # updates; shorter runs are simply repeated


@dataclasses.dataclass(frozen=True)
class UsualRate:
    """A published peak learning rate.

    Attributes:
      rate: the rate.
      batch: its global batch; larger ones go with rates that grow with the square root.
      factor: how far others may be from it.
      source: where it is from.
    """

    rate: float
    batch: int
    factor: float
    source: str

    def bounds(self, global_batch_size: int) -> tuple[float, float]:
        """The range for a batch."""
        scaled = self.rate * math.sqrt(max(1.0, global_batch_size / self.batch))
        return self.rate / self.factor, scaled * self.factor


PRETRAINING_RATES = {
    "adam": UsualRate(1e-4, 256, 10, "Devlin et al. 2019: 1e-4 for batches of 256"),
    "lamb": UsualRate(6.25e-4, 512, 10, "You et al. 2020: 6.25e-4 for batches of 512"),
}
FINETUNING_RATES = {"adam": UsualRate(3e-5, 32, 10, "Devlin et al. 2019: 2e-5 to 5e-5")}


def judge_rate(
    findings: Findings,
    optimization: OptimizationSettings,
    batch: BatchPlan,
    steps: StepPlan,
    usual: dict[str, UsualRate],
) -> None:
    """Compares the peak of the learning rate with published ones of the same optimizer."""
    rate, known = steps.learning_rate, usual.get(optimization.optimizer)
    if known is None:
        findings.fine(RATE, f"{rate:g}; no published range is known for {optimization.optimizer}")
        return
    low, high = known.bounds(batch.global_batch_size)
    if low <= rate <= high:
        findings.fine(RATE, f"{rate:g} is in the usual range, {low:.2g} to {high:.2g}")
        return
    how, effect = ("above", "diverge") if rate > high else ("below", "learn hardly anything")
    findings.warn(
        RATE,
        f"--learning_rate={rate:g} is {how} the usual range of {optimization.optimizer} for global "
        f"batches of {batch.global_batch_size:,}, {low:.2g} to {high:.2g} ({known.source}); the "
        f"run may {effect}",
    )


def judge_warmup(findings: Findings, steps: StepPlan, *, is_pretraining: bool) -> None:
    """Looks at the share of the warm-up."""
    share = steps.num_warmup_steps / steps.num_train_steps
    if share > MOST_WARMUP:
        findings.warn(
            RATE,
            f"the warm-up takes {share:.0%} of all updates ({steps.num_warmup_steps:,} of "
            f"{steps.num_train_steps:,}), usual is 1 to 10 %; lower --num_warmup_steps",
        )
    elif not steps.num_warmup_steps and is_pretraining:
        findings.warn(
            RATE,
            "there is no warm-up, without which pre-training often diverges; give "
            "--num_warmup_steps",
        )


def judge_steps(findings: Findings, batch: BatchPlan, steps: StepPlan) -> None:
    """Says what is in an update, and how steps are counted on several ranks."""
    findings.fine("batch", batch.arithmetic())
    if steps.divisor > 1:
        findings.hint(
            LENGTH,
            f"--num_train_steps={steps.requested_train_steps} counts the updates of one rank: "
            f"{steps.divisor} ranks make {steps.num_train_steps:,} of them, "
            f"{steps.num_warmup_steps:,} in the warm-up, with the same number of sequences "
            "(--scale_steps_by_ranks=false makes all)",
        )


def judge_length(
    findings: Findings,
    batch: BatchPlan,
    steps: StepPlan,
    *,
    num_records: int,
    stores_masks: bool,
    is_pretraining: bool,
) -> None:
    """Compares what the run consumes with the records that there are."""
    sequences = batch.sequences(0, steps.last_position)
    epochs = sequences / num_records
    times = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
    findings.fine(
        LENGTH,
        f"{steps.last_position:,} updates consume {sequences:,} sequences, {times} epochs of "
        f"{num_records:,} records",
    )
    if batch.global_batch_size > num_records:
        findings.warn(
            LENGTH,
            f"there are only {num_records:,} records for a global batch of "
            f"{batch.global_batch_size:,}, so every batch has some of them several times; use a "
            "smaller batch or more text",
        )
    elif stores_masks and epochs > MOST_EPOCHS_OF_MASKS:
        findings.warn(
            LENGTH,
            f"each stored mask is seen {times} times, in published runs about 4 times (Liu et "
            "al. 2019, section 4.1); make records with --masking=dynamic or a larger "
            "--dupe_factor, or train for fewer steps",
        )
    elif is_pretraining and epochs > MOST_EPOCHS:
        findings.warn(
            LENGTH,
            f"each record is seen {times} times, so the network may learn them by heart; give "
            "more text or train for fewer steps",
        )
    elif is_pretraining and epochs < 1:
        findings.hint(LENGTH, f"only {epochs:.0%} of the records are used")


def judge_saving(findings: Findings, save_checkpoints_steps: int, last_step: int) -> None:
    """Looks at what a kill would cost."""
    if last_step <= _WORTH_SAVING:
        return
    every = min(save_checkpoints_steps, last_step)
    share = every / last_step
    if share > MOST_LOST:
        findings.warn(
            CHECKPOINTS,
            f"--save_checkpoints_steps={save_checkpoints_steps}: a run that is killed loses up "
            f"to {every:,} of its {last_step:,} updates ({share:.0%}); save more often",
        )
    else:
        findings.fine(CHECKPOINTS, f"a run that is killed loses at most {every:,} updates")
