"""The hardware common to all ranks, and the precision that follows from it: a table, no trial.

The same weights on the same kind of machine are computed in the same precision, however busy it
is. No other module asks TensorFlow which devices exist.

``docs/howto/precision.md`` has the measurements behind the rows of processors;
``benchmarks.fastest_setting`` checks a row on the processor that it runs on.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommandLine, RuntimeSettings
from bert_tf.ranks.ranks import Ranks
from bert_tf.util.errors import UserError

_PRECISION_FLAGS = {"precision", "precision_policy", "amp", "use_fp16"}


@dataclasses.dataclass(frozen=True)
class Processor:
    """A kind of processor.

    Attributes:
      name: what the kind has, for the ledger.
      bfloat16: how products in bfloat16 compare with those in float32, a clause.
      prefers_bfloat16: whether they are faster.
      computes_bfloat16: False if TensorFlow crashes in them.
    """

    name: str
    bfloat16: str
    prefers_bfloat16: bool = False
    computes_bfloat16: bool = True


AMX = Processor(
    "a processor with AMX", "bfloat16 products run at 4 times float32's rate", prefers_bfloat16=True
)
AMD_BF16 = Processor(
    "an AMD processor with AVX512_BF16",
    "bfloat16 products run at twice float32's rate",
    prefers_bfloat16=True,
)
OTHER_BF16 = Processor(
    "a processor with AVX512_BF16 and without AMX, not of AMD",
    "bfloat16 products run at half of float32's rate",
)
PLAIN = Processor(
    "a processor without bfloat16 instructions that TensorFlow uses",
    "bfloat16 products are emulated, at half of float32's rate",
)
# TensorFlow asks the processor for AVX-512, and oneDNN, which may be limited to fewer
# instructions, then has no bfloat16 product; that ends the process in C++.
LIMITED = Processor(
    "a processor with AVX-512 that oneDNN may not use (see ONEDNN_MAX_CPU_ISA)",
    "TensorFlow crashes in bfloat16 products",
    computes_bfloat16=False,
)

# What several hosts have in common is the last of their kinds.
KINDS = (AMX, AMD_BF16, OTHER_BF16, PLAIN, LIMITED)

# What oneDNN needs of AVX-512 for any bfloat16 product; TensorFlow asks for the first alone.
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")

# Values of ONEDNN_MAX_CPU_ISA, or DNNL_MAX_CPU_ISA, and the features that they hide from oneDNN.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_HIDDEN = {
    ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"): {"amx_bf16"},
    ("AVX512_CORE", "AVX512_CORE_VNNI"): {"amx_bf16", "avx512_bf16"},
    ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"): {"amx_bf16", "avx512_bf16", *_AVX512},
}


def this_processor(
    cpuinfo: str = "/proc/cpuinfo", variables: Mapping[str, str] = os.environ
) -> Processor:
    """The kind of this machine's processor, as far as oneDNN may use it.

    ``variables`` are those of the environment.
    """
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return PLAIN
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    features = set(found.get("flags", "").split())
    if variables.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        return PLAIN
    limit = next((variables[name] for name in _LIMITS if name in variables), "").upper()
    hidden = next((hidden for limits, hidden in _HIDDEN.items() if limit in limits), set())
    return _kind(found.get("vendor_id", ""), features, features - hidden)


def _kind(vendor: str, features: set[str], usable: set[str]) -> Processor:
    """The row for a vendor, a processor's features, and those of them that oneDNN may use."""
    if "avx512f" in features and not usable.issuperset(_AVX512):
        return LIMITED
    if "amx_bf16" in usable:
        return AMX
    if "avx512_bf16" in usable:
        return AMD_BF16 if vendor == "AuthenticAMD" else OTHER_BF16
    return PLAIN


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a job computes on: GPUs, or the CPU if there are none.

    Attributes:
      gpu_compute_capability: (major, minor) of the weakest GPU; None without GPUs.
      gpu_count: number of GPUs visible to this process; a job scheduler may expose only one.
      processor: the kind of the CPU.
    """

    gpu_compute_capability: tuple[int, int] | None = None
    gpu_count: int = 0
    processor: Processor = PLAIN

    @property
    def has_gpu(self) -> bool:
        """Whether TensorFlow can use a GPU here."""
        return self.gpu_compute_capability is not None

    def native_precisions(self) -> tuple[str, ...]:
        """The precisions whose products are not slower than float32's, fastest first."""
        if self.gpu_compute_capability is None:
            return ("bf16", "fp32") if self.processor.prefers_bfloat16 else ("fp32",)
        major, _ = self.gpu_compute_capability
        if major >= 8:
            return ("bf16", "fp16", "fp32")
        return ("fp16", "fp32") if major == 7 else ("fp32",)

    def describe(self) -> str:
        """What a precision follows from, for the ledger."""
        if self.gpu_compute_capability is None:
            return f"{self.processor.name}: {self.processor.bfloat16}"
        major, minor = self.gpu_compute_capability
        return f"a GPU of compute capability {major}.{minor}"


