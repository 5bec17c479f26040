"""Examines a planned run of a script: what would end it, and what looks unwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from absl import flags

from bert_tf.diagnose.disk import checkpoint_sizes, disk_warning
from bert_tf.diagnose.memory import MemoryEstimate, free_memory
from bert_tf.doctor.findings import Findings
from bert_tf.doctor.judgement import judge_records, judge_updates, open_records
from bert_tf.ranks.ranks import PlannedRanks, Ranks
from bert_tf.train.execute import DryRun, dry_runs
from bert_tf.train.job import Job
from bert_tf.util.digest import digest_of_file
from bert_tf.util.directory_lock import LOCK_NAME, named_holder
from bert_tf.util.errors import UserError

_TIGHT = 0.9  # fraction of the free memory; the estimate may be 20 % off
_GIB = 1 << 30
_FOR_GPUS = 8


class Script(Protocol):
    """A script that trains."""

    @property
    def reads_records(self) -> bool:
        """Whether it trains on pre-training records."""

    def settings(self, values: flags.FlagValues) -> Any:
        """Turns parsed flags into settings; raises UserError for invalid flags."""

    def start(self, settings: Any) -> None:
        """Runs the task; raises UserError for bad input."""


def examine(
    script: Script, values: flags.FlagValues, *, num_ranks: int, ranks_per_host: int
) -> Findings:
    """Examines a run of ``script`` with parsed flags; raises UserError for a plan of phases.

    This is a dry run on planned ranks, whose notes are collected, and judgements of its job.
    """
    _require_no_phases(values)
    findings = Findings()
    changed: Any = values  # flags have no types of their own
    changed.dry_run = True
    if num_ranks > 1 and not values.horovod:
        findings.warn(
            "flags",
            f"--num_ranks={num_ranks}, but the run has no --horovod, so each process would train "
            "by itself; add it",
        )
        changed.horovod = True
    ranks = PlannedRanks(num_ranks, local_size=min(ranks_per_host, num_ranks))
    settings = findings.attempt("flags", script.settings, values)
    run = settings and findings.attempt("whole run", _dry_run, script, settings, ranks)
    records = open_records(findings, values) if script.reads_records else {}
    judge_records(findings, records, is_new=run is not None and run.job.is_new)
    if run is not None:
        _judge_output(findings, run.job)
        _judge_model(findings, run.job, is_pretraining=script.reads_records)
        _judge_machine(findings, run)
        if run.memory is not None:
            judge_updates(findings, values, run.job, records)
    _judge_separation(findings, values)
    return findings


def _dry_run(script: Script, settings: Any, ranks: Ranks) -> DryRun:
    """Makes a dry run; of several seeds or trials, the last is returned."""
    with dry_runs(ranks) as done:
        script.start(settings)
    return done[-1]


def _judge_output(findings: Findings, job: Job) -> None:
    """Examines the contents of the output directory."""
    part, directory, start = "output directory", job.settings.output_dir, job.run.start
    if not directory.is_dir():
        findings.fine(part, f"{directory} does not exist yet")
        return
    holder = named_holder(directory)
    if holder is not None and holder.may_be_alive:
        findings.warn(
            part,
            f"{directory} is in use by {holder}; wait for it to end, or choose another directory",
        )
    elif holder is not None:
        findings.hint(part, f"{directory} was last used by {holder}, which did not exit normally")
    if start.checkpoint is not None and not start.is_elsewhere:
        findings.fine(part, f"the run resumes at step {start.step:,} of {start.checkpoint}")
    elif any(path.name != LOCK_NAME for path in directory.iterdir()):
        findings.hint(part, f"{directory} is not empty, but has no checkpoint to resume from")


def _judge_model(findings: Findings, job: Job, *, is_pretraining: bool) -> None:
    """Examines the network, its vocabulary and its weights."""
    files, positions = job.model.tokenizer_files, job.model.config.max_position_embeddings
    if files.file is not None:
        findings.fine("vocabulary", f"{files.file} has {files.load().vocab_size:,} entries")
    if job.is_new and is_pretraining:
        size = job.model.config.vocab_size
        padded = -(-size // _FOR_GPUS) * _FOR_GPUS
        if padded != size:
            findings.hint(
                "vocabulary",
                f"the network's vocab_size is {size}, not a multiple of {_FOR_GPUS}; GPUs are "
                f"faster with --vocab_size={padded}, which has no effect on CPUs",
            )
    elif job.is_new and job.settings.do_train:
        findings.warn(
            "checkpoint",
            "no weights are given, so fine-tuning starts from random ones; give --init_checkpoint",
        )
    elif not job.is_new and job.model.vocabulary is not None:
        findings.fine("checkpoint", f"its vocabulary is that of {job.model.vocabulary.source}")
    if job.data.training is None:
        findings.fine("configuration", f"the network has {positions} positions")
        return
    length = job.data.training.max_seq_length
    if length < positions and job.is_new and is_pretraining:
        findings.hint(
            "configuration",
            f"--max_seq_length={length} leaves the positions up to "
            f"max_position_embeddings={positions} untrained; a later phase has to train them",
        )
    else:
        findings.fine("configuration", f"{length} of the network's {positions} positions are used")


def _judge_machine(findings: Findings, run: DryRun) -> None:
    """Examines memory, disk and precision."""
    job = run.job
    if run.memory is not None:
        judge_memory(findings, run.memory, free_memory(), has_gpu=job.run.hardware.has_gpu)
        sizes = checkpoint_sizes(job)
        problem = disk_warning(sizes, job.settings.output_dir)
        if problem is not None:
            findings.error("disk", problem)
        else:
            space = f"checkpoints take up to {sizes.peak / _GIB:.3g} GiB, which are free"
            findings.fine("disk", space)
    arithmetic = job.arithmetic
    findings.fine("precision", f"{arithmetic.precision}, {arithmetic.kernels.description}")
    findings.fine("whole run", "all checks of the run itself have passed")


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


def _judge_separation(findings: Findings, values: flags.FlagValues) -> None:
    """Compares the files that fine-tuning is trained and evaluated on."""
    names = [name for name in ("train_file", "predict_file") if name in values]
    files = [Path(getattr(values, name)) for name in names if getattr(values, name)]
    if len(files) < 2 or not all(file.is_file() for file in files):
        return
    if digest_of_file(files[0]) == digest_of_file(files[1]):
        findings.warn(
            "questions",
            f"{files[1]} are the training questions, so the scores do not cover unseen ones; give "
            "another --predict_file",
        )


def _require_no_phases(values: flags.FlagValues) -> None:
    if "phases" in values and values.phases:
        first = values.phases.split(",")[0].strip()
        raise UserError(
            f"--phases={values.phases} names several runs; examine each by itself, with "
            f"--flagfile={first} in place of --phases (the run itself checks all of them before "
            "the first one starts)."
        )
