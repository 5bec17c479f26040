"""The arithmetic of a run: precision, operations, update kernels, threads and sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.config.settings import RuntimeSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.train.run import Run
from bert_tf.tuning.hardware import needs_loss_scale, slow_policy_warnings
from bert_tf.tuning.session import SessionSettings
from bert_tf.tuning.speed_choice import Wanted, choose_speed
from bert_tf.tuning.speed_probe import JobShapes
from bert_tf.tuning.update_probe import update_pieces
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import Kernels, kernels_for


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How a run computes, the same on all ranks.

    Attributes:
      precision: the precision of matrix products, unless --precision_policy changes it.
      options: the data type of each class of operation, and the implementation of the layers.
      kernels: the operations of the update.
      session: how this rank's sessions execute.
      scales_loss: whether the loss is scaled, because gradients may underflow (float16).
      measured: ledger sections with measurements; empty if nothing was measured.
    """

    precision: str
    options: ForwardOptions
    kernels: Kernels
    session: SessionSettings
    scales_loss: bool
    measured: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def without_padding(self) -> Arithmetic:
        """The same arithmetic for padded batches, with layers that skip the padding."""
        return dataclasses.replace(
            self, options=dataclasses.replace(self.options, skip_padding=True)
        )


def choose_arithmetic(
    run: Run,
    config: BertConfig,
    batch: BatchPlan | None,
    *,
    max_seq_length: int,
    runtime: RuntimeSettings | None = None,
) -> Arithmetic:
    """Chooses the fastest precision and operations for a network. Collective.

    Keeps the user's choices. Raises UserError if native operations are required but missing.

    Args:
      run: the run.
      config: the network's configuration.
      batch: the training batches; None for a run that does not train.
      max_seq_length: length of the longest sequence.
      runtime: the user's choices; None for those of ``run``.
    """
    runtime = runtime or run.runtime
    shapes = JobShapes.of(
        config,
        sequences=run.settings.evaluation.eval_batch_size
        if batch is None
        else batch.micro_batch_size,
        length=max_seq_length,
        accumulation_steps=0 if batch is None else batch.accumulation_steps,
    )
    wanted = Wanted(
        precision=runtime.numerics.precision,
        native_ops=False if runtime.use_xla else runtime.native_ops,
        policy_changes=runtime.numerics.policy_changes,
    )
    earlier = {} if run.record is None else run.record.ledger
    choice = choose_speed(
        wanted,
        shapes,
        hardware=run.hardware,
        ranks=run.ranks,
        earlier=earlier.get("speed"),
        update=update_pieces,
    )
    slow_types = slow_policy_warnings(choice.options.policy, run.hardware)
    for warning in [*slow_types, *choice.warnings]:
        run.warn(warning, part="precision")
    against_native_ops = "compiled by XLA" if runtime.use_xla else choice.against_native_ops
    return Arithmetic(
        precision=choice.precision,
        options=dataclasses.replace(
            choice.options, recompute=runtime.recompute, compiled=bool(runtime.use_xla)
        ),
        kernels=kernels_for(against_native_ops),
        session=run.session_settings(),
        scales_loss=needs_loss_scale(runtime, choice.options.policy),
        measured={"speed": choice.details} if choice.details else {},
    )
