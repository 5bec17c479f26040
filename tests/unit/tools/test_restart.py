"""recipes/restart.sh: when it starts a command again, and what signals do.

Real ranks are killed in tests/parallel and tests/end_to_end/test_slurm.py.
"""

import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.programs import ROOT, environment
from tests.helpers.terminals import CTRL_C, Terminal

SCRIPT = str(ROOT / "recipes/restart.sh")
# Its n-th run exits with the n-th of the given statuses, or waits for a signal as mpirun does.
JOB = """
import pathlib, signal, sys, time
calls, statuses = pathlib.Path(sys.argv[1]), sys.argv[2:]
with calls.open("a") as file:
    file.write("x")
action = statuses[len(calls.read_text()) - 1]
if action.isdigit():
    sys.exit(int(action))
ends = lambda *_: (time.sleep(0.5), print("saved", flush=True), sys.exit(138))
goes_on = lambda *_: print("asked", flush=True)
signal.signal(signal.SIGUSR1, ends if action == "waits" else goes_on)
print("training", flush=True)
time.sleep(600)
"""


@pytest.fixture(name="command")
def command_of_a_job(tmp_path):
    return lambda *actions: [SCRIPT, sys.executable, "-c", JOB, f"{tmp_path}/calls", *actions]


def start(command, **variables):
    return subprocess.Popen(
        command,
        env={**environment(), "RESTART_DELAY": "0.1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("actions", "most", "status", "calls"),
    [
        (["0"], "3", 0, 1),
        (["3", "137", "0"], "3", 0, 3),
        (["3", "3", "5"], "2", 5, 3),
        (["3"], "0", 3, 1),
        *(([str(final)], "3", final, 1) for final in (2, 130, 138, 143)),
    ],
)
def test_restarts(command, tmp_path, actions, most, status, calls):
    process = start(command(*actions), MAX_RESTARTS=most)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert len((tmp_path / "calls").read_text()) == calls
    assert said.count("; restart ") == calls - 1
    assert (f"not started again after {most} restarts" in said) == (status in (3, 5))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_asks_the_ranks_to_stop_and_is_final(command, tmp_path, number):
    process = start(command("waits", "0"))
    assert process.stdout.readline() == "training\n"
    process.send_signal(number)
    assert process.stdout.readline() == "saved\n"
    assert process.wait(60) == 138
    assert (tmp_path / "calls").read_text() == "x"


def test_a_second_signal_ends_mpirun(command):
    process = start(command("goes on", "0"))
    for line in ("training\n", "asked\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal(command, tmp_path, times):
    (tmp_path / "Makefile").write_text(f"train:\n\t@exec {tmp_path}/job\n")
    (tmp_path / "job").write_text(f"#!/bin/sh\nexec {shlex.join(command('waits', '0'))}\n")
    (tmp_path / "job").chmod(0o755)
    env = {**environment(), "PS1": "prompt> "}
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], cwd=tmp_path, env=env)
    shell.wait_for("prompt> ")
    shell.type(b"make train\n")
    shell.wait_for("training")
    for _ in range(times):
        shell.type(CTRL_C)
        time.sleep(0.2)
    shell.wait_for("prompt> ")
    shell.type(b"exit\n")
    shell.finish()
    assert ("saved" in shell.shown) == (times == 1)
    assert (tmp_path / "calls").read_text() == "x"
