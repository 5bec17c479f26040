"""The planned learning rate and ramps of a run, as a table and as a picture."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.config.settings import OptimizationSettings
from bert_tf.train.ledger import show_value
from bert_tf.train.plan import plan_batch_and_steps, schedule_of
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.schedules import Schedule, schedule_row
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open
from bert_tf.util.pictures import can_draw, stacked_panels

_MOST_POINTS = 2000
_ROWS = 10
_INCHES, _TITLE_WIDTH = (8, 4.5), 100
_PANEL_INCHES = 1.5  # of each ramp
_MOST_JOINS = 8  # in a short table


class Point(NamedTuple):
    """An update, counted from 1 as in a run's log; the first has the rate of step 0.

    Attributes:
      update: its number.
      sequences: sequences consumed once it is done.
      learning_rate: its learning rate.
      global_batch: its number of sequences.
      sequence_length: the length of its sequences; None without a length ramp.
    """

    update: int
    sequences: int
    learning_rate: float
    global_batch: int
    sequence_length: int | None


@dataclasses.dataclass(frozen=True)
class Curve:
    """A schedule and the batches of its updates, assuming that no update is skipped."""

    schedule: Schedule
    batch: BatchPlan

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table: the fields of a point, except those of unused ramps."""
        ramps = {"global_batch": self.batch.sizes, "sequence_length": self.batch.lengths}
        return tuple(name for name in Point._fields if ramps.get(name, self) is not None)

    def points(self, most: int = _MOST_POINTS) -> list[Point]:
        """About ``most`` evenly spaced updates, plus those at which the schedule bends.

        These are the ends of warm-ups, the first and last updates of phases and, unless there are
        too many, those of the stages of ramps.
        """
        schedule = self.schedule
        last = schedule.total_steps
        begin = schedule.rewarm_at_step or last
        ends = [schedule.warmup_steps, begin, begin + schedule.rewarm_steps]
        for ramp in filter(None, (self.batch.sizes, self.batch.lengths)):
            few = len(ramp.joins) <= max(_MOST_JOINS, most // 8)
            ends += ramp.joins if few else ramp.joins[-1:]
        special = [1, last, *ends, *(end + 1 for end in ends)]
        spread = np.linspace(0, last, min(most, last) + 1).round().astype(int)
        updates = sorted({int(u) for u in [*special, *spread] if 1 <= u <= last})
        rates = schedule.rate(np.array(updates) - 1)
        return [self._point(update, float(rate)) for update, rate in zip(updates, rates)]

    def _point(self, update: int, rate: float) -> Point:
        batch, position = self.batch, update - 1
        sizes = batch.global_batch_at(position), batch.length_at(position)
        return Point(update, batch.sequences(0, update), rate, *sizes)

    def title(self) -> str:
        """A description: the schedule, options that differ from their defaults, and the length."""
        schedule = self.schedule
        parts = [schedule.name, f"peak {schedule.peak_rate:g}"]
        declared = schedule_row(schedule.name).options
        parts += [
            f"{name} {show_value(value)}"
            for name, value in schedule.options.items()
            if value != declared[name].default
        ]
        if schedule.rewarm_at_step is not None:
            parts.append(f"again after update {schedule.rewarm_at_step:,}")
        batch = self.batch
        sizes = f"{batch.global_batch_size:,} sequences"
        if batch.sizes is not None:
            sizes = f"{batch.sizes.values[0]:,} to {sizes}"
        if batch.lengths is not None:
            sizes += f" of {batch.lengths.values[0]:,} to {batch.lengths.last:,} positions"
        return f"{', '.join(parts)}: {schedule.total_steps:,} updates of {sizes}"


def planned_curve(
    optimization: OptimizationSettings, *, num_ranks: int, scaled: bool, num_records: int | None
) -> Curve:
    """The curve of a new run.

    Args:
      optimization: the settings of batch, schedule and optimizer.
      num_ranks: number of ranks.
      scaled: whether the numbers of steps are divided by it.
      num_records: number of training records, for a length in epochs.

    Raises UserError if settings contradict each other or the number of updates is unknown.
    """
    if optimization.steps.counts_epochs and num_records is None:
        raise UserError(
            f"the number of updates in --num_train_epochs={optimization.steps.num_train_epochs:g} "
            "depends on the number of training records; give --num_records, or --num_train_steps "
            "instead of epochs."
        )
    batch, steps = plan_batch_and_steps(
        optimization, num_ranks, scaled=scaled, records=num_records or 1
    )
    return Curve(schedule_of(optimization, steps), batch)


def short_table(curve: Curve) -> str:
    """A table of about ten updates, in aligned columns."""
    rows = [curve.columns]
    for point in curve.points(_ROWS):
        values = [getattr(point, name) for name in curve.columns]
        rows.append(tuple(f"{v:,}" if isinstance(v, int) else f"{v:.4g}" for v in values))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(f"{v:>{w}}" for v, w in zip(row, widths)) for row in rows)


def write_curve(path: Path, curve: Curve) -> Path:
    """Writes a table (.tsv) or a picture (any other suffix that matplotlib knows).

    Returns the path written: without matplotlib, a table next to where the picture would be.
    """
    if path.suffix == ".tsv" or not can_draw():
        path = path.with_suffix(".tsv")
        _write_table(path, curve)
    else:
        _draw(path, curve)
    return path


def _write_table(path: Path, curve: Curve) -> None:
    columns = curve.columns
    with atomic_open(path) as file:
        file.write("\t".join(columns) + "\n")
        for point in curve.points():
            file.write("\t".join(repr(getattr(point, name)) for name in columns) + "\n")


def _draw(path: Path, curve: Curve) -> None:
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    points, last = curve.points(), curve.schedule.total_steps
    updates = [point.update for point in points]
    shown = curve.columns[2:]
    inches = (_INCHES[0], _INCHES[1] + _PANEL_INCHES * (len(shown) - 1))
    labels = [name.replace("_", " ") for name in shown]
    with stacked_panels(
        path, x="updates", ys=labels, inches=inches, layout="constrained"
    ) as all_axes:
        for axes, name in zip(all_axes, shown):
            axes.plot(updates, [getattr(point, name) for point in points])
            axes.set_xlim(0, last)
            axes.set_ylim(bottom=0)
            axes.grid(color="0.9")
        rates = all_axes[0]
        rates.figure.suptitle(textwrap.fill(curve.title(), _TITLE_WIDTH), fontsize=10)
        rates.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
        # The points include the ends of all stages, between which consumption is linear.
        known = [0, *updates], [0, *(point.sequences for point in points)]
        consumed = rates.secondary_xaxis(
            "top",
            functions=(lambda x: np.interp(x, *known), lambda x: np.interp(x, *known[::-1])),
        )
        consumed.set_xlabel("sequences")
        for axis in (axes.xaxis, consumed.xaxis):
            axis.set_major_formatter(EngFormatter(sep=""))