def probe_hardware() -> Hardware:
    """The hardware of this machine. Starts the GPU driver, so only entry scripts call it."""
    capabilities = [
        tf.config.experimental.get_device_details(device).get("compute_capability", (0, 0))
        for device in tf.config.list_physical_devices("GPU")
    ]
    return Hardware(
        gpu_compute_capability=min(capabilities) if capabilities else None,
        gpu_count=len(capabilities),
        processor=this_processor(),
    )


def peak_gpu_bytes(gpu: int | None) -> int | None:
    """The most memory of its GPU that this process has used so far; None if it cannot be known.

    ``gpu`` is the index of the rank's GPU, None without GPUs.
    """
    if gpu is None:
        return None
    config = tf.compat.v2.config
    device = config.list_physical_devices("GPU")[gpu]
    try:
        # The statistics are those of eager execution, which must see the GPU as sessions do.
        config.set_visible_devices(device, "GPU")
        config.experimental.set_memory_growth(device, True)
        return config.experimental.get_memory_info("GPU:0")["peak"]
    except (RuntimeError, ValueError, tf.errors.OpError):
        return None


def weakest(local: Hardware, everywhere: Sequence[Hardware]) -> Hardware:
    """This rank's hardware, reduced to what the hardware of all ranks can do."""
    found = [hardware.gpu_compute_capability for hardware in everywhere]
    capabilities = [capability for capability in found if capability is not None]
    have_all = len(capabilities) == len(found)
    return Hardware(
        gpu_compute_capability=min(capabilities) if have_all else None,
        gpu_count=local.gpu_count,
        processor=max((hardware.processor for hardware in everywhere), key=KINDS.index),
    )


def agree_on_hardware(ranks: Ranks, local: Hardware) -> Hardware:
    """The hardware that all ranks have in common, so that they choose the same precision.

    ``local`` is this rank's hardware.

    Raises UserError on every rank if some ranks have a GPU and others do not.
    """
    everywhere = ranks.gather((socket.gethostname(), local))
    without = [(rank, host) for rank, (host, found) in enumerate(everywhere) if not found.has_gpu]
    if 0 < len(without) < len(everywhere):
        rank, host = without[0]
        raise UserError(
            f"rank {rank} on host {host} finds no GPU, but others have one; run nvidia-smi on that "
            "host, or hide all GPUs with CUDA_VISIBLE_DEVICES=-1."
        )
    return weakest(local, [found for _, found in everywhere])


def settled(
    runtime: RuntimeSettings,
    hardware: Hardware,
    *,
    kept: Mapping[str, Any] | None = None,
    command: CommandLine | None = None,
) -> tuple[RuntimeSettings, list[str]]:
    """The user's choices, with what they leave to the hardware decided; and notes.

    XLA compiles on GPUs unless the user says otherwise: there, each operation that is not fused
    with others reads and writes the memory. On CPUs its products are slower than TensorFlow's.
    ``--amp`` means float16 on GPUs, as in NVIDIA's scripts, and bfloat16 on CPUs. A model that was
    trained predicts in the precision of its training, which ``kept`` has, unless ``command`` gives
    one.
    """
    numerics, notes = runtime.numerics, list[str]()
    precision, changes = numerics.precision, numerics.policy_changes
    if numerics.amp:
        precision = "fp16" if hardware.has_gpu else "bf16"
    if kept is not None and "precision" in kept:
        given = command.values.keys() - command.defaulted if command else ()
        stored = kept["precision"], kept.get("precision_policy", {})
        if not _PRECISION_FLAGS.intersection(given):
            precision, changes, notes = usable_precision(kept, hardware)
        elif precision not in (stored[0], "auto") or changes != stored[1]:
            notes = [
                f"warning: --precision={precision}, but the model was trained with {stored[0]}; "
                "other commands and load_model predict with that"
            ]
    numerics = dataclasses.replace(numerics, amp=False, precision=precision, policy_changes=changes)
    use_xla = hardware.has_gpu if runtime.use_xla is None else runtime.use_xla
    return dataclasses.replace(runtime, use_xla=use_xla, numerics=numerics), notes


def comparable_policy_changes(runtime: RuntimeSettings) -> dict[str, str]:
    """The content of --precision_policy, to compare ranks: its path may differ between hosts."""
    changes = runtime.numerics.policy_changes
    return {f"--precision_policy's {name}": changes[name] for name in sorted(changes)}


def usable_precision(
    kept: Mapping[str, Any], hardware: Hardware
) -> tuple[str, Mapping[str, str], list[str]]:
    """The precision of a model's training with its policy's changes, or float32; and notes.

    It is float32 where the other cannot be computed, and for a model that does not state one.
    ``kept`` is ``CompleteModel.kept``.
    """
    stored, computed = kept.get("precision", "fp32"), hardware.native_precisions()
    if not hardware.has_gpu and hardware.processor.computes_bfloat16:
        computed = ("fp32", "bf16")
    if stored in computed:
        return stored, kept.get("precision_policy", {}), []
    note = (
        f"the model was trained with --precision={stored}, which is only emulated here, so it "
        "predicts in fp32; probabilities may differ in the third digit"
    )
    return "fp32", {}, [note]
