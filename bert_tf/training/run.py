"""What every job does around its training: ranks, precision, ledger, going on, results."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf import environment
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.data.order import GlobalBatchSlice
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, read_json
from bert_tf.model import precision
from bert_tf.training import distribution, ledger
from bert_tf.training.batch_plan import BatchPlan, StepPlan, resolve_batch_plan, resolve_step_plan
from bert_tf.training.distribution import SingleProcess
from bert_tf.training.evaluation import Evaluation, Results
from bert_tf.training.run_log import RunLog
from bert_tf.training.session import SessionSettings, gpu_of_a_rank
from bert_tf.training.train_op import Objective
from bert_tf.training.trainer import Job, StartPoint, Trainer, find_start


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has begun: its ranks know each other and where they start.

    Attributes:
      settings, runtime: what the user asked for.
      ranks: all ranks.
      start: where training goes on.
      hardware: what every rank can compute on; the number of GPUs is this rank's own.
      precision: name of the products' precision.
      log: None on ranks other than 0.
    """

    settings: RunSettings
    runtime: RuntimeSettings
    ranks: SingleProcess
    start: StartPoint
    hardware: precision.Hardware
    precision: str
    log: RunLog | None

    @property
    def policy(self) -> precision.PrecisionPolicy:
        """The precision of each class of operation."""
        return precision.policy_for(self.precision)

    def batch_slice(self, batch: BatchPlan) -> GlobalBatchSlice:
        """This rank's part of every global batch."""
        return GlobalBatchSlice(batch.global_batch_size, self.ranks.rank, self.ranks.world_size)

    def message(self, text: str) -> None:
        """Prints a line, once for all ranks."""
        if self.log is not None:
            self.log.message(text)


def begin(settings: RunSettings, runtime: RuntimeSettings) -> Run:
    """Connects the ranks, finds the checkpoint to go on from and chooses the precision.

    Raises UserError for an output directory that cannot be used, and for float16 on a CPU.
    """
    environment.quiet_tensorflow(verbose=runtime.verbose)
    if runtime.deterministic:
        tf.compat.v2.config.experimental.enable_op_determinism()
    ranks = distribution.connect(horovod=runtime.horovod, num_threads=runtime.num_threads)
    if ranks.is_chief:
        make_output_dir(settings.output_dir, flag="output_dir")
    start = ranks.broadcast(find_start(settings.output_dir) if ranks.is_chief else None)
    hardware = agree_on_hardware(ranks, precision.probe_hardware())
    chosen = choose_precision(runtime, hardware)
    log = RunLog(settings.output_dir) if ranks.is_chief else None
    run = Run(settings, runtime, ranks, start, hardware, chosen, log)
    for warning in precision_warnings(runtime, chosen, hardware):
        run.message(f"warning: {warning}")
    return run


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
    """Whether gradients pass through float16, by --precision or by TensorFlow's own rewrite."""
    return chosen == "fp16" or (runtime.amp and hardware.has_gpu)


def resolve_plans(
    optimization: OptimizationSettings, ranks: SingleProcess
) -> tuple[BatchPlan, StepPlan]:
    """The arithmetic of batches, steps and learning rate; raises UserError for contradictions."""
    return batch_plan(optimization, ranks), resolve_step_plan(
        num_train_steps=optimization.num_train_steps,
        num_warmup_steps=optimization.num_warmup_steps,
        learning_rate=optimization.learning_rate,
        world_size=ranks.world_size,
        scale_steps_by_ranks=optimization.scale_steps_by_ranks,
        learning_rate_scaling=optimization.learning_rate_scaling,
    )


def batch_plan(optimization: OptimizationSettings, ranks: SingleProcess) -> BatchPlan:
    """The arithmetic of batches alone."""
    return resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=ranks.world_size,
    )


