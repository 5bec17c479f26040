"""Takes over a checkpoint in one directory after another, killed at one change later in each.

    take_over_program.py CHECKPOINT DIRECTORY

``kill_at.c`` is preloaded, for DIRECTORY. Each directory in it is named after the number of the
change; after the kill the copy is started again. The program ends with the first one without a
kill.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from bert_tf.checkpoint.directory import remove_leftovers, write_missing_list
from bert_tf.train.start_point import find_resumed_start, take_over
from bert_tf.util.files import remove_partial_files


def begin(source: str, target: Path) -> None:
    """What a run with --resume_from does before its first update."""
    target.mkdir(exist_ok=True)
    remove_partial_files(target)
    start = find_resumed_start(target, source, reset_step=False)
    remove_leftovers(target)
    write_missing_list(target)
    if start.is_elsewhere:
        take_over(start, target, global_batch_size=8)


def status_of_child(kill_at: int, source: str, target: Path) -> int:
    os.environ["KILL_AT"] = str(kill_at)
    child = os.fork()
    if child == 0:
        begin(source, target)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(source: str, directory: Path) -> None:
    for number in itertools.count():
        target = directory / str(number)
        status = status_of_child(number, source, target)
        if status == 0:
            return
        assert status == -signal.SIGKILL
        assert status_of_child(-1, source, target) == 0, f"not started again after change {number}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
