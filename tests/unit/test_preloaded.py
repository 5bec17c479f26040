"""Forked programs are what started ones would be."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import preloaded
from tests.helpers.programs import ROOT, environment, python, run

SHOW = """
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ.get("MARK"), "tensorflow" in sys.modules)
print(sys.stdin.read(), file=sys.stderr)
import tensorflow.compat.v1 as tf
print(tf.__spec__.name, tf.Session.__name__, "tensorflow" in sys.modules)
"""


def test_a_program_has_what_it_is_given(tmp_path):
    done = run("-c", SHOW, "a b", cwd=tmp_path, env={**environment(), "MARK": "m"}, text="given")
    first, second = done.stdout.splitlines()
    assert first == f"['-c', 'a b'] __main__ {tmp_path} m False"
    assert second == "tensorflow.compat.v1 Session True"
    assert done.stderr == "given\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("by", ["a request", "a process in its place"])
def test_its_end_is_told(code, status, by):
    if by == "a request":
        done = run("-c", code, check=False)
    else:
        command = [*python(), "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (code == "1 / 0")


def test_modules_and_scripts_start_as_they_do_from_the_interpreter(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, __file__, sys.argv[1:], sys.path[0])\n")
    for command in ([script, "x"], ["-m", "bert_tf.commands.squad_metrics", "--nonsense"]):
        own = run(*command, check=False)
        by_interpreter = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert own.stdout == by_interpreter.stdout
        assert own.stderr == by_interpreter.stderr
        assert own.returncode == by_interpreter.returncode


def test_signals_reach_the_program_and_its_output_comes_line_by_line():
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    process = subprocess.Popen([*python(), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(60) == 7
    process.stdout.close()


def test_a_signal_after_the_end_of_the_program_changes_nothing(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait(60)
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        command = [sys.executable, preloaded.__file__, path, "-c", "pass"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        connection, _ = listening.accept()
    with connection:
        _, streams, *_ = socket.recv_fds(connection, 1 << 18, 3)
        for stream in streams:
            os.close(stream)
        connection.sendall(str(ended.pid).encode())
        while not _handles(process.pid, signal.SIGUSR1):
            assert process.poll() is None
        process.terminate()
        connection.sendall(b"5")
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 5


def _handles(process: int, number: int) -> bool:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, value = line.split(":", 1)
        if name == "SigCgt":
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


def test_a_program_ends_with_the_process_in_its_place(tmp_path):
    code = "import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()"
    process = subprocess.Popen([*python(), "-c", code], stdout=subprocess.PIPE, text=True)
    number = int(process.stdout.readline())
    process.kill()
    process.wait(60)
    # The pipe ends when nobody holds it any more: the program has gone too.
    assert process.stdout.read() == ""
    process.stdout.close()
    assert number != process.pid
