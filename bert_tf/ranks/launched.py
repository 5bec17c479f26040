"""Detects from its environment whether a launcher started this process, and which.

MPI ends a process that it cannot connect with pages of messages, or lets it run as if it were
alone. Both cases are reported here in one sentence, before or right after Horovod starts.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from bert_tf.config.settings import RuntimeSettings
from bert_tf.ranks.failures import ENDED, STATUS, write_last_words
from bert_tf.util import environment
from bert_tf.util.console import warn
from bert_tf.util.environment import launched_rank, launcher_variable
from bert_tf.util.errors import UserError

# Set for each process by Open MPI, by Horovod's Gloo launcher, and by MPICH and Slurm's pmi2.
_PROCESS_COUNTS = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE")
# Set by Slurm's srun, for the processes of one srun. SLURM_NTASKS is that of the allocation, which
# a single process started by hand has as well.
_SLURM_STEP = "SLURM_STEP_NUM_TASKS"
# A shell from 'srun --pty bash' passes the count of its step to all processes started in it.
_SLURM_TERMINAL = "SLURM_PTY_PORT"
# Set by Open MPI's mpirun if it binds a process to some cores: to a single one if it starts two.
_BOUND = "OMPI_MCA_orte_bound_at_launch"
_LAUNCHER_NAMES = ("mpirun", "mpiexec", "orterun")
# Variables by which an MPI library finds the other processes of a launcher.
_MPI_RENDEZVOUS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE")

_SECONDS_BETWEEN_CHECKS = 0.5


def process_count(variables: Mapping[str, str]) -> int:
    """The number of processes started by this process's launcher; 1 without a launcher.

    The first launcher found counts: on a Slurm cluster mpirun starts its daemons by srun.
    """
    names = _PROCESS_COUNTS if _SLURM_TERMINAL in variables else (*_PROCESS_COUNTS, _SLURM_STEP)
    return next((int(v) for v in (variables.get(n, "") for n in names) if v.isdigit()), 1)


def check_alone(variables: Mapping[str, str]) -> None:
    """Raises UserError if several processes were started that would not be connected.

    By a launcher without --horovod, or as a cluster of TensorFlow's own.
    """
    launched = process_count(variables)
    if launched > 1:
        raise UserError(
            f"{launched} processes were launched without --horovod, so each would train alone and "
            "write to the same --output_dir; add --horovod."
        )
    in_cluster = _cluster_size(variables)
    if in_cluster > 1:
        raise UserError(
            f"the environment variable TF_CONFIG describes a cluster of {in_cluster} processes, "
            "which is not supported: each would train alone and write to the same --output_dir; "
            "start ranks with mpirun and --horovod, and unset TF_CONFIG for a single process."
        )


def _cluster_size(variables: Mapping[str, str]) -> int:
    """The number of processes in TensorFlow's TF_CONFIG; 0 without a cluster there."""
    try:
        cluster = json.loads(variables["TF_CONFIG"])["cluster"]
        return sum(len(addresses) for addresses in cluster.values())
    except (KeyError, ValueError, TypeError, AttributeError):
        return 0


