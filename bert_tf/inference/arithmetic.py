"""How predictions are computed: in which precision, and with or without native operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from bert_tf.cli.flags import flag_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bert_tf.model.config import BertConfig
    from bert_tf.model.options import ForwardOptions
    from bert_tf.model.precision import PrecisionPolicy


@flag_group("Model and precision")
def define_native_flag() -> None:
    """Defines --native_ops for commands that only compute on this machine."""
    flags.DEFINE_bool(
        "native_ops",
        None,
        "Use the compiled operations between a layer's matrix products (default: on CPUs, if they "
        "are built).",
    )


def prediction_options(policy: PrecisionPolicy, native_ops: bool | None) -> ForwardOptions:
    """The options for computing a network's layers in prediction.

    ``native_ops`` requires native operations, False avoids them, None uses them on CPUs if they are
    built. Raises UserError if they are required but missing.
    """
    # Imported here, because defining flags does not need TensorFlow.
    from bert_tf.model.options import ForwardOptions
    from bert_tf.ranks.single import SingleProcess
    from bert_tf.tuning.arithmetic import reason_against_native_ops
    from bert_tf.tuning.hardware import probe_hardware

    has_gpu = probe_hardware().has_gpu
    reason = reason_against_native_ops(native_ops, has_gpu=has_gpu, ranks=SingleProcess(1))
    return ForwardOptions(policy).with_native_layers(reason is None)


def kept_or_given(
    given: str | None, kept: Mapping[str, Any]
) -> tuple[str, Mapping[str, str], list[str]]:
    """The precision that was given, or else that of a model's training, or else float32.

    Returns it with the changes of its policy, and warnings. ``kept`` is ``CompleteModel.kept``.
    """
    if given is not None:
        stored = kept.get("precision")
        is_other = stored is not None and given not in (stored, "auto")
        return given, {}, [f"the model was trained with {stored}, not {given}"] if is_other else []
    # Imported here, because defining flags does not need TensorFlow.
    from bert_tf.tuning.hardware import probe_hardware, usable_precision

    return usable_precision(kept, probe_hardware())


def chosen_options(
    config: BertConfig,
    *,
    precision: str = "fp32",
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
) -> tuple[ForwardOptions, list[str]]:
    """The data types and layer implementation for predictions, and warnings.

    Args:
      precision: one of ``precision.PRECISIONS``, or ``auto`` for what is fastest on this kind of
        machine.
      native_ops: as in :func:`prediction_options`.
      policy_changes: class of operation -> data type, where it differs from the precision's.

    Raises UserError for an unknown precision, for bfloat16 on a processor that does not compute it,
    and if native operations are required but missing.
    """
    # Imported here, because defining flags does not need TensorFlow.
    from bert_tf.ranks.single import SingleProcess
    from bert_tf.tuning.arithmetic import choose

    arithmetic = choose(
        config,
        ranks=SingleProcess(),
        precision=precision,
        native_ops=native_ops,
        policy_changes=policy_changes,
    )
    return arithmetic.options, list(arithmetic.warnings)
