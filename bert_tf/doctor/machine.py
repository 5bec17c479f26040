"""Compares the memory and disk space that a run needs with what this machine has."""

from __future__ import annotations

from pathlib import Path

from bert_tf.diagnose.disk import CheckpointSizes, disk_warning
from bert_tf.diagnose.memory import MemoryEstimate
from bert_tf.doctor.findings import Findings

_TIGHT = 0.9  # fraction of the free memory; the estimate may be 20 % off
_GIB = 1 << 30


def judge_memory(
    findings: Findings, estimate: MemoryEstimate, free: int | None, *, has_gpu: bool
) -> None:
    """Compares the estimate for all ranks of a host with the free memory here."""
    needed = estimate.total * estimate.local_size
    ranks = f"{estimate.local_size} ranks need" if estimate.local_size > 1 else "the run needs"
    shown = f"{ranks} about {needed / _GIB:.2f} GiB"
    if has_gpu or free is None:
        what = "the GPU's memory" if has_gpu else "this system's free memory"
        findings.fine("memory", f"{shown}; {what} is not known here, so compare it yourself")
        return
    shown += f", {free / _GIB:.2f} GiB are free on this machine"
    if needed > free:
        findings.error(
            "memory",
            f"{shown}; lower --train_batch_size with more --num_accumulation_steps, or give "
            "--recompute",
        )
    elif needed > _TIGHT * free:
        findings.warn("memory", f"{shown}, which is tight; the estimate may be 20 % off")
    else:
        findings.fine("memory", shown)


def judge_disk(findings: Findings, sizes: CheckpointSizes, output_dir: Path) -> None:
    """Compares the checkpoints that will be kept with the free space at the output directory."""
    problem = disk_warning(sizes, output_dir)
    if problem is not None:
        findings.error("disk", problem)
    else:
        findings.fine("disk", f"checkpoints take up to {sizes.peak / _GIB:.3g} GiB, which are free")
