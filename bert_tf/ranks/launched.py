"""What started this process: a launcher of ranks, or nobody, as its environment tells.

MPI itself ends a process that it cannot connect, with pages of its own, or lets it believe that it
is alone. Both are told here in one sentence, before or right after Horovod starts.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bert_tf.environment import launched_rank, launcher_variable
from bert_tf.errors import UserError
from bert_tf.ranks.failures import ENDED, STATUS, write_last_words

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

_SECONDS_BETWEEN_LOOKS = 0.5


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


class Lineage:
    """The processes from this one's parent up to its launcher, which may be gone some day.

    A launcher may start a rank through others: a shell, numactl, a script that binds it to cores.
    Those have the rank's variables in their own environment, and what started the first of them
    has not.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        """``variables`` are this process's environment."""
        variable = (launcher_variable(variables) or "").encode()
        self._processes = [os.getppid()]
        while variable and variable in _environment_of(self._processes[-1]).split(b"\0"):
            parent = _parent_of(self._processes[-1])
            if parent is None:
                break
            self._processes.append(parent)

    @property
    def launcher(self) -> int:
        """Its process number."""
        return self._processes[-1]

    def is_cut(self) -> bool:
        """Whether one of the processes has ended: its child has another parent then."""
        if os.getppid() != self._processes[0]:
            return True
        # None where the file cannot be opened, which says nothing.
        return any(
            _parent_of(child) not in (parent, None)
            for child, parent in zip(self._processes, self._processes[1:])
        )


@functools.cache
def end_with_launcher() -> None:
    """Ends this process within a second of its launcher's end, in whatever it is; acts once.

    A launcher that is killed cannot end its ranks. They would wait for each other for ever, in MPI
    where nothing interrupts them. What they print is read by nobody then, so that writing the
    reason must not be what they fail in.
    """
    _own_lineage()
    threading.Thread(target=_keep_looking, name="launcher_watch", daemon=True).start()


def _keep_looking() -> None:
    while True:
        end_if_launcher_is_gone()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def end_if_launcher_is_gone() -> None:
    """Says so and ends this process if its launcher has ended since it was first looked for."""
    lineage = _own_lineage()
    if lineage.is_cut():
        write_last_words(
            f"error: rank {launched_rank()} on host {socket.gethostname()}: the launcher that "
            f"started it (process {lineage.launcher}) is gone; start again to resume from the "
            "newest checkpoint.\n"
        )
        os._exit(STATUS[ENDED])


@functools.cache
def _own_lineage() -> Lineage:
    return Lineage(os.environ)


def _environment_of(process: int) -> bytes:
    """What a process was started with; nothing where that cannot be read, as of another user."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


def _parent_of(process: int) -> int | None:
    """The number of a process's parent; None where that cannot be read."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # proc(5): the parent is field 4; the name, field 2, is in parentheses and may hold any bytes.
    return int(status.rpartition(b")")[2].split()[1])


def kill_launcher_if_it_hangs(after_seconds: float) -> None:
    """Leaves a process behind that kills this one's mpirun, if that still runs so much later.

    mpirun ends all its processes when one has failed, and then waits for each host to confirm it;
    for a host that cannot be reached, it waits for ever. Does nothing for other launchers, and
    where mpirun runs on another host.
    """
    launcher = _own_lineage().launcher
    command = Path(f"/proc/{launcher}/cmdline")
    if not command.is_file():
        return
    name = Path(os.fsdecode(command.read_bytes().partition(b"\0")[0])).name
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
