"""The batch script for Slurm: its directives, and its course under a Slurm of our own.

The stubs stand for Slurm's programs, Open MPI's real mpirun for what starts the processes: with the
variables of an allocation in its environment it takes hosts and number of processes from there.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.end_to_end import slurm_stub
from tests.helpers.programs import ROOT, environment, python, requires_horovod, run

SCRIPT = ROOT / "recipes/slurm.sbatch"
ON_THIS_MACHINE = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1"]
SHOW = """
import json, os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    seen = {n: v for n, v in os.environ.items() if n.startswith(("OMPI_COMM", "OPAL", "SLURM"))}
    print(json.dumps([sys.argv[1:], seen]), flush=True)
"""
STOPS_WHEN_TOLD = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(sys.argv[-1])))
print("waiting", flush=True)
signal.pause()
"""


class Slurm:
    """A cluster of stubs, whose files are in ``directory``."""

    def __init__(self, directory):
        self.directory = directory
        programs = directory / "bin"
        programs.mkdir()
        stub = programs / "stub.py"
        body = (ROOT / "tests/end_to_end/slurm_stub.py").read_text(encoding="utf-8")
        stub.write_text(f"#!{sys.executable}\n{body}", encoding="utf-8")
        stub.chmod(0o755)
        for name in ("sbatch", "scontrol", "srun"):
            (programs / name).symlink_to(stub)
        known = environment()
        self.variables = {
            **known,
            "PATH": f"{programs}:{known['PATH']}",
            "SLURM_STUB_DIR": str(directory),
            "VENV": sys.prefix,
        }

    def sbatch(self, *arguments, options=ON_THIS_MACHINE, **variables):
        """Submits the script; returns its status and its log once it has ended."""
        done = subprocess.run(
            ["sbatch", *options, SCRIPT, *arguments],
            cwd=ROOT,
            env={**self.variables, **variables},
            timeout=600,
            check=False,
        )
        [log] = self.directory.glob("*.log")
        return done.returncode, log.read_text(encoding="utf-8")

    def calls(self, program):
        lines = (self.directory / "calls.jsonl").read_text(encoding="utf-8").splitlines()
        return [call for call in map(json.loads, lines) if call["program"] == program]


@pytest.fixture
def slurm(tmp_path):
    directory = tmp_path / "slurm"
    directory.mkdir()
    return Slurm(directory)


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_script_is_bash():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_clean():
    subprocess.run(["shellcheck", SCRIPT], check=True)


def test_directives():
    directives = slurm_stub.directives_of(SCRIPT.read_text(encoding="utf-8"))
    assert directives == {
        "job-name": "bert",
        "nodes": "2",
        "ntasks-per-node": directives["gpus-per-node"],
        "gpus-per-node": "8",
        "cpus-per-task": "8",
        "exclusive": "",
        "time": "12:00:00",
        # What a job needs that goes on after its time: see tests of requeueing below.
        "requeue": "",
        "signal": "B:USR1@120",
        "open-mode": "append",
        "output": "%x-%j.log",
    }


@requires_horovod
def test_mpirun_takes_hosts_and_processes_from_the_allocation(slurm, program):
    status, log = slurm.sbatch("--a_flag=a value", SCRIPT=program(SHOW))
    assert status == 0, log
    arguments, seen = json.loads(log.splitlines()[-1])
    assert arguments == ["--horovod", "--num_threads=1", "--a_flag=a value"]
    assert seen["OMPI_COMM_WORLD_SIZE"] == "2"
    assert "SLURM_STEP_NUM_TASKS" not in seen
    assert slurm.calls("sbatch")[0]["options"]["requeue"] == ""


@requires_horovod
def test_srun_is_told_of_cores_and_the_processes_of_their_libraries(slurm, program):
    status, log = slurm.sbatch(
        "--a_flag", SCRIPT=program(SHOW), LAUNCHER="srun", NCCL_SOCKET_IFNAME="eth0"
    )
    assert status == 0, log
    [call] = slurm.calls("srun")
    assert call["options"] == {"mpi": "pmix", "kill-on-bad-exit": "1", "cpus-per-task": "1"}
    assert call["arguments"][0] == "python"
    if shutil.which("orted", path=f"{sys.prefix}/bin"):
        assert call["mpi"] == {**call["mpi"], "OPAL_PREFIX": sys.prefix}
    arguments, seen = json.loads(log.splitlines()[-1])
    assert arguments == ["--horovod", "--num_threads=1", "--a_flag"]
    assert seen["SLURM_STEP_NUM_TASKS"] == "2"


