"""Describes the machine of a measurement, for the results of benchmarks."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from bert_tf.util import environment

_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # these determine the speed of products


def describe_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, object]:
    """``cpu`` (its name), ``cpu_features`` (for fast products) and available ``cores``."""
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return {
        "cpu": name[1].strip() if name else platform.processor() or platform.machine(),
        "cpu_features": [feature for feature in _FEATURES if feature in present],
        "cores": environment.available_cores(),
    }


def machine_line() -> str:
    """The CPU, its features for fast products, and the number of cores."""
    machine = describe_machine()
    return f"{machine['cpu']}, {machine['cores']} cores, {' '.join(machine['cpu_features'])}"
