"""What a network is computed with: the precision and operations that its user left open."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning.hardware import (
    Hardware,
    check_computed,
    decide_precision,
    probe_hardware,
    slow_policy_warnings,
)
from bert_tf.tuning.native_ops import reason_against_native_ops


@dataclasses.dataclass(frozen=True)
class Choice:
    """The precision and operations of a network, the same on all ranks.

    Attributes:
      precision: one of ``precision.PRECISIONS``.
      because: what the precision follows from; None if the user gave it.
      options: its policy, and whether layers are native.
      against_native_ops: why updates use TensorFlow's operations; None for native ones.
      warnings: sentences on types that are slower than float32.
    """

    precision: str
    because: str | None
    options: ForwardOptions
    against_native_ops: str | None
    warnings: tuple[str, ...]


def choose(
    config: BertConfig,
    *,
    ranks: Ranks,
    hardware: Hardware | None = None,
    precision: str = "auto",
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
    before: str | None = None,
) -> Choice:
    """Decides what the user left open; nothing is measured. Collective.

    Args:
      config: the network's configuration.
      ranks: all ranks.
      hardware: what all ranks compute on; None for this machine's.
      precision: ``auto`` or one of ``precision.PRECISIONS``.
      native_ops: None uses native operations on CPUs if they are built; True requires them.
      policy_changes: class of operation -> type, where it differs from the precision's.
      before: as in :func:`decide_precision`.

    Raises UserError as :func:`reason_against_native_ops`, :func:`decide_precision` and
    :func:`check_computed` do.
    """
    hardware = hardware or probe_hardware()
    reason = reason_against_native_ops(native_ops, has_gpu=hardware.has_gpu, ranks=ranks)
    decided = decide_precision(precision, hardware, hidden_size=config.hidden_size, before=before)
    policy = policy_for(decided.name).changed(policy_changes or {})
    check_computed(policy, hardware)
    return Choice(
        decided.name,
        decided.because,
        ForwardOptions(policy).with_native_layers(reason is None),
        reason,
        tuple(slow_policy_warnings(policy, hardware)),
    )
