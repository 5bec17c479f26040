"""What a network is computed with: precision, operations, threads and GPU of its sessions."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions, has_native_form
from bert_tf.model.precision import PRECISIONS, PrecisionPolicy, policy_for
from bert_tf.native import library
from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning.hardware import Hardware, probe_hardware
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    from bert_tf.update.kernels import Kernels

# Entries of the record of a computation that several starts keep.
PRECISION_ENTRY, NATIVE_ENTRY = "--precision", "--native_ops"

# Narrower networks are quick in any precision, and float32 keeps more digits.
LEAST_WIDTH = 128


@dataclasses.dataclass(frozen=True)
class SessionSettings:
    """How a session executes; affects results only by rounding.

    Attributes:
      threads: number of cores that this rank may use.
      gpu: index of this rank's GPU; None without GPUs.
    """

    threads: int
    gpu: int | None = None


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How a network is computed, the same on all ranks.

    Attributes:
      precision: the precision of matrix products, one of ``precision.PRECISIONS``, unless
        ``policy_changes`` say otherwise.
      policy_changes: class of operation -> type, where it differs from the precision's.
      options: the data type of each class of operation, and the implementation of the layers.
      session: how this rank's sessions execute.
      scales_loss: whether the loss is scaled, because gradients may underflow (float16).
      because: what the precision follows from; None if the user gave it.
      against_native_ops: why updates use TensorFlow's operations; None for native ones.
      warnings: sentences on types that are slower than float32.
    """

    precision: str
    options: ForwardOptions
    session: SessionSettings
    scales_loss: bool = False
    policy_changes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    because: str | None = None
    against_native_ops: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def kernels(self) -> Kernels:
        """The operations of the update."""
        from bert_tf.update.kernels import kernels_for

        return kernels_for("compiled by XLA" if self.options.compiled else self.against_native_ops)

    def entries(self) -> dict[str, Any]:
        """What identifies it in the record of a computation, and is kept by a later start."""
        return {
            PRECISION_ENTRY: self.precision,
            NATIVE_ENTRY: self.options.native_layers,
            "--precision_policy": dict(self.policy_changes),
        }


