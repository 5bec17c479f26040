"""A rank ends with its launcher, by whatever it was started; an mpirun that hangs is killed."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from bert_tf.ranks.launcher import Lineage
from tests.helpers.programs import ROOT, environment

LIMIT = 60
# Says who it is, and stays.
RANK = (
    "import os, threading; from bert_tf.ranks.launcher import end_with_launcher as e; e(); e();"
    "print(os.getpid(), flush=True); threading.Event().wait()"
)
# Says when it has been asked whether its line to the launcher is cut.
ASKED = (
    "import os, sys; from bert_tf.ranks.launcher import Lineage; lineage = Lineage(os.environ);"
    "print(lineage.launcher, flush=True);"
    "[print(lineage.is_cut(), flush=True) for line in sys.stdin]"
)
# Starts a rank as mpirun does, by the command in its arguments, and waits for it.
LAUNCHER = (
    "import os, subprocess, sys; os.environ['OMPI_COMM_WORLD_RANK'] = '1';"
    "sys.exit(subprocess.call(sys.argv[1:]))"
)
DIRECTLY = [sys.executable, "-c"]
BY_SHELLS = ["sh", "-c", 'sh -c "$0 -c \\"\\$0\\"; echo status \\$?" "$1"; exit 0', sys.executable]


def start(rank, by, *, before=(), **streams):
    """A launcher with a rank, started ``by`` a command, or by nothing but the launcher."""
    command = [*before, sys.executable, "-c", LAUNCHER, *by, rank]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **streams)


@contextlib.contextmanager
def started(*arguments, **options):
    with start(
        *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.stdin.close()


@pytest.mark.parametrize("by", [DIRECTLY, BY_SHELLS], ids=["directly", "by shells"])
def test_a_rank_ends_with_its_launcher(by):
    with started(RANK, by) as process:
        process.stdout.readline()
        process.kill()
        # The pipes end when the last process that holds them does.
        stdout, stderr = process.communicate(timeout=LIMIT)
    assert stderr.startswith("error: rank 1 on host ")
    assert f"the launcher that started it (process {process.pid}) is gone" in stderr
    assert stderr.count("\n") == 1
    assert stdout == ("" if by is DIRECTLY else "status 3\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>&1 >&-", ">/dev/full 2>&1"])
def test_a_rank_ends_though_it_cannot_say_why(redirection):
    by = ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable]
    told = RANK.replace("print(os.getpid(), flush=True)", "os.write(int(os.environ['TOLD']), b'x')")
    reader, writer = os.pipe()
    launcher = LAUNCHER.replace("argv[1:]", "argv[1:], close_fds=False")
    with subprocess.Popen(
        [sys.executable, "-c", launcher, *by, told],
        cwd=ROOT,
        env={**environment(), "TOLD": str(writer)},
        pass_fds=[writer],
    ) as process:
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        process.kill()
        assert os.read(reader, 1) == b"", "the last process that could write has ended"
    os.close(reader)


def is_cut(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline() == "True\n"


@pytest.mark.parametrize("by", [DIRECTLY, BY_SHELLS], ids=["directly", "by shells"])
def test_what_started_the_launcher_may_end(by):
    """As a shell does from which mpirun was started in the background."""
    shell = ["sh", "-c", 'exec 3<&0; "$@" <&3 & echo $!', "sh"]
    with started(ASKED, by, before=shell) as process:
        launcher = process.stdout.readline()
        assert process.wait(LIMIT) == 0, "the shell has ended"
        assert process.stdout.readline() == launcher
        assert not is_cut(process)
        os.kill(int(launcher), signal.SIGKILL)
        while not is_cut(process):  # a signal takes its time
            pass


def processes(directory, environments, parents):
    """A directory as /proc of processes, as proc(5) describes it; their name is ``a) (b``."""
    for process, variables in environments.items():
        (directory / str(process)).mkdir(exist_ok=True)
        (directory / str(process) / "environ").write_bytes(variables)
    for process, parent in parents.items():
        (directory / str(process) / "stat").write_text(f"{process} (a) (b) S {parent} 1 1 0 -1")
    return directory


def test_a_rank_of_mpirun_within_a_job_of_srun(tmp_path, monkeypatch):
    """The variable of the innermost launcher counts, whoever else has one."""
    environments = {
        10: b"A=1\0OMPI_COMM_WORLD_RANK=1\0SLURM_PROCID=0\0",
        20: b"SLURM_PROCID=0\0OMPI_COMM_WORLD_RANK=11\0",
        30: b"SLURM_PROCID=0\0",
        1: b"",
    }
    parents = {10: 20, 20: 30, 30: 1}
    proc = processes(tmp_path, environments, parents)
    monkeypatch.setattr(os, "getppid", lambda: 10)
    assert Lineage({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0"}, proc).launcher == 20
    assert Lineage({"SLURM_PROCID": "0"}, proc).launcher == 1
    assert Lineage({}, proc).launcher == 10


def test_what_cannot_be_read_is_not_taken_for_an_end(tmp_path, monkeypatch):
    proc = processes(tmp_path, {10: b"PMI_RANK=0\0", 20: b""}, {10: 20})
    monkeypatch.setattr(os, "getppid", lambda: 10)
    lineage = Lineage({"PMI_RANK": "0"}, proc)
    assert lineage.launcher == 20
    assert not lineage.is_cut()
    (proc / "10" / "stat").unlink()
    assert not lineage.is_cut()
    processes(tmp_path, {}, {10: 1})
    assert lineage.is_cut()


KILLER = "from bert_tf.ranks.launcher import kill_launcher_if_it_hangs as k; k(0.2)"


def finished(name, then, by=()):
    """A process that has started a rank as ``name`` would, and does something else then.

    The rank is started ``by`` a shell, or directly.
    """
    program = (
        "import os, subprocess, sys, time; os.environ['OMPI_COMM_WORLD_RANK'] = '0'\n"
        f"subprocess.run([*{by!r}, sys.argv[1], '-c', {KILLER!r}])\n{then}"
    )
    return subprocess.run(
        [name, "-c", program, sys.executable],
        executable=sys.executable,
        cwd=ROOT,
        env=environment(),
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["/some/where/mpirun", "mpiexec", "orterun"])
def test_mpirun_that_hangs_is_killed(name):
    assert finished(name, "time.sleep(100)").returncode == -signal.SIGKILL


def test_mpirun_that_hangs_is_killed_from_behind_another_program():
    """As where each rank is started by a script that waits for it."""
    shell = ["sh", "-c", '"$0" "$@"; exit $?']
    assert finished("mpirun", "time.sleep(100)", by=shell).returncode == -signal.SIGKILL


def test_mpirun_that_ends_in_time_has_its_own_status():
    assert finished("mpirun", "sys.exit(3)").returncode == 3


def test_another_parent_is_left_alone():
    assert finished("python", "time.sleep(1); sys.exit(5)").returncode == 5
