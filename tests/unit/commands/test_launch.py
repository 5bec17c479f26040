"""Restarts: when, where and how often, with a program in mpirun's place that fails as it is told.

Real ranks are killed in tests/parallel and tests/hosts.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from bert_tf.commands import launch
from bert_tf.commands.launch import (
    Host,
    LaunchSettings,
    find_output_dir,
    mpirun_command,
    parse_hosts,
)
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment
from tests.helpers.terminals import CTRL_C, Terminal

# Notes how it was called. What its n-th run does is the n-th line of the file "script", a status
# or a line of Python; what is asked about a host is told apart by the program.
MPIRUN = """#!{python}
import json, os, signal, sys, time
where = {directory!r}
arguments = sys.argv[1:]
if arguments[-1] == "true":
    name = arguments[arguments.index("-H") + 1]
    sys.exit(name in open(where + "/lost").read().split())
with open(where + "/calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
number = len(open(where + "/calls").readlines())
action = open(where + "/script").read().splitlines()[number - 1]
if action.isdigit():
    sys.exit(int(action))
exec(action)
"""
SAVE = "open(where + '/out/checkpoint', 'w').write(str(number) + ' first\\nsecond'); sys.exit(3)"


class Stub:
    """A directory with an mpirun that does what it is told."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "out").mkdir()
        (directory / "lost").write_text("")
        mpirun = directory / "bin" / "mpirun"
        mpirun.parent.mkdir()
        mpirun.write_text(MPIRUN.format(python=sys.executable, directory=str(directory)))
        mpirun.chmod(0o755)
        # The launcher looks beside its Python first.
        (mpirun.parent / "python").symlink_to(sys.executable)

    def command(self, *actions, flags=("--np=2",), program=None):
        (self.directory / "script").write_text("\n".join(map(str, actions)))
        program = program or ["train.py", "--horovod", f"--output_dir={self.directory / 'out'}"]
        code = (
            "import sys; from absl import app; from bert_tf.util import errors; "
            "from bert_tf.commands import launch; "
            "launch.define_flags(); sys.executable = sys.argv.pop(1); "
            "errors.exit_on_user_error(app.run, launch.main)"
        )
        python = str(self.directory / "bin" / "python")
        command = [sys.executable, "-c", code, python, "--restart_delay=0.1", *flags, "--"]
        return [*command, *program]

    def start(self, *actions, **options):
        return subprocess.Popen(
            self.command(*actions, **options),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *actions, **options):
        """The status, the calls of mpirun and what the launcher said."""
        process = self.start(*actions, **options)
        _, said = process.communicate(timeout=120)
        return process.returncode, self.calls(), said

    def calls(self):
        path = self.directory / "calls"
        return [json.loads(line) for line in path.open()] if path.exists() else []


@pytest.fixture
def stub(tmp_path):
    return Stub(tmp_path)


def test_a_run_that_succeeds_is_run_once(stub):
    status, calls, said = stub.run(0)
    assert status == 0
    assert said == ""
    assert calls == [["-np", "2", "train.py", "--horovod", f"--output_dir={stub.directory}/out"]]


def test_a_failure_is_followed_by_another_start(stub):
    status, calls, said = stub.run(3, 137, 0)
    assert status == 0
    assert len(calls) == 3
    assert "launch: ended with status 3; restart 1 of 3" in said
    assert "launch: ended with status 137; restart 2 of 3" in said


def test_restarts_without_a_new_checkpoint_are_counted(stub):
    status, calls, said = stub.run(3, 3, 5, flags=["--np=2", "--max_restarts=2"])
    assert status == 5
    assert len(calls) == 3
    assert "not started again after 2 restarts without a new checkpoint" in said


def test_a_new_checkpoint_sets_the_count_back(stub):
    status, calls, _ = stub.run(3, SAVE, SAVE, SAVE, 4, flags=["--np=2", "--max_restarts=1"])
    assert status == 4
    assert len(calls) == 5


@pytest.mark.parametrize("status", [2, 128 + 2, 128 + 10, 128 + 15])
def test_mistakes_and_requests_to_stop_are_final(stub, status):
    assert stub.run(status)[:1] == (status,)
    assert len(stub.calls()) == 1


def test_no_restarts_if_none_are_wanted(stub):
    status, calls, _ = stub.run(SAVE, flags=["--np=2", "--max_restarts=0"])
    assert (status, len(calls)) == (3, 1)


def test_a_host_that_is_lost_is_left_out_and_comes_back(stub):
    (stub.directory / "lost").write_text("b\n")
    back = "open(where + '/lost', 'w').close(); sys.exit(3)"
    status, calls, said = stub.run(
        3, back, 0, flags=["--hosts=a:4,b:2", "--np=5", "--mpirun_flags=--bind-to none -x 'A B'"]
    )
    assert status == 0
    assert [call[:8] for call in calls] == [
        ["--bind-to", "none", "-x", "A B", "-np", "5", "-H", "a:4,b:2"],
        ["--bind-to", "none", "-x", "A B", "-np", "4", "-H", "a:4"],
        ["--bind-to", "none", "-x", "A B", "-np", "5", "-H", "a:4,b:2"],
    ]
    assert said.count("launch: dropped because mpirun cannot reach them: b:2") == 1


def test_with_no_host_in_reach_all_are_tried_again(stub):
    (stub.directory / "lost").write_text("a b")
    status, calls, said = stub.run(3, 0, flags=["--hosts=a:4,b:2"])
    assert (status, len(calls)) == (0, 2)
    assert calls[0] == calls[1]
    assert "no host could be reached" in said


def test_what_ranks_print_comes_through(stub):
    _, _, said = stub.run("print('one\\ntwo', file=sys.stderr)", "0")
    assert said == "one\ntwo\n"


def test_a_run_goes_on_when_nobody_reads_what_is_printed(stub):
    """Neither what the ranks print, more than a pipe holds, nor that they are started again."""
    process = stub.start("sys.stderr.write('line\\n' * 100_000); sys.exit(3)", "0")
    process.stderr.close()
    assert process.wait(60) == 0
    assert len(stub.calls()) == 2


def test_mpirun_that_hangs_after_an_error_is_killed(capfd):
    """As it does when a host is cut off."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; print('error: x', file=sys.stderr, flush=True);"
         "time.sleep(600)"],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    launch.pass_on_errors(process, seconds_to_end=0.2)
    assert process.wait(60) == -signal.SIGKILL
    assert capfd.readouterr().err == "error: x\n"


# mpirun passes SIGUSR1 on to the ranks, and they end by its number.
WAITS = (
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(138)); "
    "open(where + '/ready', 'w').close(); time.sleep(600)"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_asks_the_ranks_to_stop_and_is_final(stub, number):
    process = stub.start(WAITS, "0")
    while not (stub.directory / "ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 138
    assert len(stub.calls()) == 1


def test_a_second_signal_ends_mpirun(stub):
    ignores = WAITS.replace("sys.exit(138)", "open(where + '/asked', 'w').close()")
    process = stub.start(ignores, "0")
    for name in ("ready", "asked"):
        while not (stub.directory / name).exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


# It saves for a second, and ends at once at a second signal.
SAVES = (
    "signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(1), print('saved', flush=True), "
    "sys.exit(138))); print('training', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal_under_make(stub, times):
    command = shlex.join(map(str, stub.command(SAVES, "0")))
    (stub.directory / "Makefile").write_text(f"train:\n\t@exec {command}\n")
    env = {**environment(), "PS1": "prompt> "}
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], cwd=stub.directory, env=env)
    shell.wait_for("prompt> ")
    shell.type(b"make train\n")
    shell.wait_for("training")
    for _ in range(times):
        shell.type(CTRL_C)
        time.sleep(0.3)
    shell.wait_for("prompt> ")
    shell.type(b"exit\n")
    shell.finish()
    assert ("saved" in shell.shown) == (times == 1)
    assert len(stub.calls()) == 1


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("a:4,b:2", (Host("a", 4), Host("b", 2))),
        ("10.0.0.1,b:12", (Host("10.0.0.1", 1), Host("b", 12))),
    ],
)
def test_hosts(text, hosts):
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["a:", ":4", "a:x", "a:0", "a:-1", "a:4:4"])
def test_hosts_that_are_none(text):
    with pytest.raises(UserError, match="--hosts: "):
        parse_hosts(text)


@pytest.mark.parametrize(
    "arguments", [["--output_dir=x y"], ["--output_dir", "x y"], ["-output_dir=x y"],
                  ["--output_dir=a", "--output_dir=x y"], ["--flagfile=FILE"]]
)  # fmt: skip
def test_the_output_directory_is_found(arguments, tmp_path):
    file = tmp_path / "flags"
    file.write_text("--horovod\n--output_dir=x y\n")
    given = [argument.replace("FILE", str(file)) for argument in arguments]
    assert str(find_output_dir(["python", "train.py", "--do_train", *given, "--seed=3"])) == "x y"


def test_a_command_without_output_directory():
    assert find_output_dir(["python", "train.py", "--output_directory=x"]) is None
    assert launch.newest_checkpoints(None) == {}


def test_the_newest_checkpoints_of_a_run_its_seeds_and_its_phases(tmp_path):
    lists = {"": "x\nold", "seed_1/": "y\nold", "phase_2/": "p\nold", "best/": "z"}
    for name, text in lists.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / f"{name}checkpoint").write_text(text)
    assert list(launch.newest_checkpoints(tmp_path).values()) == ["x", "y", "p"]


def test_no_more_ranks_than_the_hosts_take(monkeypatch):
    monkeypatch.setattr(launch, "find_mpirun", lambda: "mpirun")
    settings = LaunchSettings(("p",), (Host("a", 2), Host("b", 2)), 4, 3, 0.0, ())
    assert mpirun_command(settings, settings.hosts)[1:] == ["-np", "4", "-H", "a:2,b:2", "p"]
    assert mpirun_command(settings, settings.hosts[:1])[1:] == ["-np", "2", "-H", "a:2", "p"]


@pytest.mark.parametrize(
    ("flags", "program", "says"),
    [
        (["--np=2"], [], "nothing to run"),
        ([], ["p"], "give --np"),
        (["--np=0"], ["p"], "--np=0 must be at least 1"),
        (["--hosts=a:b"], ["p"], "--hosts: 'a:b' is not HOST or HOST:RANKS"),
        (["--np=2"], ["p", "--flagfile=/nowhere"], "/nowhere"),
    ],
)
def test_mistakes_are_one_sentence(flags, program, says):
    done = subprocess.run(
        [sys.executable, "-m", "bert_tf.commands.launch", *flags, "--", *program],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_mpirun_the_way_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="make setup"):
        launch.find_mpirun()
    assert os.environ["PATH"] == str(tmp_path)
