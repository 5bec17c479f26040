"""An mpirun that hangs is killed by what a rank left behind; nothing else is."""

import signal
import subprocess
import sys

import pytest

from tests.helpers.programs import ROOT, environment

RANK = "from bert_tf.ranks.launcher import kill_launcher_if_it_hangs as k; k(0.2)"


def started(name, then, by=()):
    """A process that has started a rank as ``name`` would, and does something else then.

    The rank is started ``by`` a shell, or directly.
    """
    program = (
        "import os, subprocess, sys, time; os.environ['OMPI_COMM_WORLD_RANK'] = '0'\n"
        f"subprocess.run([*{by!r}, sys.argv[1], '-c', {RANK!r}])\n{then}"
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
    assert started(name, "time.sleep(100)").returncode == -signal.SIGKILL


def test_mpirun_that_hangs_is_killed_from_behind_another_program():
    """As where each rank is started by a script that waits for it."""
    shell = ["sh", "-c", '"$0" "$@"; exit $?']
    assert started("mpirun", "time.sleep(100)", by=shell).returncode == -signal.SIGKILL


def test_mpirun_that_ends_in_time_has_its_own_status():
    assert started("mpirun", "sys.exit(3)").returncode == 3


def test_another_parent_is_left_alone():
    assert started("python", "time.sleep(1); sys.exit(5)").returncode == 5
