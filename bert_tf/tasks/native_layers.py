"""Whether a prediction computes what lies between a layer's products by native operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bert_tf.command_line import flag_group

if TYPE_CHECKING:
    from bert_tf.model.precision import PrecisionPolicy


@flag_group("Model and precision")
def define_native_flag() -> None:
    """Defines --native_ops, of commands that compute on this machine only."""
    flags.DEFINE_bool(
        "native_ops",
        None,
        "Compute what lies between a layer's products with the operations that set-up compiled "
        "(default: on CPUs, where they are built).",
    )


def native_layers(policy: PrecisionPolicy, wanted: bool | None) -> PrecisionPolicy:
    """The policy with native operations between the products, where it should have them.

    Args:
      policy: the type of each class of operation; there are native operations for some only.
      wanted: true insists on operations that are built, false does without, None takes them on
        CPUs where they are built.

    Raises UserError where they are insisted on and missing.
    """
    # Imported here: flags are defined without TensorFlow.
    from bert_tf.model.precision import probe_hardware
    from bert_tf.ranks.distribution import SingleProcess
    from bert_tf.update.kernels import choose_kernels

    has_gpu = probe_hardware().has_gpu
    return choose_kernels(wanted, has_gpu=has_gpu, ranks=SingleProcess(1)).layers(policy)