def make_job(
    run: Run,
    *,
    objective: Objective,
    config: BertConfig,
    evaluation: Evaluation | None,
    optimization: OptimizationSettings,
    train_input: Callable[[BatchPlan], tf.data.Dataset],
    length_flag: str = "--num_train_steps",
) -> Job:
    """The job for :class:`Trainer`; ``train_input`` is this rank's data from ``run.start`` on."""
    batch, steps = resolve_plans(optimization, run.ranks)
    return Job(
        objective=objective,
        config=config,
        evaluation=evaluation,
        run=run.settings,
        ranks=run.ranks,
        batch=batch,
        steps=steps,
        optimization=optimization,
        runtime=run.runtime,
        session=SessionSettings(
            threads=run.ranks.threads,
            use_xla=run.runtime.use_xla,
            amp=run.runtime.amp,
            gpu=gpu_of_a_rank(run.ranks.local_rank, run.hardware.gpu_count),
        ),
        needs_loss_scale=needs_loss_scale(run.runtime, run.precision, run.hardware),
        train_input=lambda: train_input(batch),
        length_flag=length_flag,
    )


def execute(run: Run, job: Job, *, train_data: Mapping[str, Any]) -> Results | None:
    """Announces, trains and evaluates as the settings say; returns the last results.

    ``train_data`` is the ledger's section on the data, with ``train_records``, ``sha256`` and
    ``vocabulary_sha256`` in it.
    """
    distribution.check_same_on_all_ranks(
        run.ranks,
        {
            "training data": train_data["sha256"],
            "precision": run.precision,
            "bert_tf version": ledger.versions()["bert_tf"],
        },
    )
    _announce(run, job, train_data)
    trainer = Trainer(job, run.log)
    if run.settings.do_train and not _is_finished(run, job, trainer):
        trainer.train_and_evaluate()
    results = trainer.evaluate_at_end() if run.settings.do_eval else None
    run.message(f"output is in {run.settings.output_dir}")
    return results


def _announce(run: Run, job: Job, train_data: Mapping[str, Any]) -> None:
    """Prints and saves what the run will do, before it does it."""
    settings, start = run.settings, run.start
    if settings.do_train:
        run_ledger = _ledger(run, job, train_data)
        run.message(ledger.format_ledger(run_ledger))
        if run.log is not None:
            if start.checkpoint is not None:
                _compare_with_previous_run(settings.output_dir, run_ledger, run.log)
            ledger.write_run_json(
                settings.output_dir,
                ledger=run_ledger,
                flags=settings.flags,
                model=job.config.to_dict(),
            )
    if start.checkpoint is not None:
        ignored = "; --init_checkpoint is not read again" if settings.init_checkpoint else ""
        run.message(f"going on from {start.checkpoint} (step {start.step}){ignored}")
    elif not settings.do_train and not settings.init_checkpoint:
        raise UserError(
            f"{settings.output_dir} holds no checkpoint; train first, or give --init_checkpoint."
        )


def _ledger(run: Run, job: Job, train_data: Mapping[str, Any]) -> ledger.Ledger:
    return ledger.training_ledger(
        ranks=run.ranks,
        batch=job.batch,
        steps=job.steps,
        optimization=job.optimization,
        precision={
            "policy": run.precision,
            "amp": run.runtime.amp,
            "xla": run.runtime.use_xla,
            **run.policy.describe(),
        },
        num_records=train_data["train_records"],
        data=train_data,
        start_step=run.start.step,
    )


def _compare_with_previous_run(output_dir: Path, run_ledger: ledger.Ledger, log: RunLog) -> None:
    """Raises UserError where a run would go on with ids that mean other words."""
    record = output_dir / "run.json"
    if not record.is_file():
        return
    before = read_json(record, what="run record")["ledger"]["data"]
    now = run_ledger["data"]
    if before["vocabulary_sha256"] != now["vocabulary_sha256"]:
        raise UserError(
            f"{output_dir} holds a model of another vocabulary than the records'; choose another "
            "--output_dir, or give records made with that vocabulary."
        )
    if before["sha256"] != now["sha256"]:
        log.message("the training data are not those that this run began with")


def _is_finished(run: Run, job: Job, trainer: Trainer) -> bool:
    total, start = job.steps.num_train_steps, run.start
    if start.step >= total:
        run.message(
            f"nothing to train: {start.checkpoint} is at step {start.step} and the run ends at "
            f"step {total}; raise {job.length_flag} to go on."
        )
        return True
    return start.checkpoint is not None and trainer.has_stalled()
