"""What all ranks can compute on, and the precision that follows from it."""

from __future__ import annotations

import socket

from bert_tf.config.settings import RuntimeSettings
from bert_tf.errors import UserError
from bert_tf.model import precision
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


def choose_precision(runtime: RuntimeSettings, hardware: precision.Hardware) -> str:
    """The precision of the products; raises UserError for float16 on a CPU."""
    chosen = precision.resolve_precision(runtime.precision, hardware)
    if chosen == "fp16" and not hardware.has_gpu and not runtime.allow_slow_fp16:
        raise UserError(
            "--precision=fp16 on a CPU is hundreds of times slower than fp32, as TensorFlow only "
            f"emulates it there; use --precision={hardware.fast_precisions()[0]}, or "
            "--allow_slow_fp16 for a test."
        )
    return chosen


def precision_warnings(
    runtime: RuntimeSettings, chosen: str, hardware: precision.Hardware
) -> list[str]:
    """What a user should know of a precision that the hardware is not made for."""
    warnings = [precision.slow_precision_warning(chosen, hardware)]
    if runtime.amp and "bf16" not in hardware.fast_precisions() and not hardware.has_gpu:
        warnings.append(
            "--amp is of no use here: this CPU has no bfloat16 products, and TensorFlow may leave "
            "the graph as it is"
        )
    return [warning for warning in warnings if warning]


def needs_loss_scale(runtime: RuntimeSettings, chosen: str, hardware: precision.Hardware) -> bool:
    """Whether gradients pass through float16: in products, TensorFlow's rewrite or on the way."""
    compressed = runtime.horovod and runtime.communication.compression == "fp16"
    return chosen == "fp16" or (runtime.amp and hardware.has_gpu) or compressed
