"""Detects from the environment whether a launcher started this process, and which.

MPI ends a process that it cannot connect with pages of messages, or lets it run as if it were
alone. Both cases are reported here in one sentence, before or right after Horovod starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from bert_tf.config.settings import RuntimeSettings
from bert_tf.util import environment
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError

# Set for each process by Open MPI, by Horovod's Gloo launcher, and by MPICH and Slurm's pmi2.
_PROCESS_COUNTS = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE")
# Set by Slurm's srun for its own processes. SLURM_NTASKS is the count of the whole allocation,
# which even a single process started by hand has.
_SLURM_STEP = "SLURM_STEP_NUM_TASKS"
# A shell from 'srun --pty bash' passes the count of its step to all processes started in it.
_SLURM_TERMINAL = "SLURM_PTY_PORT"
# Set by Open MPI's mpirun if it binds a process to some cores (to only one if it starts two).
_BOUND = "OMPI_MCA_orte_bound_at_launch"
# Variables by which an MPI library finds the launcher's other processes.
_MPI_RENDEZVOUS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE")


def process_count(variables: Mapping[str, str]) -> int:
    """The number of processes started by this process's launcher; 1 without a launcher.

    The first launcher found counts: on a Slurm cluster, mpirun starts its daemons with srun.
    """
    names = _PROCESS_COUNTS if _SLURM_TERMINAL in variables else (*_PROCESS_COUNTS, _SLURM_STEP)
    return next((int(v) for v in (variables.get(n, "") for n in names) if v.isdigit()), 1)


def check_alone(variables: Mapping[str, str]) -> None:
    """Raises UserError if several processes were started that would not be connected.

    They may have been started by a launcher without --horovod, or as a TensorFlow cluster.
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
    """The number of processes in TensorFlow's TF_CONFIG; 0 if it describes no cluster."""
    try:
        cluster = json.loads(variables["TF_CONFIG"])["cluster"]
        return sum(len(addresses) for addresses in cluster.values())
    except (KeyError, ValueError, TypeError, AttributeError):
        return 0


def is_launched(variables: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, so that Horovod connects it to the other ranks.

    Raises UserError if there are other ranks to which Horovod could not connect it.
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
    """Raises UserError if Horovod sees fewer ranks than were launched."""
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
    """A warning if mpirun bound this host's ranks to fewer cores than it has, else None.

    ``allowed_cores`` is the number on which this process may run.
    """
    if variables.get(_BOUND) != "1" or allowed_cores * local_size >= all_cores:
        return None
    return (
        f"mpirun binds each rank to {allowed_cores} of this host's {all_cores} cores, and others "
        "are idle; 'mpirun --bind-to none' lets the ranks share all"
    )


def prepare_process(runtime: RuntimeSettings) -> None:
    """Prepares a script before it loads TensorFlow: sets its environment, follows its launcher."""
    if runtime.library and is_launched(os.environ):
        from bert_tf.ranks.launcher import end_with_launcher

        end_with_launcher()
    elif runtime.library:
        warn(
            "--horovod, but no launcher started this process: it is the only rank. For several, "
            "start it with 'mpirun -np 2 python ...', horovodrun or 'srun --mpi=pmix'."
        )
    environment.prepare_environment(verbose=runtime.verbose, deterministic=runtime.deterministic)
