"""The arithmetic of a run: precision, operations, update kernels, threads and sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.config.settings import LossScaleSettings, RuntimeSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.train.run import Run
from bert_tf.tuning.choice import choose
from bert_tf.tuning.session import SessionSettings
from bert_tf.update.kernels import Kernels, kernels_for
from bert_tf.util.errors import UserError

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
    skip_padding: bool = False,
    earlier: Mapping[str, Any] | None = None,
) -> Arithmetic:
    """Decides the precision and operations that the user left open. Collective.

    A resumed run, and an evaluation of what it trained, keep the precision that it began with.
    ``earlier`` are the :func:`entries_of_plan` of an earlier start, which are kept as well. Raises
    UserError for float16 on a CPU, for loss scale settings without float16, and if native
    operations are required but missing.
    """
    runtime, earlier = run.runtime, earlier or {}
    precision, native_ops = runtime.numerics.precision, runtime.native_ops
    if precision == "auto":
        precision = earlier.get(_PRECISION, "auto")
    if native_ops is None:
        native_ops = earlier.get(_NATIVE_OPS)
    choice = choose(
        config,
        hardware=run.hardware,
        ranks=run.ranks,
        precision=precision,
        native_ops=False if runtime.use_xla else native_ops,
        policy_changes=runtime.numerics.policy_changes,
        allow_slow_fp16=runtime.numerics.allow_slow_fp16,
        before=run.precision_before,
        recompute=runtime.recompute,
        compiled=bool(runtime.use_xla),
        skip_padding=skip_padding,
    )
    scales_loss = needs_loss_scale(runtime, choice.options.policy)
    if run.settings.do_train and not scales_loss:
        _check_no_loss_scale(runtime.numerics.loss_scale, choice.precision)
    for warning in choice.warnings:
        run.warn(warning, part="precision")
    return Arithmetic(
        precision=choice.precision,
        options=choice.options,
        kernels=kernels_for("compiled by XLA" if runtime.use_xla else choice.against_native_ops),
        session=run.session_settings(),
        scales_loss=scales_loss,
        because=choice.because,
    )


def needs_loss_scale(runtime: RuntimeSettings, policy: PrecisionPolicy) -> bool:
    """Whether gradients pass through float16: in the network or in communication."""
    compressed = runtime.library is not None and runtime.communication.compression == "fp16"
    return bool(policy.classes_in("fp16")) or compressed


def _check_no_loss_scale(scale: LossScaleSettings, precision: str) -> None:
    usual = LossScaleSettings()
    for name in ("static", "minimum", "window"):
        if getattr(scale, name) != getattr(usual, name):
            raise UserError(
                f"{scale.given(name)} is for gradients that pass through float16, but with "
                f"--precision={precision} none do; drop it or give --precision=fp16."
            )


def kept_arithmetic(run: Run, config: BertConfig, plan: Mapping[str, Any] | None) -> Arithmetic:
    """Decides the precision and operations, unless the user or an earlier start did.

    ``plan`` has, on rank 0, the entries that an earlier start kept; None if there was none.
    Collective. Prints what is chosen. Raises UserError as ``choose_arithmetic`` does.
    """
    arithmetic = choose_arithmetic(run, config, earlier=run.ranks.broadcast(plan))
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
