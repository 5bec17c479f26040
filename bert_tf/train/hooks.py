"""Session hooks, each with a single concern. They take tensors rather than names."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import PREFIX
from bert_tf.model.sums import Terms, flatten, means, num_sums, unflatten
from bert_tf.model.task import Features
from bert_tf.train.job import Job
from bert_tf.train.run_log import RunLog
from bert_tf.train.summary import Rates, UpdateTimes, WarmUp
from bert_tf.tuning.hardware import peak_gpu_bytes
from bert_tf.update.train_op import TrainOutputs
from bert_tf.util import console
from bert_tf.util.environment import seconds_since_launch
from bert_tf.util.errors import UserError, first_line
from bert_tf.watch.interface import Watch

Fetched = dict[str, Any]


class StepHook(tf.train.SessionRunHook):
    """Base class of hooks that act after certain updates; tracks the step without session calls.

    All ranks agree on whether an update was applied, so their hooks act together, as collective
    operations require.
    """

    def __init__(self, outputs: TrainOutputs) -> None:
        """Tracks the updates of ``outputs``."""
        self.outputs = outputs
        self.step = 0

    def begin(self) -> None:
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.step = int(session.run(self._global_step))

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs({"is_finite": self.outputs.is_finite, **self.fetches()})

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        applied = bool(run_values.results["is_finite"])
        self.step += applied
        if self.after_update(run_context.session, run_values.results, applied=applied):
            run_context.request_stop()

    def fetches(self) -> dict[str, object]:
        """What to fetch with each update in addition to ``is_finite``."""
        return {}

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> bool | None:
        """Called after each update; ``applied`` is False if it was skipped.

        Returns True to end training.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SkippedUpdate:
    """An update that was not applied, as seen by this rank.

    Attributes:
      step: number of updates applied before it.
      data_position: the number of its global batch.
      in_a_row: number of consecutive skipped updates, including this one.
      learning_rate, loss_scale: the values in this update.
      features: this rank's part of the global batch.
    """

    step: int
    data_position: int
    in_a_row: int
    learning_rate: float
    loss_scale: float
    features: Mapping[str, np.ndarray]


class NonFiniteError(UserError):
    """Raised when too many consecutive updates were not finite."""

    def __init__(self, facts: str) -> None:
        """``facts`` is what was found out, as the beginning of a sentence."""
        super().__init__(
            f"{facts}; no weight was changed by it: lower --learning_rate or check the data and "
            "the initial weights, then run again to resume from the last checkpoint."
        )


class NonFiniteGuard(StepHook):
    """Stops a run that does not recover after too many consecutive skipped updates."""

    def __init__(
        self,
        outputs: TrainOutputs,
        *,
        limit: int,
        features: Features,
        explain: Callable[[tf.Session, SkippedUpdate], Exception],
    ) -> None:
        """Stops after ``limit`` consecutive skipped updates; ``features`` are the last one's.

        ``explain`` returns the exception to raise after a skipped update. Collective.
        """
        super().__init__(outputs)
        self._limit = limit
        self._features = dict(features)
        self._explain = explain
        self._in_a_row = 0

    def fetches(self) -> dict[str, object]:
        # On a CPU, fetching what an update reads anyway requires no copy.
        return {
            "data_position": self.outputs.data_position,
            "loss_scale": self.outputs.loss_scale,
            "rate": self.outputs.learning_rate,
            "features": self._features,
        }

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> None:
        self._in_a_row = 0 if applied else self._in_a_row + 1
        if self._in_a_row < self._limit:
            return
        skipped = SkippedUpdate(
            step=self.step,
            data_position=int(fetched["data_position"]),
            in_a_row=self._in_a_row,
            learning_rate=float(fetched["rate"]),
            loss_scale=float(fetched["loss_scale"]),
            features=fetched["features"],
        )
        raise self._explain(session, skipped)


