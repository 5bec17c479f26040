"""Slurm on one machine, as far as recipes/slurm.sbatch meets it: sbatch, scontrol and srun.

Linked under these names into a directory on the PATH. ``sbatch`` waits until the job has ended.

    SLURM_STUB_DIR     where the log, the calls and the copy of the script go
    SLURM_STUB_SIGNAL  the job's time is up when it prints a line that begins so (once)
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

JOB_ID = "7"
MPI_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "OPAL_PREFIX")


def directory():
    return Path(os.environ["SLURM_STUB_DIR"])


def record(**call):
    with open(directory() / "calls.jsonl", "a", encoding="utf-8") as calls:
        calls.write(json.dumps(call) + "\n")


def options_of(arguments):
    """--name=value and --name, up to the first argument that is none; and the rest."""
    count = next((i for i, a in enumerate(arguments) if not a.startswith("--")), len(arguments))
    pairs = (argument[2:].partition("=") for argument in arguments[:count])
    return {name: value for name, _, value in pairs}, arguments[count:]


def directives_of(script):
    """The options in a batch script's #SBATCH lines, which end at the first command."""
    lines = []
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        lines += re.findall(r"^#SBATCH +(\S+)", line)
    return options_of(lines)[0]


def job_variables(options, restarts):
    """What Slurm tells a batch script; all hosts are this one, and no GPU is handed out."""
    tasks = int(options["ntasks-per-node"]) * int(options["nodes"])
    return {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NODELIST": socket.gethostname(),
        "SLURM_NODELIST": socket.gethostname(),
        "SLURM_NNODES": options["nodes"],
        "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": options["ntasks-per-node"],
        "SLURM_TASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        "SLURM_PROCID": "0",
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }


def sbatch(arguments):
    given, (script, *arguments) = options_of(arguments)
    # Slurm runs a copy of the script, in the directory where sbatch was called.
    copy = directory() / "slurm_script"
    shutil.copyfile(script, copy)
    options = {**directives_of(copy.read_text(encoding="utf-8")), **given}
    record(program="sbatch", options=options, arguments=arguments)
    beginning, restarts = os.environ.get("SLURM_STUB_SIGNAL"), 0
    while True:
        status = run_job(copy, arguments, job_variables(options, restarts), beginning, options)
        requeued = directory() / "requeued"
        if not requeued.exists():
            return status
        assert "requeue" in options, "a job must allow it"
        requeued.unlink()
        restarts, beginning = restarts + 1, None


def run_job(script, arguments, variables, beginning, options):
    """Runs the batch script once; returns its status."""
    name = options["output"].replace("%x", options["job-name"]).replace("%j", JOB_ID)
    out_of_time = signal.Signals["SIG" + re.fullmatch(r"B:(\w+)@\d+", options["signal"])[1]]
    mode = "a" if options["open-mode"] == "append" else "w"
    with open(directory() / name, mode, encoding="utf-8") as log:
        job = subprocess.Popen(
            ["bash", script, *arguments],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        (directory() / "job_pid").write_text(str(job.pid))
        for line in job.stdout:
            log.write(line)
            log.flush()
            if beginning is not None and line.startswith(beginning):
                os.kill(job.pid, out_of_time)  # the batch shell alone
                beginning = None
    return job.wait()


def scontrol(arguments):
    """``requeue ID`` ends the job's processes, with a while to clean up; or ``show hostnames``."""
    record(program="scontrol", arguments=arguments)
    if arguments[:2] == ["show", "hostnames"]:
        print(*arguments[2].split(","), sep="\n")
        return 0
    assert arguments == ["requeue", JOB_ID]
    (directory() / "requeued").touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(int((directory() / "job_pid").read_text()), signal.SIGTERM)
    return 0


def srun(arguments):
    """Starts the tasks with mpirun, which connects them by PMIx as ``srun --mpi=pmix`` does."""
    options, program = options_of(arguments)
    tasks = os.environ["SLURM_NTASKS"]
    inherited = {n: v for n, v in os.environ.items() if n.startswith(MPI_VARIABLES)}
    record(program="srun", options=options, arguments=program, mpi=inherited)
    assert options.pop("mpi") == "pmix", "srun --mpi=list: pmix"
    launcher = ["mpirun", "-np", tasks, "--bind-to", "none"]
    launcher += ["-x", f"SLURM_STEP_NUM_TASKS={tasks}"]
    job = subprocess.Popen([*launcher, *program])
    signal.signal(signal.SIGUSR1, lambda number, _: job.send_signal(number))
    return job.wait()


if __name__ == "__main__":
    me = Path(sys.argv[0]).name
    sys.exit({"sbatch": sbatch, "scontrol": scontrol, "srun": srun}[me](sys.argv[1:]))
