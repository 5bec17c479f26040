"""The trainer: trains the model of a job, evaluates during and after training, and resumes.

All jobs of the toolkit are trained by this module.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import newest_checkpoint
from bert_tf.checkpoint.tensorflow_file import damaged
from bert_tf.config.settings import RuntimeSettings
from bert_tf.diagnose.guard import NonFiniteError, NonFiniteGuard
from bert_tf.input.batches import user_errors
from bert_tf.model.task import Features, Network, Task, create_network
from bert_tf.train import evaluation, hooks, loop
from bert_tf.train.job import Job
from bert_tf.train.plan import Plan
from bert_tf.train.progress import ProgressHook, StartUp, Throughput, training_lines
from bert_tf.train.run_log import EVALUATIONS, RunLog, read_history
from bert_tf.train.start_point import ResumingSaver, find_start
from bert_tf.tuning.arithmetic import session_config
from bert_tf.tuning.hardware import peak_gpu_bytes
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.loss_scale import DynamicLossScale, LossScale, StaticLossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import TrainOutputs, UpdateSettings, build_train_op
from bert_tf.util.errors import UserError, first_line


class Trainer:
    """Trains and evaluates one job on this rank; all ranks call the same methods."""

    def __init__(self, job: Job) -> None:
        """Stores the job; creates neither graphs nor files."""
        self._job = job
        self._last_results: evaluation.Results | None = None
        self._throughput = Throughput()
        if job.arithmetic.options.compiled and not job.run.runtime.verbose:
            from bert_tf.model.compilation import silence_first_compilation

            silence_first_compilation(session_config(job.arithmetic.session))

    def train(self) -> None:
        """Trains up to the last step, pausing for evaluations if the settings request them.

        On a stop signal, all ranks save a checkpoint and exit with 128 + signal. Raises
        NonFiniteError if too many updates in a row are not finite. Collective.
        """
        stop = hooks.StopOnSignal(self._job.run.watch)
        started, job = time.monotonic(), self._job
        try:
            with _explained_errors(job):
                loop.train(
                    job.train_input,
                    functools.partial(self._build_training, stop),
                    last_step=job.plan.last_step,
                    checkpoint_dir=str(job.settings.output_dir) if self._reads_weights else None,
                    seed=job.settings.seed,
                    config=session_config(job.arithmetic.session),
                )
        except NonFiniteError:
            stop.restore()
            raise
        log = job.run.log
        if log is not None and self._throughput.updates:
            self._report_totals(log, time.monotonic() - started)
        if stop.agreed:
            if log is not None:
                log.message(
                    f"stopped by {stop.agreed.name}; {self._latest_checkpoint()} was saved; run "
                    "again to resume"
                )
            # mpirun kills all ranks as soon as one of them exits with a non-zero status.
            job.run.ranks.gather(None)
            raise SystemExit(128 + stop.agreed)

    def _report_totals(self, log: RunLog, seconds: float) -> None:
        totals = self._throughput.totals(
            seconds,
            has_loss_scale=self._job.arithmetic.scales_loss,
            peak_gpu_bytes=peak_gpu_bytes(self._job.arithmetic.session.gpu),
        )
        for line in training_lines(totals):
            log.message(line)
        log.record({"training": totals})

    def evaluate(self) -> evaluation.Results:
        """Evaluates the newest checkpoint over the whole held-out set and writes the results."""
        results = self.predict(self._job.evaluation)
        if self._job.run.log is not None:
            self._keep(self._job.run.log, results)
        self._last_results = results
        return results

    def predict(self, wanted: evaluation.Evaluation) -> evaluation.Results:
        """Like :meth:`evaluate`, but writes only the files that ``wanted`` itself writes."""
        job, settings = self._job, self._job.settings
        task = job.model.evaluated or job.task
        with _explained_errors(job):
            outputs = loop.predict(
                wanted.dataset,
                lambda features: wanted.outputs(self._network(task), features),
                checkpoint=self._latest_checkpoint() if self._reads_weights else None,
                hooks=self._job.run.ranks.broadcast_hooks(),
                seed=settings.seed,
                config=session_config(job.arithmetic.session),
            )
            return wanted.run(outputs, settings.output_dir)

    def evaluate_at_end(self) -> evaluation.Results:
        """Like :meth:`evaluate`, but does not evaluate the same weights twice."""
        # Directories of that name on other ranks' local disks do not belong to this run.
        ranks = self._job.run.ranks
        newest = find_start(self._job.settings.output_dir).step if ranks.is_chief else None
        step = ranks.broadcast(newest)
        if self._last_results is not None and self._last_results["global_step"] == step:
            return self._last_results
        return self.evaluate()

    def catch_up_on_evaluation(self) -> None:
        """Evaluates the checkpoint that the run resumes from, if a kill prevented that.

        Early stopping and the best checkpoint are then the same as without the kill.
        """
        settings, step = self._job.settings, self._job.run.start.step
        if (
            settings.evaluation.eval_every_steps is None
            or step == 0
            or step % settings.evaluation.eval_every_steps
        ):
            return
        is_missing = None
        if self._job.run.log is not None:
            history = read_history(settings.output_dir, EVALUATIONS)
            is_missing = all(record["step"] != step for record in history)
        if self._job.run.ranks.broadcast(is_missing):
            self.evaluate()

    def _evaluate_during_training(self) -> bool:
        """Evaluates; returns, equally on every rank, whether training should end here."""
        self.evaluate()
        return self.has_stalled()

    def has_stalled(self) -> bool:
        """Whether early stopping applies: too many evaluations without a new best one."""
        settings = self._job.settings
        if settings.evaluation.early_stopping_evaluations is None:
            return False
        log, figure, found = self._job.run.log, self._job.evaluation.figure, None
        if log is not None:
            found = evaluation.evaluations_since_best(settings.output_dir, figure)
        since = self._job.run.ranks.broadcast(found)
        stalled = since >= settings.evaluation.early_stopping_evaluations
        if stalled and log is not None:
            best = settings.output_dir / evaluation.BEST_DIRECTORY
            kept = f"; the best checkpoint is in {best}" * settings.evaluation.keep_best
            log.message(
                f"stopped early: the last {since} evaluations did not improve {figure.name}{kept}"
            )
        return stalled

    def _keep(self, log: RunLog, results: evaluation.Results) -> None:
        settings, output_dir = self._job.settings, self._job.settings.output_dir
        evaluation.write_results(output_dir, results)
        checkpoint = self._latest_checkpoint() if settings.evaluation.keep_best else None
        best = checkpoint is not None and evaluation.keep_if_best(
            output_dir,
            checkpoint,
            results,
            self._job.evaluation.figure,
            evaluated_data=self._job.evaluated_data,
        )
        note = f"  (best so far, kept in {output_dir / evaluation.BEST_DIRECTORY})" if best else ""
        figures = {name: value for name, value in results.items() if name != "global_step"}
        step, given = int(results["global_step"]), settings.start.init_checkpoint or ""
        log.evaluation(step, figures, note=note, of="" if step or settings.do_train else given)

    @property
    def _reads_weights(self) -> bool:
        """Whether this rank reads checkpoints; the others receive all variables from rank 0."""
        return self._job.run.ranks.is_chief

    def _network(self, task: Task) -> Network:
        job = self._job
        network = create_network(task, job.arithmetic.options, seed=job.settings.seed)
        if self._reads_weights:
            initialise_weights(job, network)
        return network

    def _build_training(self, stop: hooks.StopOnSignal, features: Features) -> loop.Update:
        network = self._network(self._job.task)
        outputs = build_update(self._job, network, features)
        saver = self._saver(outputs)
        return loop.Update(
            outputs.train_op, saver, [stop, *self._hooks(network, outputs, features, saver)]
        )

    def _latest_checkpoint(self) -> str | None:
        return newest_checkpoint(self._job.settings.output_dir)

    def _hooks(
        self, network: Network, outputs: TrainOutputs, features: Features, saver: ResumingSaver
    ) -> list[tf.train.SessionRunHook]:
        job, run, settings = self._job, self._job.run, self._job.settings
        is_compiled = job.arithmetic.options.compiled
        session_hooks: list[tf.train.SessionRunHook] = [*run.ranks.broadcast_hooks()]
        if outputs.slots and run.start.checkpoint is not None:
            from bert_tf.train.shared_slots import ReceiveSlots

            session_hooks.append(ReceiveSlots(outputs.slots, saver, run.ranks))
        every = settings.log.layer_summary_steps
        # If the optimizer state is sharded, all ranks must add up the norms of their parts.
        if every and (run.log is not None or outputs.slots):
            from bert_tf.diagnose.layer_summaries import LayerSummaries

            session_hooks.append(LayerSummaries(outputs, every_steps=every, log=run.log))
        shape = _compiled_shape(features, job.plan.batch) if is_compiled else None
        session_hooks += [
            ProgressHook(outputs, job, self._throughput, batch_shape=shape),
            NonFiniteGuard(outputs, job, network, features),
        ]
        if run.log is not None or outputs.slots:
            session_hooks.append(hooks.CheckpointHook(outputs, job, saver))
        if run.log is not None:
            session_hooks.append(StartUp(run.log, self._throughput, is_compiled=is_compiled))
        if settings.evaluation.eval_every_steps is not None:
            session_hooks.append(hooks.EvaluationHook(outputs, job, self._evaluate_during_training))
        return session_hooks

    def _saver(self, outputs: TrainOutputs) -> ResumingSaver:
        job, run = self._job, self._job.run
        # Relative paths allow a run to be resumed after its directory was moved.
        options: dict[str, Any] = {
            "consumed": run.start.consumed(job.plan.batch.global_batch_size),
            "loss_scale": run.runtime.numerics.loss_scale.initial,
            "max_to_keep": job.settings.keep_checkpoint_max,
            "save_relative_paths": True,
        }
        if not outputs.slots:
            return ResumingSaver(tf.global_variables(), **options)
        from bert_tf.train.shared_slots import SharingSaver

        return SharingSaver(tf.global_variables(), slots=outputs.slots, ranks=run.ranks, **options)


def initialise_weights(job: Job, network: Network) -> None:
    """Sets the initial values of weights that come from checkpoints, in the current graph.

    The weights of a run that resumes are restored later.
    """
    initial = job.model.initial
    new = initial.checkpoint
    if new and newest_checkpoint(job.settings.output_dir):
        new = None
    if not (job.model.frozen or new):
        return
    from bert_tf.checkpoint import loading

    for prefix, checkpoint in job.model.frozen.items():
        frozen = network.variables.frozen(prefix)
        if frozen:  # an evaluation may not need them
            loading.initialise_from_checkpoint(checkpoint, frozen, prefix=f"{prefix}/")
    if new:
        loading.initialise_from_checkpoint(
            new,
            network.variables.trainable(),
            allowed_fresh=job.settings.start.allowed_fresh,
            heads=network.task.heads,
            layers=initial.layers,
        )


def build_update(job: Job, network: Network, features: Features) -> TrainOutputs:
    """Adds one update of a job to the current graph, which contains its network.

    ``features`` are this rank's part of a global batch, [accumulation steps x micro batch, ...].
    """
    run, plan, arithmetic = job.run, job.plan, job.arithmetic
    requested = plan.requested
    step = tf.train.get_or_create_global_step().read_value()
    learning_rate = plan.schedule.rate(step + plan.batch.offset)
    return build_train_op(
        network,
        features,
        plan=plan.batch,
        optimizer=_optimizer(
            plan,
            learning_rate,
            progress=(step + plan.batch.offset) / plan.schedule.total_steps
            if requested.trained_from
            else 0.0,
            kernels=arithmetic.kernels,
            ranks=run.ranks,
            product_type=arithmetic.options.policy.dense,
            shard_state=requested.shard_optimizer_state,
        ),
        learning_rate=learning_rate,
        loss_scale=_loss_scale(run.runtime, needed=arithmetic.scales_loss),
        ranks=run.ranks,
        settings=UpdateSettings(
            clip_norm=requested.clip_norm,
            loss_normalization=requested.batch.loss_normalization,
            allreduce_every_micro_batch=requested.allreduce_every_micro_batch,
            most_rows=plan.batch.micro_batch_size * job.training.most_tokens,
            seed=job.settings.seed,
        ),
    )


def create_run_state(network: Network, plan: Plan) -> None:
    """Creates the variables that training saves in addition to the weights, like build_update.

    Leaves out those that checkpoints may lack (``start_point.OPTIONAL_STATE``). For a graph that is
    never run: neither the forward nor the backward pass is built.
    """
    tf.train.get_or_create_global_step()
    _optimizer(plan, learning_rate=0.0).create_slots(network.variables.trainable())


def _loss_scale(runtime: RuntimeSettings, *, needed: bool) -> LossScale:
    if not needed:
        return LossScale()
    if runtime.numerics.loss_scale.static is not None:
        return StaticLossScale(runtime.numerics.loss_scale.static)
    return DynamicLossScale(
        runtime.numerics.loss_scale.initial,
        period=runtime.numerics.loss_scale.window,
        floor=runtime.numerics.loss_scale.minimum,
    )


def _optimizer(plan: Plan, learning_rate: tf.Tensor | float, **how: Any) -> Optimizer:
    """The optimizer of a plan; ``how`` has the arguments for its computation."""
    requested = plan.requested
    return Optimizer(
        requested.optimizer,
        learning_rate,
        weight_decay=requested.weight_decay,
        rate_factor=requested.rate_factor,
        trained_from=requested.start_of,
        **how,
        **requested.optimizer_options,
    )


def _compiled_shape(features: Features, batch: BatchPlan) -> tf.Tensor:
    """What decides whether XLA compiles an update again: the shapes of all features, int32.

    With a batch ramp it compiles micro batches, whatever their number.
    """
    first = 0 if batch.sizes is None else 1
    return tf.concat([tf.shape(feature)[first:] for feature in features.values()], axis=0)


def _compilation_errors(job: Job) -> contextlib.AbstractContextManager[None]:
    if not job.arithmetic.options.compiled:
        return contextlib.nullcontext()
    from bert_tf.model.compilation import explained_compilation

    return explained_compilation()


@contextlib.contextmanager
def _explained_errors(job: Job) -> Iterator[None]:
    """Turns TensorFlow's errors for bad files and lack of memory into one sentence each."""
    output_dir = job.settings.output_dir
    try:
        with user_errors(), _compilation_errors(job):
            yield
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        newest = tf.train.latest_checkpoint(str(output_dir))
        if newest is None:
            raise damaged(job.model.initial.checkpoint or output_dir, error) from error
        advice = (
            f"list an older one in {output_dir / 'checkpoint'}, or start over in another "
            "--output_dir"
        )
        raise damaged(newest, error, advice=advice) from error
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(
            f"out of memory ({first_line(error)}); use a smaller batch or --recompute."
        ) from error
