"""The learning rate of a run that is only planned: as a table and as a picture."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.config.schedules import default_of
from bert_tf.config.settings import OptimizationSettings
from bert_tf.errors import UserError
from bert_tf.files import atomic_open
from bert_tf.pictures import can_draw, picture
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training.ledger import show_value
from bert_tf.training.plans import resolve_plans, schedule_of, with_steps
from bert_tf.update.schedules import Schedule

_MOST_POINTS = 2000
_ROWS = 10
_INCHES, _TITLE_WIDTH = (8, 4.5), 100
_HEADINGS = ("update", "sequences", "learning_rate")


class _PlannedRanks(SingleProcess):
    """Ranks that have not been started; plans need their number only."""

    def __init__(self, world_size: int) -> None:
        super().__init__(num_threads=1)
        self.world_size = world_size


@dataclasses.dataclass(frozen=True)
class Curve:
    """A schedule and the sequences of its updates.

    Updates are counted from 1, as in a run's log: the first one's rate is that of step 0.
    """

    schedule: Schedule
    global_batch_size: int

    def points(self, most: int = _MOST_POINTS) -> list[tuple[int, int, float]]:
        """(update, sequences consumed after it, learning rate) of about ``most`` updates.

        They are evenly spread; the ends of the warm-ups and the first and last updates of the
        phases are among them.
        """
        schedule = self.schedule
        last = schedule.total_steps
        begin = schedule.rewarm_at_step or last
        ends = [schedule.warmup_steps, begin, begin + schedule.rewarm_steps]
        special = [1, last, *ends, *(end + 1 for end in ends)]
        spread = np.linspace(0, last, min(most, last) + 1).round().astype(int)
        updates = sorted({u for u in [*special, *spread.tolist()] if 1 <= u <= last})
        rates = schedule.rate(np.array(updates) - 1)
        return [(u, u * self.global_batch_size, float(rate)) for u, rate in zip(updates, rates)]

    def title(self) -> str:
        """What the curve is of: the schedule, options other than the defaults, and the length."""
        schedule = self.schedule
        parts = [schedule.name, f"peak {schedule.peak_rate:g}"]
        parts += [
            f"{name} {show_value(value)}"
            for name, value in schedule.options.items()
            if value != default_of(name)
        ]
        if schedule.rewarm_at_step is not None:
            parts.append(f"again after update {schedule.rewarm_at_step:,}")
        return (
            f"{', '.join(parts)}: {schedule.total_steps:,} updates of {self.global_batch_size:,} "
            "sequences"
        )


def planned_curve(
    optimization: OptimizationSettings,
    *,
    num_ranks: int,
    epochs: float | None,
    warmup_proportion: float | None,
    num_records: int | None,
) -> Curve:
    """The curve of a new run.

    Args:
      optimization: its settings, with ``scale_steps_by_ranks`` resolved.
      num_ranks: its ranks.
      epochs, warmup_proportion: length of training and warm-up; None if given in steps.
      num_records: its training records, for a length in epochs.

    Raises UserError for contradictory settings, and for an unknown number of updates.
    """
    if optimization.num_train_steps is None and num_records is None:
        raise UserError(
            f"the number of updates in --num_train_epochs={epochs:g} follows from the number of "
            "training records; give --num_records, or --num_train_steps instead of epochs."
        )
    ranks = _PlannedRanks(num_ranks)
    optimization = with_steps(
        optimization,
        ranks,
        records=num_records or 1,
        epochs=epochs,
        warmup_proportion=warmup_proportion,
        trains=True,
    )
    batch, steps = resolve_plans(optimization, ranks)
    return Curve(schedule_of(optimization, steps), batch.global_batch_size)


def short_table(curve: Curve) -> str:
    """About ten updates, in aligned columns."""
    rows = [_HEADINGS, *([f"{u:,}", f"{s:,}", f"{r:.4g}"] for u, s, r in curve.points(_ROWS))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join("  ".join(f"{v:>{w}}" for v, w in zip(row, widths)) for row in rows)


def write_curve(path: Path, curve: Curve) -> Path:
    """Writes a table (.tsv) or a picture (a suffix that matplotlib knows); returns the file.

    Without matplotlib, that is a table beside the picture's name.
    """
    if path.suffix == ".tsv" or not can_draw():
        path = path.with_suffix(".tsv")
        _write_table(path, curve.points())
    else:
        _draw(path, curve)
    return path


def _write_table(path: Path, points: Sequence[tuple[int, int, float]]) -> None:
    with atomic_open(path) as file:
        file.write("\t".join(_HEADINGS) + "\n")
        file.writelines(f"{update}\t{sequences}\t{rate!r}\n" for update, sequences, rate in points)


def _draw(path: Path, curve: Curve) -> None:
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    updates, _, rates = zip(*curve.points())
    batch = curve.global_batch_size
    shown = {"x": "updates", "y": "learning rate"}
    with picture(path, **shown, inches=_INCHES, layout="constrained") as axes:
        axes.plot(updates, rates)
        axes.figure.suptitle(textwrap.fill(curve.title(), _TITLE_WIDTH), fontsize=10)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
        axes.set_xlim(0, curve.schedule.total_steps)
        axes.set_ylim(bottom=0)
        axes.grid(color="0.9")
        consumed = axes.secondary_xaxis("top", functions=(lambda x: x * batch, lambda x: x / batch))
        consumed.set_xlabel("sequences")
        for axis in (axes.xaxis, consumed.xaxis):
            axis.set_major_formatter(EngFormatter(sep=""))
