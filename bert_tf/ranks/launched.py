"""What started this process: a launcher of ranks, or nobody, as its environment tells.

MPI itself ends a process that it cannot connect, with pages of its own, or lets it believe that it
is alone. Both are told here in one sentence, before or right after Horovod starts.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bert_tf.errors import UserError

# Set for each process by Open MPI, by Horovod's Gloo launcher, and by MPICH and Slurm's pmi2.
_PROCESS_COUNTS = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE")
# By Slurm's srun, for the processes of one srun. SLURM_NTASKS is the allocation's, which a single
# process started by hand sees as well.
_SLURM_STEP = "SLURM_STEP_NUM_TASKS"
# A shell from 'srun --pty bash' hands the count of its step to all that is started in it.
_SLURM_TERMINAL = "SLURM_PTY_PORT"
# Set by Open MPI's mpirun where it ties a process to some cores: to a single one if it starts two.
_BOUND = "OMPI_MCA_orte_bound_at_launch"
_LAUNCHER_NAMES = ("mpirun", "mpiexec", "orterun")
# What an MPI library needs to find the other processes of a launcher.
_MPI_RENDEZVOUS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE")


def process_count(variables: Mapping[str, str]) -> int:
    """The number of processes that this one was launched with; 1 without a launcher.

    The first launcher that is found counts: mpirun starts its daemons by srun on a Slurm cluster.
    """
    names = _PROCESS_COUNTS if _SLURM_TERMINAL in variables else (*_PROCESS_COUNTS, _SLURM_STEP)
    return next((int(v) for v in (variables.get(n, "") for n in names) if v.isdigit()), 1)


def check_alone(variables: Mapping[str, str]) -> None:
    """Raises UserError where a launcher started several processes, and Horovod is not asked for."""
    launched = process_count(variables)
    if launched > 1:
        raise UserError(
            f"{launched} processes were launched without --horovod, so each would train alone and "
            "write to the same --output_dir; add --horovod."
        )


def check_launcher(variables: Mapping[str, str]) -> None:
    """Raises UserError for a process that Horovod could not connect to any other."""
    if "HOROVOD_SIZE" in variables or any(name in variables for name in _MPI_RENDEZVOUS):
        return
    if process_count(variables) > 1:
        raise UserError(
            "--horovod: srun started this process, but did not tell MPI of the others; use 'srun "
            "--mpi=pmix', if 'srun --mpi=list' knows it, or mpirun within the allocation."
        )
    raise UserError(
        "--horovod: no launcher started this process; start it with 'mpirun -np 2 python ...', "
        "horovodrun or 'srun --mpi=pmix', or drop --horovod."
    )


def check_all_met(variables: Mapping[str, str], world_size: int) -> None:
    """Raises UserError where Horovod knows of fewer ranks than processes were launched."""
    launched = process_count(variables)
    if world_size < launched:
        raise UserError(
            f"{launched} processes were launched, but Horovod sees {world_size} in this one: the "
            "launcher belongs to another MPI than Horovod; use the mpirun in the bin directory of "
            "the environment that 'make setup' built."
        )


def binding_warning(
    variables: Mapping[str, str], *, allowed_cores: int, all_cores: int, local_size: int
) -> str | None:
    """One sentence where mpirun tied the ranks of this host to fewer cores than it has, else None.

    Args:
      allowed_cores: cores that this process may run on.
      all_cores: cores of the host.
      local_size: ranks on this host.
    """
    if variables.get(_BOUND) != "1" or allowed_cores * local_size >= all_cores:
        return None
    return (
        f"mpirun ties each rank to {allowed_cores} of this host's {all_cores} cores, and others "
        "lie idle; 'mpirun --bind-to none' lets the ranks share all"
    )


def kill_launcher_if_it_hangs(after_seconds: float) -> None:
    """Leaves a process behind that kills this one's mpirun, if that still runs so much later.

    mpirun ends all its processes when one has failed, and then waits for each host to confirm it;
    for a host that cannot be reached, it waits for ever. Does nothing for other launchers, and
    where mpirun runs on another host.
    """
    launcher = os.getppid()
    command = Path(f"/proc/{launcher}/cmdline")
    if not command.is_file():
        return
    name = Path(command.read_text().partition("\0")[0]).name
    if name not in _LAUNCHER_NAMES:
        return
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        # The number could be another process's by then.
        ["sh", "-c", f"sleep {after_seconds:g}; grep -qa {name} {command} && kill -9 {launcher}"],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
