"""What a network is computed with: the precision and operations that its user left open."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping

from bert_tf.model.blocks import native_operations
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions, has_native_form
from bert_tf.model.precision import policy_for
from bert_tf.native import library
from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning.hardware import (
    Hardware,
    check_computed,
    decide_precision,
    probe_hardware,
    slow_policy_warnings,
)
from bert_tf.util.errors import UserError


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
    recompute: bool = False,
    compiled: bool = False,
    skip_padding: bool = False,
) -> Choice:
    """Decides what the user left open; nothing is measured. Collective.

    Args:
      config, ranks: the network's configuration, and all ranks.
      hardware: what all ranks compute on; None for this machine's.
      precision: ``auto`` or one of ``precision.PRECISIONS``.
      native_ops: None uses native operations on CPUs if they are built; True requires them.
      policy_changes: class of operation -> type, where it differs from the precision's.
      before: as in :func:`decide_precision`.
      recompute, compiled, skip_padding: as in :class:`ForwardOptions`.

    Raises UserError as :func:`reason_against_native_ops`, :func:`decide_precision` and
    :func:`check_computed` do.
    """
    hardware = hardware or probe_hardware()
    reason = reason_against_native_ops(native_ops, has_gpu=hardware.has_gpu, ranks=ranks)
    precision, because = decide_precision(
        precision, hardware, hidden_size=config.hidden_size, before=before
    )
    policy = policy_for(precision).changed(policy_changes or {})
    check_computed(policy, hardware)
    return Choice(
        precision,
        because,
        ForwardOptions(
            policy,
            recompute=recompute,
            skip_padding=skip_padding,
            native_layers=reason is None and has_native_form(policy),
            compiled=compiled,
        ),
        reason,
        tuple(slow_policy_warnings(policy, hardware)),
    )


def reason_against_native_ops(wanted: bool | None, *, has_gpu: bool, ranks: Ranks) -> str | None:
    """The reason why a job uses TensorFlow's operations; None for native ones. Collective.

    ``wanted`` is True to require native operations, False for TensorFlow's; None uses native ones
    if all ranks have them and compute on CPUs. Raises UserError on every rank if they are required
    but missing on any rank.
    """
    if wanted is False:
        return "--native_ops=false"
    problem = _local_problem(has_gpu)
    found = ranks.gather((socket.gethostname(), problem))
    missing = [
        problem if len(found) == 1 else f"rank {rank} on host {host}: {problem}"
        for rank, (host, problem) in enumerate(found)
        if problem
    ]
    if wanted and missing:
        raise UserError(
            f"--native_ops: {missing[0]}; drop the flag to use TensorFlow's operations."
        )
    return missing[0] if missing else None


def _local_problem(has_gpu: bool) -> str | None:
    """The reason why this rank has no native operations; None if it has both libraries."""
    if has_gpu:
        return "the native operations are for CPUs, and this job runs on GPUs"
    try:
        native_operations()  # of layers
        library.load()  # of updates
    except library.MissingLibrary as error:
        return str(error)
    return None