def is_launched(variables: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, so that Horovod connects it to the other ranks.

    Raises UserError if there are others that Horovod could not connect it to.
    """
    if "HOROVOD_SIZE" in variables or any(name in variables for name in _MPI_RENDEZVOUS):
        return True
    if process_count(variables) > 1:
        raise UserError(
            "--horovod: srun started this process, but did not tell MPI about the others; use "
            "'srun --mpi=pmix', if 'srun --mpi=list' lists it, or mpirun within the allocation."
        )
    return False


def check_all_met(variables: Mapping[str, str], world_size: int) -> None:
    """Raises UserError if Horovod sees fewer ranks than processes were launched."""
    launched = process_count(variables)
    if world_size < launched:
        raise UserError(
            f"{launched} processes were launched, but Horovod sees {world_size} in this one: the "
            "launcher belongs to a different MPI than Horovod; use the mpirun in the bin directory "
            "of "
            "the environment that 'make setup' built."
        )


def binding_warning(
    variables: Mapping[str, str], *, allowed_cores: int, all_cores: int, local_size: int
) -> str | None:
    """A warning if mpirun bound the ranks of this host to fewer cores than it has, else None.

    Args:
      allowed_cores: number of cores that this process may run on.
      all_cores: number of cores of the host.
      local_size: number of ranks on this host.
    """
    if variables.get(_BOUND) != "1" or allowed_cores * local_size >= all_cores:
        return None
    return (
        f"mpirun binds each rank to {allowed_cores} of this host's {all_cores} cores, and others "
        "are idle; 'mpirun --bind-to none' lets the ranks share all"
    )


class Lineage:
    """The processes from this one's parent up to its launcher, to detect the launcher's end.

    A launcher may start a rank through other processes: a shell, numactl, a script that binds it to
      cores. These have the rank's variables in their environment, but the launcher itself does not.
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
        """The launcher's process id."""
        return self._processes[-1]

    def is_cut(self) -> bool:
        """Whether one of the processes has ended, so that its child has another parent."""
        if os.getppid() != self._processes[0]:
            return True
        # None if the file cannot be opened, which proves nothing.
        return any(
            _parent_of(child) not in (parent, None)
            for child, parent in zip(self._processes, self._processes[1:])
        )


def prepare_process(runtime: RuntimeSettings) -> None:
    """What a script does before it loads TensorFlow: sets its environment, follows its launcher."""
    if runtime.library and is_launched(os.environ):
        end_with_launcher()
    elif runtime.library:
        warn(
            "--horovod, but no launcher started this process: it is the only rank. For several, "
            "start it with 'mpirun -np 2 python ...', horovodrun or 'srun --mpi=pmix'."
        )
    use_xla = runtime.use_xla is not False
    environment.prepare_environment(verbose=runtime.verbose, use_xla=use_xla)


@functools.cache
def end_with_launcher() -> None:
    """Ends this process within a second of its launcher's end, whatever it is doing; acts once.

    A killed launcher cannot end its ranks. They would wait for each other forever, uninterruptible
    in MPI. Nothing reads their output any more, so a failure to write the reason must not matter.
    """
    _lineage()
    threading.Thread(target=_watch_launcher, name="launcher_watch", daemon=True).start()


def _watch_launcher() -> None:
    while True:
        end_if_launcher_is_gone()
        time.sleep(_SECONDS_BETWEEN_CHECKS)


def end_if_launcher_is_gone() -> None:
    """Ends this process with a message if its launcher has ended since the first call."""
    lineage = _lineage()
    if lineage.is_cut():
        write_last_words(
            f"error: rank {launched_rank()} on host {socket.gethostname()}: the launcher that "
            f"started it (process {lineage.launcher}) is gone; start again: training resumes "
            "from its latest checkpoint.\n"
        )
        os._exit(STATUS[ENDED])


@functools.cache
def _lineage() -> Lineage:
    return Lineage(os.environ)


def _environment_of(process: int) -> bytes:
    """The initial environment of a process; empty if not readable, as for another user's."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


def _parent_of(process: int) -> int | None:
    """The id of a process's parent; None if it cannot be read."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # proc(5): the parent is field 4; the name, field 2, is in parentheses and may hold any bytes.
    return int(status.rpartition(b")")[2].split()[1])


def kill_launcher_if_it_hangs(after_seconds: float) -> None:
    """Starts a background process that kills mpirun if it still runs ``after_seconds`` later.

    mpirun ends all its processes when one has failed, and then waits for confirmation by each host;
    for an unreachable host it waits forever. Does nothing for other launchers, or if mpirun runs on
    another host.
    """
    launcher = _lineage().launcher
    command = Path(f"/proc/{launcher}/cmdline")
    if not command.is_file():
        return
    name = Path(os.fsdecode(command.read_bytes().partition(b"\0")[0])).name
    if name not in _LAUNCHER_NAMES:
        return
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        # The process id may have been reused by then.
        ["sh", "-c", f"sleep {after_seconds:g}; grep -qa {name} {command} && kill -9 {launcher}"],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
