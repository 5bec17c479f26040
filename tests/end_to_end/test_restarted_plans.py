"""A plan of two phases, interrupted in both: restarted, it ends as if it had never been.

Two ranks, one of which is killed; and under Slurm a time limit.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.end_to_end.test_slurm import ON_THIS_MACHINE, Slurm
from tests.helpers.programs import ROOT, environment, mpirun, requires_horovod
from tests.helpers.tensors import variables_of

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.exhaustive]

PROGRAM = """
import sys
from pathlib import Path
from tests.parallel import faulty_rank
faulty_rank.main({fault!r}, "1", Path({marker!r}))
"""
IN_BOTH_PHASES = "killed at 3,7"
IN_THE_SECOND = "killed at 7"
LAST = "phase_2/model.ckpt-8"


@pytest.fixture(scope="module")
def plan(flags, tmp_path_factory):
    """Steps 0 to 4, then 4 to 8 with the optimizer's state and other data before them."""
    directory = tmp_path_factory.mktemp("phases")
    usual = "--do_train\n--num_warmup_steps=2\n--save_checkpoints_steps=2\n"
    phases = {
        directory / "first.flags": f"{usual}--num_train_steps=4\n",
        directory / "second.flags": f"{usual}--num_train_steps=8\n--resume_from=previous\n",
    }
    for path, content in phases.items():
        path.write_text(content, encoding="utf-8")
    batch = ["--train_batch_size=4", "--global_batch_size=8", "--scale_steps_by_ranks=false"]
    return [*flags, *batch, "--deterministic", f"--phases={','.join(map(str, phases))}"]


@pytest.fixture(scope="module")
def uninterrupted(plan, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    mpirun(2, "run_pretraining.py", *plan, "--horovod", f"--output_dir={output_dir}")
    return output_dir


def assert_ended_as(output_dir, expected):
    found, weights = (variables_of(path / LAST) for path in (output_dir, expected))
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for phase, steps in (("phase_1", [1, 2, 3, 4]), ("phase_2", [5, 6, 7, 8])):
        lines = (output_dir / phase / "log.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps
    entries = json.loads((output_dir / "plan.json").read_text(encoding="utf-8"))["phases"]
    assert [entry["state"] for entry in entries] == ["done", "done"]


def program(tmp_path, fault):
    path = tmp_path / "program.py"
    text = PROGRAM.format(fault=fault, marker=str(tmp_path / "killed"))
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_plan_is_restarted_in_each_phase(plan, uninterrupted, tmp_path):
    output_dir = tmp_path / "model"
    done = subprocess.run(
        [ROOT / "recipes/restart.sh", "mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none",
         sys.executable, program(tmp_path, IN_BOTH_PHASES), *plan, "--horovod",
         f"--output_dir={output_dir}"],
        cwd=ROOT, env={**environment(), "RESTART_DELAY": "0.1"}, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for number in (1, 2):
        assert f"restart.sh: ended with status 137; restart {number} of 3" in done.stderr
    for phase, step in (("phase_1", 2), ("phase_2", 6)):
        checkpoint = output_dir / phase / f"model.ckpt-{step}"
        assert f"resuming from {checkpoint} (step {step})" in done.stdout
    assert "phase_1 is done" in done.stdout
    assert_ended_as(output_dir, uninterrupted)


def test_slurm_queues_a_plan_again_and_restarts_it(plan, uninterrupted, tmp_path):
    """Out of time in the first phase; in the second a process is killed."""
    directory = tmp_path / "slurm"
    directory.mkdir()
    slurm = Slurm(directory)
    output_dir = tmp_path / "model"
    status, log = slurm.sbatch(
        *plan,
        f"--output_dir={output_dir}",
        options=ON_THIS_MACHINE,
        SCRIPT=program(tmp_path, IN_THE_SECOND),
        LAUNCHER="launch",
        MAX_RESTARTS="1",
        SLURM_STUB_SIGNAL="step 2/4",
    )
    assert status == 0, log
    first, second = log.split("queued again, to resume from the last checkpoint")
    assert "stopped by SIGUSR1" in first
    assert f"resuming from {output_dir / 'phase_1' / 'model.ckpt-'}" in second
    assert second.count("restart.sh: ended with status 137; restart 1 of 1") == 1
    assert f"resuming from {output_dir / 'phase_2' / 'model.ckpt-6'} (step 6)" in second
    assert_ended_as(output_dir, uninterrupted)
