"""Work on every host before training: a command to run, and copies of the records."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from bert_tf.ranks.host_work import on_each_host, run_command
from bert_tf.records.local_cache import LocalCopies, NoRoomError, local_copies
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.run import Run

_GB = 1e9


def run_before_training(settings: PretrainingSettings, run: Run) -> None:
    """Runs --before_training, if given, once on each host; not in a dry run. Collective.

    Raises UserError on all ranks if the command fails on any host.
    """
    command = settings.before_training
    if command is None or settings.run.dry_run:
        return
    run.message(f"running on each host: {command}")
    on_each_host(run.ranks, lambda: run_command(command, flag="before_training"))


def copy_to_local_disks(
    record_sets: Sequence[RecordSet | None], directory: Path, most_gb: float | None, run: Run
) -> list[RecordSet | None]:
    """Copies records to a disk of each host's own; returns sets that read the copies. Collective.

    A host without room for them reads the originals and warns; batches are the same. Raises
    UserError on all ranks if the cache cannot be written or records are damaged.
    """
    given = [records for records in record_sets if records is not None]
    files = {file.path: file for records in given for file in records.files}

    def copy() -> LocalCopies | str:
        most = None if most_gb is None else int(most_gb * _GB)
        try:
            return local_copies(list(files.values()), directory, most_bytes=most)
        except NoRoomError as error:
            return str(error)

    by_host = on_each_host(run.ranks, copy)
    for host, found in by_host.items():
        if isinstance(found, str):
            run.warn(
                f"host {host} reads the original records, not copies in --local_cache_dir: {found}"
            )
        else:
            how = "copied now" if found.copied_bytes else "from an earlier run"
            run.message(f"host {host} reads copies of the records, {how}: {found.directory}")
    mine = by_host[socket.gethostname()]
    if isinstance(mine, str):
        return list(record_sets)
    copies = dict(zip(files, mine.files))
    return [
        None if records is None else RecordSet([copies[file.path] for file in records.files])
        for records in record_sets
    ]
