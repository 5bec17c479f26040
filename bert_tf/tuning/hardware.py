"""What all ranks can compute on, and the precisions that go with it."""

from __future__ import annotations

import socket

from bert_tf.config.settings import RuntimeSettings
from bert_tf.errors import UserError
from bert_tf.model import precision
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.ranks.distribution import SingleProcess


def agree_on_hardware(ranks: SingleProcess, own: precision.Hardware) -> precision.Hardware:
    """``own``, reduced to what all ranks can do, so that they choose one precision.

    Raises UserError on every rank where some have a GPU and others have none.
    """
    everywhere = ranks.gather((socket.gethostname(), own))
    without = [(rank, host) for rank, (host, found) in enumerate(everywhere) if not found.has_gpu]
    if 0 < len(without) < len(everywhere):
        rank, host = without[0]
        raise UserError(
            f"rank {rank} on host {host} finds no GPU, and others have one; look at nvidia-smi on "
            "that host, or hide all GPUs with CUDA_VISIBLE_DEVICES=-1."
        )
    return precision.weakest(own, [found for _, found in everywhere])


def choose_policy(
    runtime: RuntimeSettings, base: str, hardware: precision.Hardware
) -> PrecisionPolicy:
    """The policy of the precision ``base`` with the changes that the user asked for.

    That of ``auto`` is float32's, until something has been measured. Raises UserError for float16
    on a CPU.
    """
    policy = precision.policy_for("fp32" if base == "auto" else base)
    policy = policy.changed(runtime.policy_changes)
    in_float16 = policy.classes_in("fp16")
    if in_float16 and not hardware.has_gpu and not runtime.allow_slow_fp16:
        from_file = [name for name in in_float16 if name in runtime.policy_changes]
        asked, instead = runtime.precision_flag, "--precision=auto"
        if from_file:
            asked = f"float16 for {', '.join(from_file)} (--precision_policy)"
            instead = "float32 or bfloat16 there"
        raise UserError(
            f"{asked} on a CPU is hundreds of times slower than fp32, as TensorFlow only emulates "
            f"it there; use {instead}, or --allow_slow_fp16 for a test."
        )
    return policy


def comparable_policy_changes(runtime: RuntimeSettings) -> dict[str, str]:
    """What --precision_policy says, as facts to compare: the file may lie anywhere on a host."""
    changes = runtime.policy_changes
    return {f"--precision_policy's {name}": changes[name] for name in sorted(changes)}


def needs_loss_scale(
    runtime: RuntimeSettings, policy: PrecisionPolicy, hardware: precision.Hardware
) -> bool:
    """Whether gradients pass through float16: in the network, by --amp or on their way."""
    compressed = runtime.horovod and runtime.communication.compression == "fp16"
    return bool(policy.classes_in("fp16")) or (runtime.amp and hardware.has_gpu) or compressed