def choose(
    config: BertConfig,
    *,
    ranks: Ranks,
    hardware: Hardware | None = None,
    precision: str = "auto",
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
    allow_slow_fp16: bool = True,
    before: str | None = None,
    recompute: bool = False,
    compiled: bool = False,
    skip_padding: bool = False,
    sends_float16: bool = False,
) -> Arithmetic:
    """Decides what the user left open; nothing is measured. Collective.

    Args:
      config, ranks: the network's configuration, and all ranks.
      hardware: what all ranks compute on; None for this machine's.
      precision: ``auto`` or one of ``precision.PRECISIONS``.
      native_ops: None uses native operations on CPUs if they are built; True requires them.
      policy_changes: class of operation -> type, where it differs from the precision's.
      allow_slow_fp16: False raises UserError for float16 on a CPU.
      before: the precision of the run to resume, or that trained the weights; None if there was
        none. ``auto`` keeps it unless it is slow on this hardware.
      recompute, compiled, skip_padding: as in :class:`ForwardOptions`; compiled layers and updates
        are TensorFlow's.
      sends_float16: whether gradients are float16 when ranks exchange them.

    Raises UserError for an unknown precision, for bfloat16 on a processor that does not compute it,
    and if native operations are required but missing.
    """
    hardware = hardware or probe_hardware()
    wanted = False if compiled else native_ops
    reason = reason_against_native_ops(wanted, has_gpu=hardware.has_gpu, ranks=ranks)
    precision, because = _decided(precision, hardware, config.hidden_size, before)
    changes = policy_changes or {}
    policy = policy_for(precision).changed(changes)
    if not hardware.has_gpu:
        _check_computed(policy, changes, hardware, allow_slow_fp16=allow_slow_fp16)
    return Arithmetic(
        precision,
        ForwardOptions(
            policy,
            recompute=recompute,
            skip_padding=skip_padding,
            native_layers=reason is None and has_native_form(policy),
            compiled=compiled,
        ),
        session_settings(ranks, hardware),
        scales_loss=sends_float16 or bool(policy.classes_in("fp16")),
        policy_changes=changes,
        because=because,
        against_native_ops=reason,
        warnings=tuple(_slow_types(policy, hardware)),
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


def _decided(
    requested: str, hardware: Hardware, hidden_size: int, before: str | None
) -> tuple[str, str | None]:
    """The precision, the same for the same network on the same kind of hardware.

    Also returns what it follows from, for the ledger; None if the user gave it.
    """
    if requested != "auto":
        if requested not in PRECISIONS:
            choices = ", ".join(("auto", *PRECISIONS))
            raise UserError(f"--precision={requested} is unknown; choose one of {choices}.")
        return requested, None
    fastest = hardware.native_precisions()
    if before in fastest:
        return before, "the run's precision before"
    if not hardware.has_gpu and hidden_size < LEAST_WIDTH:
        return "fp32", f"a network less than {LEAST_WIDTH} wide"
    return fastest[0], hardware.describe()


def _check_computed(
    policy: PrecisionPolicy,
    changes: Mapping[str, str],
    hardware: Hardware,
    *,
    allow_slow_fp16: bool,
) -> None:
    """Raises UserError for types that a CPU cannot compute, or only very slowly."""
    in_float16 = policy.classes_in("fp16")
    if in_float16 and not allow_slow_fp16:
        from_file = [name for name in in_float16 if name in changes]
        requested, instead = "--precision=fp16", "--precision=auto"
        if from_file:
            requested = f"float16 for {', '.join(from_file)} (--precision_policy)"
            instead = "float32 or bfloat16 there"
        raise UserError(
            f"{requested} on a CPU is hundreds of times slower than fp32, because TensorFlow only "
            f"emulates it there; use {instead}, or --allow_slow_fp16 for a test."
        )
    if policy.classes_in("bf16") and not hardware.processor.computes_bfloat16:
        raise UserError(
            f"TensorFlow crashes in bfloat16 products on this machine, {hardware.processor.name}; "
            "lift the limit, or use float32."
        )


def _slow_types(policy: PrecisionPolicy, hardware: Hardware) -> Iterator[str]:
    """A sentence for every precision of the policy that is slower than float32."""
    native = hardware.native_precisions()
    where = "GPU" if hardware.has_gpu else "CPU"
    for name in PRECISIONS:
        if name in native or not policy.classes_in(name):
            continue
        if name == "bf16" and not hardware.has_gpu:
            yield f"this is {hardware.describe()}; fp32 is faster here"
        else:
            yield (
                f"this {where} only emulates {name} products, very slowly; {native[0]} is faster "
                "here"
            )


def gpu_index(local_rank: int, gpu_count: int) -> int | None:
    """The index of a rank's GPU among the ``gpu_count`` that its process sees; None without GPUs.

    A process that sees a single GPU uses it: a job scheduler may expose to each rank only its own
    GPU, which then has index 0 on every rank. Raises UserError if no GPU is left for a rank.
    """
    if gpu_count <= 1:
        return 0 if gpu_count else None
    if local_rank >= gpu_count:
        raise UserError(
            f"local rank {local_rank} has no GPU: there are {gpu_count} GPUs on this host, one for "
            f"each of the ranks before it; start at most {gpu_count} ranks on a host."
        )
    return local_rank


def session_settings(ranks: Ranks, hardware: Hardware) -> SessionSettings:
    """How the sessions of this rank execute on its hardware."""
    return SessionSettings(ranks.threads, gpu_index(ranks.local_rank, hardware.gpu_count))


def session_config(settings: SessionSettings) -> tf.ConfigProto:
    """Converts the settings to a tf.ConfigProto."""
    config = tf.ConfigProto(
        intra_op_parallelism_threads=settings.threads,
        # For branches that can run in parallel; products use the intra-op threads.
        inter_op_parallelism_threads=min(2, settings.threads),
        allow_soft_placement=True,
    )
    if settings.gpu is not None:
        config.gpu_options.visible_device_list = str(settings.gpu)
        config.gpu_options.allow_growth = True
    return config
