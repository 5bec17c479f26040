"""A run up to the point where it would write its first file, on planned ranks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from bert_tf.config.settings import CommunicationSettings, RunSettings, RuntimeSettings
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.train.context import RunContext, begin_run


@contextlib.contextmanager
def planned_run(
    run: RunSettings, runtime: RuntimeSettings, ranks: PlannedRanks
) -> Iterator[RunContext]:
    """Begins a run, one that is :func:`dry`, in this process alone, as rank 0 of those planned.

    Raises UserError as ``begin_run``.
    """
    alone = dataclasses.replace(runtime, horovod=False, communication=CommunicationSettings())
    with begin_run(run, alone) as context:
        yield dataclasses.replace(context, ranks=ranks, runtime=runtime)


def dry(run: RunSettings) -> RunSettings:
    """The settings of a run that writes nothing."""
    return dataclasses.replace(run, dry_run=True)
