"""No process is left of a job whose mpirun was killed, or interrupted twice, at whatever moment.

Two ranks of the real program. One try is made, during training. DEAD_LAUNCHER_TRIES=20 in the
environment makes so many, by turns of either kind, at random moments from the start on.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.helpers.programs import ROOT, environment, requires_horovod
from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    shared_data,
    write_bert_config,
)

pytestmark = [requires_horovod, pytest.mark.parallel]

TRIES = int(os.environ.get("DEAD_LAUNCHER_TRIES", "1"))
# Of a run that trains and evaluates until it is ended. After the last comes the next evaluation.
MILESTONES = ["", "^-- ledger", "^step 2/", "^evaluation at step 10", "^step 30/"]
MOST_SECONDS_AFTER = 6.0
LIMIT = 300
SECONDS_TO_END = 30  # for what takes one, on a machine that has other work


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shared_data(tmp_path_factory)


@pytest.fixture
def program(data, tmp_path):
    """Ranks that are started by a shell, as by a script that binds them to cores."""
    write_bert_config(tmp_path / "bert_config.json")
    flags = flags_of_a_short_run(data, tmp_path / "bert_config.json")
    flags += ["--do_train", "--do_eval", "--horovod", f"--output_dir={tmp_path / 'out'}"]
    flags += ["--num_train_steps=1000000", "--save_checkpoints_steps=10", "--eval_every_steps=10"]
    flags += ["--scale_steps_by_ranks=false", "--use_xla=false"]
    shell = ["bash", "-c", '"$0" "$@"; exit $?']
    return [*shell, sys.executable, "run_pretraining.py", *flags]


def processes_with(mark):
    """Processes that have ``mark`` in their environment, with their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text()
        except OSError:  # it has ended
            continue
    return found


def kill_all_with(mark):
    for process in processes_with(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_for_line(stream, pattern):
    """Reads up to a line that matches; what comes later is read too, by a thread."""
    for line in stream:
        if re.search(pattern, line):
            break
    else:
        pytest.fail(f"the job ended before {pattern}")
    threading.Thread(target=stream.read, daemon=True).start()


@pytest.mark.parametrize("number", range(TRIES))
@pytest.mark.exhaustive
def test_nothing_is_left(program, number):
    kind = ["killed", "interrupted twice"][number % 2]
    milestone, seconds = "^step 2/", 0.0
    if TRIES > 1:
        milestone = random.choice(MILESTONES)
        seconds = random.uniform(0.0, MOST_SECONDS_AFTER)
    with contextlib.ExitStack() as stack:
        mark = uuid.uuid4().hex
        mpirun = subprocess.Popen(
            ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", *program],
            cwd=ROOT,
            env={**environment(), "DEAD_LAUNCHER_MARK": mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.enter_context(mpirun)
        stack.callback(kill_all_with, mark)
        if milestone:
            wait_for_line(mpirun.stdout, milestone)
        threading.Event().wait(seconds)
        assert mpirun.poll() is None
        if kind == "killed":
            mpirun.kill()
        else:
            mpirun.send_signal(signal.SIGINT)
            threading.Event().wait(random.uniform(0.1, 0.9) if TRIES > 1 else 0.0)
            mpirun.send_signal(signal.SIGINT)
        mpirun.wait(LIMIT)
        ended = time.monotonic()
        while left := processes_with(mark):
            assert time.monotonic() - ended < SECONDS_TO_END, (milestone, seconds, left)
    took = time.monotonic() - ended
    print(f"{kind} {seconds:.1f} s after '{milestone}': all gone after {took:.1f} s")
