"""The kinds of processors, and which of them compute products faster in bfloat16: a table.

``docs/howto/precision.md`` has the measurements behind the rows; ``benchmarks.fastest_setting``
checks a row on the processor that it runs on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path


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
