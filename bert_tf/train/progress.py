"""How far and how fast a run is: its progress lines, and the totals of a training and a prediction.

Start-up is everything before the steady state: building the graph, starting the session, the first
update or batch, and compilation.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.losses import Terms, flatten, means, num_sums, unflatten
from bert_tf.train.hooks import Fetched, StepHook
from bert_tf.train.job import Job
from bert_tf.train.run_log import RunLog
from bert_tf.tuning.hardware import peak_gpu_bytes
from bert_tf.update.train_op import TrainOutputs
from bert_tf.util.environment import seconds_since_launch

_PERCENTILES = (50, 90, 95, 99, 100)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of some updates, and how long it took without checkpoints and evaluations.

    Attributes:
      sequences: number of sequences in all updates, over all ranks.
      positions: the sum of their lengths; the number of sequences if lengths are unknown.
      seconds: the duration of the updates.
    """

    sequences: int = 0
    positions: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.sequences + other.sequences,
            self.positions + other.positions,
            self.seconds + other.seconds,
        )


class Throughput:
    """The updates of a training since its last start, skipped ones included.

    XLA compiles an update when it first runs, and again for every new shape of its batches; all
    other updates are in the steady state.

    Attributes:
      updates, skipped_updates: number of updates, and of those with gradients that were not finite.
      total, steady: the work of all updates, and of those in the steady state.
      first_seconds: shape of batches -> duration of its first update.
    """

    def __init__(self) -> None:
        """Has seen no update."""
        self.updates = self.skipped_updates = 0
        self.total, self.steady = Work(), Work()
        self.first_seconds: dict[tuple[int, ...], float] = {}

    def note(self, work: Work, *, shape: Sequence[int] = (), is_skipped: bool = False) -> bool:
        """Counts an update on a batch of ``shape``; returns whether it is in the steady state."""
        is_steady = tuple(shape) in self.first_seconds
        self.first_seconds.setdefault(tuple(shape), work.seconds)
        self.updates += 1
        self.skipped_updates += is_skipped
        self.total += work
        if is_steady:
            self.steady += work
        return is_steady

    def totals(
        self, seconds: float, *, has_loss_scale: bool = False, peak_gpu_bytes: int | None = None
    ) -> dict[str, float]:
        """The totals of ``seconds`` of training, for ``run.json``.

        With a loss scale, or if updates were skipped, their number is included.
        ``peak_gpu_bytes`` is the most memory used on rank 0's GPU; None without GPUs.
        """
        totals = {
            "sequences": self.total.sequences,
            "seconds": round(seconds, 3),
            "sequences_per_second_with_start_up": self.total.sequences / seconds,
        }
        if has_loss_scale or self.skipped_updates:
            totals["updates"] = self.updates
            totals["skipped_updates"] = self.skipped_updates
        if self.steady.sequences:
            totals["steady_sequences"] = self.steady.sequences
            totals["steady_seconds"] = round(self.steady.seconds, 3)
            totals["sequences_per_second"] = self.steady.sequences / self.steady.seconds
        if peak_gpu_bytes is not None:
            totals["peak_gpu_memory_bytes"] = peak_gpu_bytes
        return totals


