"""Session hooks, each with a single concern. They take tensors rather than names."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import PREFIX
from bert_tf.train.job import Job
from bert_tf.update.train_op import TrainOutputs
from bert_tf.util import console
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

    def __init__(self, outputs: TrainOutputs, job: Job, evaluate: Callable[[], bool]) -> None:
        """``evaluate`` returns, equally on every rank, whether training should end."""
        super().__init__(outputs)
        self._job = job
        every_steps = job.settings.evaluation.eval_every_steps
        assert every_steps is not None, "this job is not evaluated during training"
        self._every_steps = every_steps
        self._evaluate = evaluate

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        if self.step == 0 and self._job.evaluation.at_start:
            self._evaluate()

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> bool:
        due = self.step % self._every_steps == 0 and self.step < self._job.plan.last_step
        return applied and due and self._evaluate()
