"""Ranks that print without end until they are asked to stop, and then write that they were.

chatty_program.py DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import SingleProcess
from bert_tf.train.hooks import StopOnSignal
from bert_tf.util.console import say
from bert_tf.util.errors import exit_on_user_error
from bert_tf.watch.interface import NoWatch


def run() -> None:
    """Like a run whose every update prints a line and whose last action saves a checkpoint."""
    hook = StopOnSignal(NoWatch(SingleProcess(num_threads=1)))
    context = tf.train.SessionRunContext(None, None)
    hook.begin()
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    while not context.stop_requested:
        say(f"{rank}: {'a line of a run that reports every update ' * 5}")
        hook.after_run(context, None)
    Path(sys.argv[1], rank).write_text("saved")
    sys.exit(128 + hook.agreed)


if __name__ == "__main__":
    exit_on_user_error(run)
