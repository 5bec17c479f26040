"""Connects the ranks of a job with the library that the user chose."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from bert_tf.config.settings import CommunicationSettings
from bert_tf.ranks.launched import check_alone, is_launched
from bert_tf.ranks.ranks import Ranks, SingleProcess


def _horovod(num_threads: int | None, communication: CommunicationSettings) -> Ranks:
    from bert_tf.ranks.horovod import HorovodRanks

    return HorovodRanks(num_threads, communication)


# Name -> creates this rank from its number of threads (None: its fraction of the host's cores) and
# its communication settings.
LIBRARIES: Mapping[str, Callable[[int | None, CommunicationSettings], Ranks]] = {
    "horovod": _horovod
}


def connect(
    library: str | None,
    *,
    num_threads: int | None = None,
    communication: CommunicationSettings | None = None,
) -> Ranks:
    """Connects the ranks of this job, which exchange gradients according to ``communication``.

    A process that was not started by a launcher is the only rank, even with a ``library``, a name
    in ``LIBRARIES``. ``num_threads`` defaults to an equal part of the host's cores. Raises
    UserError if a launcher started several independent processes: each would train a whole model
    and write it to the same directory.
    """
    if library is not None and is_launched(os.environ):
        return LIBRARIES[library](num_threads, communication or CommunicationSettings())
    check_alone(os.environ)
    return SingleProcess(num_threads)
