"""The arithmetic of a run: precision, operations, update kernels, threads and sessions."""

from __future__ import annotations

import dataclasses

from bert_tf.config.settings import RuntimeSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.train.run import Run
from bert_tf.tuning.choice import choose
from bert_tf.tuning.hardware import needs_loss_scale
from bert_tf.tuning.session import SessionSettings
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
      because: what the precision follows from; None if the user gave it.
    """

    precision: str
    options: ForwardOptions
    kernels: Kernels
    session: SessionSettings
    scales_loss: bool
    because: str | None = None


def choose_arithmetic(
    run: Run,
    config: BertConfig,
    *,
    runtime: RuntimeSettings | None = None,
    skip_padding: bool = False,
) -> Arithmetic:
    """Decides the precision and operations that the user left open. Collective.

    A resumed run, and an evaluation of what it trained, keep the precision that it began with.
    ``runtime`` has the user's choices; None for those of ``run``. Raises UserError if native
    operations are required but missing.
    """
    runtime = runtime or run.runtime
    choice = choose(
        config,
        hardware=run.hardware,
        ranks=run.ranks,
        precision=runtime.numerics.precision,
        native_ops=False if runtime.use_xla else runtime.native_ops,
        policy_changes=runtime.numerics.policy_changes,
        before=run.precision_before,
        recompute=runtime.recompute,
        compiled=bool(runtime.use_xla),
        skip_padding=skip_padding,
    )
    for warning in choice.warnings:
        run.warn(warning, part="precision")
    against_native_ops = "compiled by XLA" if runtime.use_xla else choice.against_native_ops
    return Arithmetic(
        precision=choice.precision,
        options=choice.options,
        kernels=kernels_for(against_native_ops),
        session=run.session_settings(),
        scales_loss=needs_loss_scale(runtime, choice.options.policy),
        because=choice.because,
    )