FAILS_ONCE = """
import os, pathlib, sys
mark = pathlib.Path(__file__).with_suffix(".failed")
if not mark.exists() and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    mark.touch()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@requires_horovod
def test_a_process_that_fails_is_started_again_in_the_same_allocation(slurm, program):
    # The second time both ranks pass by the failure, and rank 0 shows what it was given.
    status, log = slurm.sbatch(
        "--a_flag=a value", SCRIPT=program(FAILS_ONCE + SHOW), LAUNCHER="launch"
    )
    assert status == 0, log
    assert log.count("restart.sh: ended with status 137; restart 1 of 3") == 1
    arguments, seen = json.loads(log.splitlines()[-1])
    assert arguments == ["--horovod", "--num_threads=1", "--a_flag=a value"]
    assert seen["OMPI_COMM_WORLD_SIZE"] == "2"


@requires_horovod
def test_a_process_that_goes_on_failing_ends_the_job(slurm, program):
    status, log = slurm.sbatch(
        SCRIPT=program("import sys; sys.exit(3)"), LAUNCHER="launch", MAX_RESTARTS="0"
    )
    assert status == 3
    assert "not started again after 0 restarts" in log


@requires_horovod
def test_the_status_of_the_run_is_that_of_the_job(slurm, program):
    status, _ = slurm.sbatch(SCRIPT=program("import sys; sys.exit(3)"))
    assert status == 3


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"VENV": "no_such_environment"},
            "there is no .*no_such_environment/bin/python; run",
        ),
        ({"LAUNCHER": "mpich"}, "LAUNCHER=mpich is not mpirun, srun or launch"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(slurm, variables, sentence):
    status, log = slurm.sbatch(**variables)
    assert status == 2
    assert re.fullmatch(f"error: slurm.sbatch: {sentence}.*\n", log), log


@requires_horovod
@pytest.mark.parametrize(
    ("limit", "status_of_run"),
    [("50", 0), ("0", 138)],
    ids=["finished", "too often"],
)
def test_a_job_out_of_time_that_is_not_requeued(slurm, program, limit, status_of_run):
    status, log = slurm.sbatch(
        str(status_of_run),
        options=[*ON_THIS_MACHINE, "--ntasks-per-node=1"],
        SCRIPT=program(STOPS_WHEN_TOLD),
        MAX_REQUEUES=limit,
        SLURM_STUB_SIGNAL="waiting",
    )
    assert status == status_of_run
    assert slurm.calls("scontrol") == []
    assert ("of MAX_REQUEUES=0 times" in log) == (limit == "0")


@pytest.fixture(scope="module")
def training(flags):
    batch = ["--global_batch_size=8", "--train_batch_size=4", "--scale_steps_by_ranks=false"]
    return [*flags, "--do_train", "--num_train_steps=60", *batch]


@pytest.fixture(scope="module")
def last_line_of_one_process(training, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("one")
    run("run_pretraining.py", *training, f"--output_dir={output_dir}")
    return last_line(output_dir)


def last_line(output_dir):
    return json.loads((output_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])


@requires_horovod
@pytest.mark.parallel
@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun",
        "srun",
        "launch",
    ],
)
@pytest.mark.exhaustive
def test_out_of_time_a_run_goes_on_from_its_checkpoint(
    slurm, program, training, last_line_of_one_process, tmp_path, launcher
):
    command = [*python(), "run_pretraining.py"]
    status, log = slurm.sbatch(
        *training,
        f"--output_dir={tmp_path / 'model'}",
        SCRIPT=program(f"import os, sys\nos.execv(sys.executable, {command} + sys.argv[1:])"),
        LAUNCHER=launcher,
        SLURM_STUB_SIGNAL="step 4/60",
    )
    assert status == 0, log
    requeued = [c for c in slurm.calls("scontrol") if c["arguments"][0] == "requeue"]
    assert len(requeued) == 1
    assert "queued again, to resume from the last checkpoint" in log
    # Both runs are in one log, and the second one began at a checkpoint of the first.
    assert log.count("-- ledger") == 2
    first, second = log.split("queued again")
    [start] = map(int, re.findall(r"resuming from .* \(step (\d+)\)", second))
    assert 3 <= start < 60
    assert "step 60/60" not in first
    assert second.count("step 60/60") == 1
    last = last_line(tmp_path / "model")
    assert last["step"] == last_line_of_one_process["step"] == 60
    assert last["loss"] == pytest.approx(last_line_of_one_process["loss"], rel=1e-3)
