"""Memory and disk space that a run needs, compared with what this machine has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bert_tf.config.settings import OptimizationSettings, RunSettings
from bert_tf.doctor.findings import Findings
from bert_tf.model.variables import VariableSpec
from bert_tf.train.disk import checkpoint_sizes, disk_warning
from bert_tf.train.job import Job
from bert_tf.train.memory import MemoryEstimate, estimate_memory
from bert_tf.update.batch_plan import StepPlan

_MEMORY, _DISK = "memory", "disk"
_TIGHT = 0.9  # share of the free memory, since the estimate may be 20 % off
_GIB = 1 << 30


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that processes may still allocate, of the system and the container; None: unknown."""
    limits = []
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
        limits += [int(found[1]) * 1024] if found else []
        most = (cgroup / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # another system, or no container
    return min(limits, default=None)


def judge_memory_of(findings: Findings, job: Job) -> None:
    """Compares what a job needs with what is free here."""
    has_gpu = job.run.hardware.has_gpu
    judge_memory(findings, estimate_memory(job), free_memory(), has_gpu=has_gpu)


def judge_memory(
    findings: Findings, estimate: MemoryEstimate, free: int | None, *, has_gpu: bool
) -> None:
    """Compares the estimate for all ranks of a host with its free memory."""
    needed = estimate.total * estimate.local_size
    ranks = f"{estimate.local_size} ranks need" if estimate.local_size > 1 else "the run needs"
    shown = f"{ranks} about {needed / _GIB:.2f} GiB"
    if has_gpu or free is None:
        what = "the GPU's memory" if has_gpu else "this system's free memory"
        findings.fine(_MEMORY, f"{shown}; {what} is not known here, compare it yourself")
        return
    shown += f", {free / _GIB:.2f} GiB are free on this machine"
    if needed > free:
        findings.error(
            _MEMORY,
            f"{shown}; lower --train_batch_size with more --num_accumulation_steps, or give "
            "--recompute",
        )
    elif needed > _TIGHT * free:
        findings.warn(_MEMORY, f"{shown}, which is tight; the estimate may be 20 % off")
    else:
        findings.fine(_MEMORY, shown)


def judge_disk(
    findings: Findings,
    specs: Sequence[VariableSpec],
    run: RunSettings,
    optimization: OptimizationSettings,
    steps: StepPlan,
    *,
    start_step: int,
) -> None:
    """Compares the checkpoints that are kept with the free space of the output directory."""
    sizes = checkpoint_sizes(
        specs, run, optimization, start_step=start_step, last_step=steps.last_step
    )
    problem = disk_warning(sizes, run.output_dir)
    if problem is not None:
        findings.error(_DISK, problem)
    else:
        findings.fine(_DISK, f"checkpoints take up to {sizes.peak / _GIB:.3g} GiB, which are free")
