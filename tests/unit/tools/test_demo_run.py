"""The demo's runner in a terminal: Ctrl-C waits until the command has saved its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.programs import ROOT, environment
from tests.helpers.terminals import CTRL_C, Terminal
from tools.demo.run import put_aside

# In place of a training run: it takes two seconds to save, and a second signal ends it.
TRAINING = """
import signal, sys, time
def stop(number, frame):
    signal.signal(number, signal.SIG_DFL)
    print("saving", flush=True)
    time.sleep(2)
    print("saved after signal", number, flush=True)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
print("training", flush=True)
time.sleep(60)
"""
DEMO = "from tools.demo.run import run; run([{program!r}]); print('the next step')"


@pytest.fixture
def makefile(tmp_path):
    """Where the project's ``make demo`` runs the program as the demo does, without set-up."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "demo.py").write_text(DEMO.format(program=str(tmp_path / "train.py")))
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'demo.py'}\n")
    python.chmod(0o755)
    return tmp_path


# The second needs a shell between make and the program.
TARGETS = ("demo", "demo DEMO_STEPS='$$(echo 5)'", "demo-qa")


def in_a_shell(makefile, target="demo"):
    """An interactive shell, in which ``make`` is a job in the foreground."""
    env = {**environment(), "PS1": "prompt> ", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], cwd=makefile, env=env)
    shell.wait_for("prompt> ")
    of_test = f"SETUP=: PYTHON={sys.executable} BIN={makefile / 'bin'}"
    shell.type(f"make -C {ROOT} {target} {of_test}\n".encode())
    shell.wait_for("training")
    return shell


@pytest.mark.parametrize("target", TARGETS)
def test_ctrl_c_waits_until_the_work_is_saved(makefile, target):
    shell = in_a_shell(makefile, target)
    shell.type(CTRL_C)
    shell.wait_for("prompt> ")
    shell.type(b"exit\n")
    shell.finish()
    assert "saved after signal 2" in shell.shown
    assert "demo: stopped; run it again to continue from here" in shell.shown
    assert "Error 130" in shell.shown
    assert "the next step" not in shell.shown
    assert "Traceback" not in shell.shown


def test_a_second_ctrl_c_ends_at_once(makefile):
    shell = in_a_shell(makefile)
    begin = time.monotonic()
    shell.type(CTRL_C)
    shell.wait_for("saving")
    shell.type(CTRL_C)
    shell.wait_for("prompt> ")
    assert time.monotonic() - begin < 2
    shell.type(b"exit\n")
    shell.finish()
    assert "saved" not in shell.shown


@pytest.mark.parametrize(
    ("sent", "received"), [(signal.SIGINT, 2), (signal.SIGTERM, 15), (signal.SIGHUP, 15)]
)
def test_a_signal_to_the_demo_alone(makefile, sent, received):
    program = subprocess.Popen(
        [sys.executable, makefile / "demo.py"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        while program.stdout.readline() != "training\n":
            pass
        os.kill(program.pid, sent)
        assert f"saved after signal {received}" in program.stdout.read()
    assert program.returncode == 128 + sent


def test_a_command_that_fails(makefile):
    (makefile / "train.py").write_text("import sys; sys.exit(3)")
    done = subprocess.run(
        [sys.executable, makefile / "demo.py"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "demo: the command above failed (status 3).\n"


def test_work_is_put_aside_under_a_free_name(tmp_path, capsys):
    for number in range(3):
        (tmp_path / "model").mkdir()
        (tmp_path / "model/weights").write_text(str(number))
        put_aside(tmp_path / "model", "the text has changed")
    kept = {path.parent.name: path.read_text() for path in tmp_path.glob("*/weights")}
    assert kept == {"model-1": "0", "model-2": "1", "model-3": "2"}
    assert f"the earlier one is kept in {tmp_path / 'model-3'}" in capsys.readouterr().out