class ProgressHook(StepHook):
    """Reports means over all ranks and the updates since the last report.

    They are reset at checkpoints, so that a run resumed from one reports the same means.
    """

    def __init__(
        self,
        outputs: TrainOutputs,
        job: Job,
        *,
        warm_up: WarmUp,
        times: UpdateTimes,
        batch_shape: tf.Tensor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reports to the run's log, if this rank has one; others only contribute sums.

        ``warm_up``, which decides which updates are in the steady state, and ``times`` are told of
        every update; ``batch_shape``, int32 [any] or None, tells batches apart.
        """
        super().__init__(outputs)
        self._terms: Terms = {t: tuple(s.metrics) for t, s in outputs.term_sums.items()}
        self._job = job
        self._warm_up = warm_up
        self._times = times
        self._batch_shape = batch_shape
        self._clock = clock
        self._steady_rates: Rates | None = None
        self._skipped = job.run.start.data_position - job.run.start.step
        self._reset()

    def begin(self) -> None:
        super().begin()
        self._local_sums = tf.placeholder(tf.float64, [num_sums(self._terms)])
        self._global_sums = self._job.run.ranks.sum_over_ranks(
            self._local_sums, name="progress_sums"
        )

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._started = self._clock()
        return super().before_run(run_context)

    def fetches(self) -> dict[str, object]:
        return {
            "sums": flatten(self.outputs.term_sums, self._terms),
            "data_position": self.outputs.data_position,
            "num_sequences": self.outputs.num_sequences,
            "batch_shape": [] if self._batch_shape is None else self._batch_shape,
            "learning_rate": self.outputs.learning_rate,
            "loss_scale": self.outputs.loss_scale,
            "gradient_norm": self.outputs.gradient_norm,
        }

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> None:
        # Evaluations and checkpoints happen between updates, so their time is not included.
        settings, plan, log = self._job.settings, self._job.plan, self._job.run.log
        seconds = self._clock() - self._started
        is_steady = self._warm_up.note(fetched["batch_shape"], seconds)
        sequences = int(fetched["num_sequences"])
        length = plan.batch.length_at(int(fetched["data_position"])) or 1
        (self._steady if is_steady else self._warming).note(seconds, sequences, length)
        self._times.note(seconds, sequences=sequences, is_steady=is_steady, is_skipped=not applied)
        if not applied:
            self._skipped += 1
            return
        self._sums += np.array(fetched["sums"])
        is_due = self.step % settings.log.display_loss_steps == 0
        if is_due or self.step == plan.steps.last_step:
            reduced = session.run(self._global_sums, {self._local_sums: self._sums})
            if log is not None:
                self._report(log, reduced, fetched)
            self._reset()
        elif self.step % settings.save_checkpoints_steps == 0:
            self._reset()

    def _report(self, log: RunLog, reduced: Sequence[float], fetched: Fetched) -> None:
        by_term = means(unflatten(reduced, self._terms))
        losses = {f"{term}_loss": float(found.pop("loss")) for term, found in by_term.items()}
        figures: dict[str, float] = {"loss": sum(losses.values())}
        for term, metrics in by_term.items():
            figures.update({f"{term}_{name}": value for name, value in metrics.items()})
        figures["learning_rate"] = float(fetched["learning_rate"])
        figures["gradient_norm"] = float(fetched["gradient_norm"])
        if self._skipped or self._job.arithmetic.scales_loss:
            figures["loss_scale"] = float(fetched["loss_scale"])
            figures["skipped_updates"] = self._skipped
        rates = self._rates()
        figures["sequences_per_second"] = rates.sequences / rates.seconds
        batch, position = self._job.plan.batch, int(fetched["data_position"])
        if batch.sizes is not None:
            figures["global_batch"] = fetched["num_sequences"]
        if (length := batch.length_at(position)) is not None:
            figures["sequence_length"] = length
        total_steps = self._job.plan.steps.last_step
        details = dict(losses)
        if (peak := peak_gpu_bytes(self._job.arithmetic.session.gpu)) is not None:
            details["peak_gpu_memory_bytes"] = peak
        work_left = batch.work(position + 1, position + 1 + total_steps - self.step)
        log.step(
            self.step,
            {name: float(value) for name, value in figures.items()},
            details=details,
            total_steps=total_steps,
            seconds_left=work_left * rates.seconds / rates.work,
        )

    def _rates(self) -> Rates:
        """The rates of the latest steady updates, or of warm-up updates if there were none yet."""
        if self._steady.seconds:
            self._steady_rates = self._steady
        return self._steady_rates or self._warming

    def _reset(self) -> None:
        self._sums = np.zeros(num_sums(self._terms))
        self._steady, self._warming = Rates(), Rates()


class FirstUpdate(tf.train.SessionRunHook):
    """Records when the first update is done, whether it was applied or skipped."""

    def __init__(self, record: Callable[[dict[str, float | None]], None]) -> None:
        """``record`` keeps the seconds with the run."""
        self._record = record
        self._is_done = False

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        if not self._is_done:
            self._record({"seconds_to_first_update": seconds_since_launch()})
        self._is_done = True


class CompilationReport(tf.train.SessionRunHook):
    """Says before the first update that it is compiled, and afterwards how long that took.

    Says so again at the end if batches of further shapes were compiled since then.
    """

    def __init__(self, warm_up: WarmUp, log: RunLog, record: Callable[[dict[str, float]], None]):
        """``warm_up`` observes every update; ``record`` keeps the figures with the run."""
        self._warm_up = warm_up
        self._log = log
        self._record = record
        self._functions: Sequence[str] = ()
        self._reported_shapes = 0

    def begin(self) -> None:
        from bert_tf.model.compilation import compiled_functions

        self._functions = compiled_functions(tf.get_default_graph())

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if not self._warm_up.shapes:
            number = len(self._functions)
            self._log.message(
                f"XLA compiles {number} function{'s' * (number > 1)} of an update, once for each "
                "shape of batches"
            )

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if not self._reported_shapes:
            self._report()

    def end(self, session: tf.Session) -> None:
        if self._warm_up.shapes != self._reported_shapes:
            self._report()

    def _report(self) -> None:
        shapes, seconds = self._warm_up.shapes, self._warm_up.warm_up_seconds
        self._reported_shapes = shapes
        self._log.message(
            f"XLA: compiling and running the first update of {shapes} batch "
            f"shape{'s' * (shapes > 1)} took {seconds:.1f} s, which rates do not include"
        )
        self._record({
            "xla_functions": len(self._functions),
            "xla_compile_seconds": round(seconds, 2),
            "xla_shapes": shapes,
        })  # fmt: skip


class CheckpointHook(StepHook):
    """Saves every so many steps, at the end, and at the start unless the run resumes.

    For rank 0, and for all ranks if saving is collective (``shared_slots.SharingSaver``).

    TensorFlow's hook counts from the step where a run started; this one saves at multiples, so that
    a resumed run has the same checkpoints as an uninterrupted one.
    """

    def __init__(self, outputs: TrainOutputs, job: Job, saver: tf.train.Saver) -> None:
        """``saver`` determines how many checkpoints are kept."""
        super().__init__(outputs)
        self._resumes = job.run.start.checkpoint is not None
        self._prefix = str(job.settings.output_dir / PREFIX)
        self._every_steps = job.settings.save_checkpoints_steps
        self._saver = saver
        self._saved_step = -1

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        if self._resumes:
            self._saved_step = self.step
        else:
            self._save(session)

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> None:
        if applied and self.step % self._every_steps == 0:
            self._save(session)

    def end(self, session: tf.Session) -> None:
        if self.step != self._saved_step:
            self._save(session)

    def _save(self, session: tf.Session) -> None:
        try:
            self._saver.save(session, self._prefix, global_step=self.step)
        except (tf.errors.OpError, OSError, ValueError) as error:
            from bert_tf.ranks.failures import is_cut_off

            if is_cut_off(error):  # while ranks were sending their parts
                raise
            raise UserError(
                f"cannot write checkpoint {self._prefix}-{self.step} ({first_line(error)}); free "
                "some space or choose another --output_dir. Earlier checkpoints are intact."
            ) from error
        self._saved_step = self.step


class StopOnSignal(tf.train.SessionRunHook):
    """Ends training after an update once this process or another rank receives a stop signal.

    Hooks then do what they do at a regular end; in particular, they save a checkpoint.
    """

    # Schedulers send SIGUSR1 before the time limit, and mpirun forwards it to its ranks.
    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, watch: Watch) -> None:
        """Handles signals from ``begin`` to ``end`` or ``restore``; ``watch`` agrees when to stop.

        Use one hook for all sessions of a run, since it counts the run's updates.
        """
        self._watch = watch
        self._received: signal.Signals | None = None
        self._updates = 0
        self.agreed: signal.Signals | None = None

    def begin(self) -> None:
        signals = self.SIGNALS if self._watch.can_stop else ()
        self._previous = {number: signal.signal(number, self._note) for number in signals}

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        self._updates += 1
        number = self._watch.stop_after(self._updates, self._received)
        if number is not None:
            self.agreed = signal.Signals(number)
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        self.restore()

    def _note(self, number: int, frame: object) -> None:
        self._received = signal.Signals(number)
        console.stop_blocking()  # mpirun, for one, no longer reads while it ends a job
        self.restore()  # a second signal takes effect immediately

    def restore(self) -> None:
        """Restores the previous signal handlers; for a session that failed."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class EvaluationHook(StepHook):
    """Pauses training on all ranks to evaluate the checkpoint that was just saved.

    The last step is left to the caller, which evaluates after training.
    """

    def __init__(
        self, outputs: TrainOutputs, job: Job, every_steps: int, evaluate: Callable[[], bool]
    ) -> None:
        """``evaluate`` returns, equally on every rank, whether training should end."""
        super().__init__(outputs)
        self._job = job
        self._every_steps = every_steps
        self._evaluate = evaluate

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        if self.step == 0 and self._job.evaluation.at_start:
            self._evaluate()

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> bool:
        due = self.step % self._every_steps == 0 and self.step < self._job.plan.steps.last_step
        return applied and due and self._evaluate()
