"""What a prediction computes with: its precision, and native operations between the products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bert_tf.command_line import flag_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bert_tf.config.bert_config import BertConfig
    from bert_tf.model.options import ForwardOptions
    from bert_tf.model.precision import PrecisionPolicy


@flag_group("Model and precision")
def define_native_flag() -> None:
    """Defines --native_ops, of commands that compute on this machine only."""
    flags.DEFINE_bool(
        "native_ops",
        None,
        "Compute what lies between a layer's products with the operations that set-up compiled "
        "(default: on CPUs, where they are built and faster).",
    )


def prediction_options(policy: PrecisionPolicy, native_ops: bool | None) -> ForwardOptions:
    """How a prediction computes its network's layers.

    Args:
      policy: the type of each class of operation; native operations exist for some types only.
      native_ops: true insists on operations that are built, false does without, None takes them on
        CPUs where they are built.

    Raises UserError where they are insisted on and missing.
    """
    # Imported here: flags are defined without TensorFlow.
    from bert_tf.model.options import ForwardOptions
    from bert_tf.ranks.distribution import SingleProcess
    from bert_tf.tuning.hardware import probe_hardware
    from bert_tf.tuning.native_ops import reason_against_native_ops

    has_gpu = probe_hardware().has_gpu
    reason = reason_against_native_ops(native_ops, has_gpu=has_gpu, ranks=SingleProcess(1))
    return ForwardOptions(policy).with_native_layers(reason is None)


def measured_options(
    config: BertConfig,
    *,
    precision: str = "fp32",
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
    sequences: int,
    length: int,
) -> tuple[ForwardOptions, list[str]]:
    """The types and the form of the layers that a prediction is computed with, and warnings.

    Args:
      config: the network's.
      precision: one of ``precision.PRECISIONS``; ``auto`` takes the faster one.
      native_ops: true insists on operations that are built, false does without, None takes them
        on CPUs where they are built and faster.
      policy_changes: module class -> type, where it is not that of the precision.
      sequences, length: of the largest batch.

    Raises UserError for an unknown precision, and where native operations are insisted on and
    missing.
    """
    # Imported here: flags are defined without TensorFlow.
    from bert_tf.ranks.distribution import SingleProcess
    from bert_tf.tuning.hardware import probe_hardware, slow_policy_warnings
    from bert_tf.tuning.speed_choice import Wanted, measured_choice

    choice = measured_choice(
        Wanted(precision, native_ops, policy_changes or {}),
        config,
        sequences=sequences,
        length=length,
        accumulation_steps=0,
        ranks=SingleProcess(),
    )
    slow = slow_policy_warnings(choice.options.policy, probe_hardware())
    return choice.options, [*slow, *choice.warnings]