class ProgressHook(StepHook):
    """Reports means over all ranks and the updates since the last report.

    They are reset at checkpoints, so that a run resumed from one reports the same means.
    """

    def __init__(
        self,
        outputs: TrainOutputs,
        job: Job,
        throughput: Throughput,
        *,
        batch_shape: tf.Tensor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reports to the run's log, if this rank has one; others only contribute sums.

        ``throughput`` is told of every update; ``batch_shape``, int32 [any] or None, tells batches
        apart.
        """
        super().__init__(outputs)
        self._terms: Terms = {t: tuple(s.metrics) for t, s in outputs.term_sums.items()}
        self._job = job
        self._throughput = throughput
        self._batch_shape = batch_shape
        self._clock = clock
        self._last_steady: Work | None = None
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
        sequences = int(fetched["num_sequences"])
        length = plan.batch.length_at(int(fetched["data_position"])) or 1
        work = Work(sequences, sequences * length, seconds)
        shape = fetched["batch_shape"]
        if self._throughput.note(work, shape=shape, is_skipped=not applied):
            self._steady += work
        else:
            self._warming += work
        if not applied:
            self._skipped += 1
            return
        self._sums += np.array(fetched["sums"])
        is_due = self.step % settings.log.display_loss_steps == 0
        if is_due or self.step == plan.last_step:
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
        window = self._window()
        figures["sequences_per_second"] = window.sequences / window.seconds
        batch, position = self._job.plan.batch, int(fetched["data_position"])
        if batch.sizes is not None:
            figures["global_batch"] = fetched["num_sequences"]
        if (length := batch.length_at(position)) is not None:
            figures["sequence_length"] = length
        total_steps = self._job.plan.last_step
        details = dict(losses)
        if (peak := peak_gpu_bytes(self._job.arithmetic.session.gpu)) is not None:
            details["peak_gpu_memory_bytes"] = peak
        work_left = batch.work(position + 1, position + 1 + total_steps - self.step)
        log.step(
            self.step,
            {name: float(value) for name, value in figures.items()},
            details=details,
            total_steps=total_steps,
            seconds_left=work_left * window.seconds / window.positions,
        )

    def _window(self) -> Work:
        """The latest steady updates, or warm-up updates if there were none yet."""
        if self._steady.seconds:
            self._last_steady = self._steady
        return self._last_steady or self._warming

    def _reset(self) -> None:
        self._sums = np.zeros(num_sums(self._terms))
        self._steady, self._warming = Work(), Work()


class StartUp(tf.train.SessionRunHook):
    """Records when the first update is done, applied or skipped, and how long XLA compiled.

    Says before the first update that it is compiled, and afterwards how long that took; again at
    the end if batches of further shapes were compiled since then.
    """

    def __init__(self, log: RunLog, throughput: Throughput, *, is_compiled: bool) -> None:
        """``throughput`` observes every update before this hook does."""
        self._log = log
        self._throughput = throughput
        self._is_compiled = is_compiled
        self._functions: Sequence[str] = ()
        self._reported_shapes = 0

    def begin(self) -> None:
        if self._is_compiled:
            from bert_tf.model.compilation import compiled_functions

            self._functions = compiled_functions(tf.get_default_graph())

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._is_compiled and not self._throughput.updates:
            number = len(self._functions)
            self._log.message(
                f"XLA compiles {number} function{'s' * (number > 1)} of an update, once for each "
                "shape of batches"
            )

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if not self._reported_shapes:
            self._log.record({"seconds_to_first_update": seconds_since_launch()})
            self._report()

    def end(self, session: tf.Session) -> None:
        if len(self._throughput.first_seconds) != self._reported_shapes:
            self._report()

    def _report(self) -> None:
        shapes = self._reported_shapes = len(self._throughput.first_seconds)
        if not self._is_compiled:
            return
        seconds = sum(self._throughput.first_seconds.values())
        self._log.message(
            f"XLA: compiling and running the first update of {shapes} batch "
            f"shape{'s' * (shapes > 1)} took {seconds:.1f} s, which rates do not include"
        )
        self._log.record({
            "xla_functions": len(self._functions),
            "xla_compile_seconds": round(seconds, 2),
            "xla_shapes": shapes,
        })  # fmt: skip


def training_lines(totals: dict[str, float]) -> list[str]:
    """The lines that describe :meth:`Throughput.totals`."""
    lines = [
        f"training took {totals['seconds']:.2f} s for {totals['sequences']} sequences: "
        f"{totals['sequences_per_second_with_start_up']:.4g} sequences/s with start-up, "
        "checkpoints and evaluations"
    ]
    if "sequences_per_second" in totals:
        lines.append(
            f"training without them took {totals['steady_seconds']:.2f} s for "
            f"{totals['steady_sequences']} sequences: {totals['sequences_per_second']:.4g} "
            "sequences/s"
        )
    if "peak_gpu_memory_bytes" in totals:
        lines.append(f"peak GPU memory {totals['peak_gpu_memory_bytes'] / (1 << 30):.2f} GiB")
    if "skipped_updates" in totals:
        lines.append(
            f"{totals['skipped_updates']} of {totals['updates']} updates were skipped because a "
            "gradient was not finite"
        )
    return lines


def prediction_lines(
    batch_seconds: Sequence[float], *, seconds: float, sequences: int, steady_sequences: int
) -> list[str]:
    """The lines that describe the totals of a prediction.

    ``batch_seconds`` are one rank's; the first is mostly start-up. Numbers of sequences are over
    all ranks; ``steady_sequences`` leave out each rank's first batch.
    """
    lines = [
        f"prediction took {seconds:.2f} s for {sequences} sequences: {sequences / seconds:.4g} "
        "sequences/s with start-up"
    ]
    steady = batch_seconds[1:]
    if steady:
        total = sum(steady)
        milliseconds = 1e3 * np.percentile(steady, _PERCENTILES)
        shown = ", ".join(f"p{p} {ms:.1f}" for p, ms in zip(_PERCENTILES, milliseconds))
        lines.append(
            f"prediction without it took {total:.2f} s for {steady_sequences} sequences: "
            f"{steady_sequences / total:.4g} sequences/s; ms a batch: {shown}, mean "
            f"{1e3 * total / len(steady):.1f}"
        )
    return lines
