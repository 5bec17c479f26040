"""A job that is asked to stop saves its work, whether or not mpirun still reads what it prints."""

import signal
import subprocess

import pytest

from tests.helpers.programs import ROOT, environment, python, requires_horovod

pytestmark = [requires_horovod, pytest.mark.parallel]

# mpirun neither passes SIGTERM on nor reads for this long, and kills the ranks as long afterwards.
SECONDS = 5


@pytest.mark.parametrize(
    "number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
@pytest.mark.slow
def test_a_job_that_prints_much_saves_its_work_before_it_ends(tmp_path, number):
    ranks = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
    process = subprocess.Popen(
        [*ranks, "--mca", "odls_base_sigkill_timeout", str(SECONDS), *python(),
         "tests/parallel/chatty_program.py", tmp_path],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        printing = set()
        while len(printing) < 2:
            printing.add(process.stdout.readline()[:2])
        process.send_signal(number)
        process.communicate(timeout=120)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
