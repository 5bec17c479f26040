"""The arithmetic of a run: precision, operations, update kernels, threads and sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.config.settings import RuntimeSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.train.run import Run
from bert_tf.tuning.choice import choose
from bert_tf.tuning.hardware import needs_loss_scale
from bert_tf.tuning.session import SessionSettings
from bert_tf.update.kernels import Kernels, kernels_for

# Entries of a plan that several starts keep.
_PRECISION, _NATIVE_OPS = "--precision", "--native_ops"


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


def kept_arithmetic(run: Run, config: BertConfig, plan: Mapping[str, Any] | None) -> Arithmetic:
    """Decides the precision and operations, unless the user or an earlier start did.

    ``plan`` has, on rank 0, the entries that an earlier start kept; None if there was none.
    Collective. Prints what is chosen. Raises UserError as ``choose_arithmetic`` does.
    """
    earlier = run.ranks.broadcast(plan)
    runtime = run.runtime
    if earlier is not None and runtime.numerics.precision == "auto":
        precision = earlier.get(_PRECISION, "auto")
        numerics = dataclasses.replace(runtime.numerics, precision=precision)
        runtime = dataclasses.replace(runtime, numerics=numerics)
    if earlier is not None and runtime.native_ops is None:
        runtime = dataclasses.replace(runtime, native_ops=earlier.get(_NATIVE_OPS))
    arithmetic = choose_arithmetic(run, config, runtime=runtime)
    layers = "native" if arithmetic.options.native_layers else "TensorFlow's"
    ranks = "1 rank" if run.ranks.world_size == 1 else f"{run.ranks.world_size} ranks"
    run.message(
        f"precision {arithmetic.precision}, {layers} layers, {ranks} with {run.ranks.threads} "
        "threads each"
    )
    return arithmetic


def entries_of_plan(run: Run, arithmetic: Arithmetic) -> dict[str, Any]:
    """The entries of a plan that identify the arithmetic, and that a later start keeps."""
    return {
        _PRECISION: arithmetic.precision,
        _NATIVE_OPS: arithmetic.options.native_layers,
        "--precision_policy": dict(run.runtime.numerics.policy_changes),
    }
