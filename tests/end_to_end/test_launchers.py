"""Every launcher of ranks that is at hand runs the real program, and all give the same losses.

Slurm is stood for by :mod:`tests.end_to_end.test_slurm`.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.programs import ROOT, environment, requires_horovod, run

pytestmark = [requires_horovod, pytest.mark.parallel]

SCRIPT = "run_pretraining.py"
BIN = Path(sys.executable).parent
LAUNCHERS = {
    "mpirun on a named host": ["mpirun", "-np", "2", "-H", "localhost:2", "--bind-to", "none"],
    "horovodrun by Gloo": ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
    "horovodrun by MPI": ["horovodrun", "--mpi", "-np", "2", "-H", "localhost:2"],
}


@pytest.fixture(scope="module")
def training(flags):
    """Three updates of eight sequences, however many ranks there are."""
    return [
        *flags,
        "--do_train",
        "--global_batch_size=8",
        "--train_batch_size=4",
        "--scale_steps_by_ranks=false",
        "--num_train_steps=3",
    ]


@pytest.fixture(scope="module")
def losses_of_one_process(training, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("one")
    run(SCRIPT, *training, f"--output_dir={output_dir}")
    return losses(output_dir)


def losses(output_dir):
    return [json.loads(line)["loss"] for line in (output_dir / "log.jsonl").open()]


def launch(launcher, *arguments, **variables):
    if launcher and shutil.which(launcher[0], path=environment()["PATH"]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    return subprocess.run(
        [*launcher, sys.executable, SCRIPT, *arguments],
        cwd=ROOT,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "horovodrun by Gloo",
        pytest.param("horovodrun by MPI", marks=pytest.mark.exhaustive),
        pytest.param("mpirun on a named host", marks=pytest.mark.exhaustive),
    ],
)
def test_two_ranks_train_as_one_process_does(name, training, losses_of_one_process, tmp_path):
    done = launch(LAUNCHERS[name], *training, "--horovod", f"--output_dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("step 3/3") == 1, "rank 0 alone prints"
    ledger = json.loads((tmp_path / "run.json").read_text())["ledger"]
    assert ledger["ranks"]["world_size"] == 2
    assert ledger["batch"]["accumulation_steps"] == 1
    # float32 sums in another order, over three updates.
    assert losses(tmp_path) == pytest.approx(losses_of_one_process, rel=1e-5)


@pytest.mark.parametrize("name", ["mpirun on a named host", "horovodrun by Gloo"])
@pytest.mark.exhaustive
def test_two_processes_that_forgot_horovod_are_told(name, training, tmp_path):
    done = launch(LAUNCHERS[name], *training, f"--output_dir={tmp_path / 'model'}")
    assert done.returncode != 0
    assert "2 processes were launched without --horovod" in done.stdout + done.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_horovod_without_a_launcher_trains_on_one_rank(training, tmp_path):
    """As NVIDIA's run_squad.sh starts it on a single GPU."""
    done = run(SCRIPT, *training, "--horovod", f"--output_dir={tmp_path}")
    assert done.stdout.count("warning: --horovod, but no launcher started this process") == 1
    ledger = json.loads((tmp_path / "run.json").read_text())["ledger"]
    assert ledger["batch"]["arithmetic"].endswith("x 1 (ranks) = 8")
    assert (tmp_path / "model.ckpt-3.index").is_file()


@pytest.mark.exhaustive
def test_ranks_of_another_mpi_are_told(training, tmp_path):
    """As MPICH's mpirun starts them: each finds no Open MPI daemon and takes itself for alone."""
    variables = {"PMI_SIZE": "2", "PMI_RANK": "0"}
    if (BIN / "orted").exists():  # Open MPI's package is not where it was built
        variables["OPAL_PREFIX"] = str(BIN.parent)
    done = launch([], *training, "--horovod", f"--output_dir={tmp_path}", **variables)
    assert done.returncode == 2
    assert "2 processes were launched, but Horovod sees 1 in this one" in done.stderr
