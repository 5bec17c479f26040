"""Launchers, told by the variables that each of them sets (as printed by the real ones)."""

import json

import pytest

from bert_tf.ranks.launched import (
    binding_warning,
    check_all_met,
    check_alone,
    is_launched,
    process_count,
)
from bert_tf.util.errors import UserError

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}
HOROVODRUN_GLOO = {"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1", "HOROVOD_CONTROLLER": "gloo"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "1"}
# In an allocation of 8 tasks on 2 hosts.
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_PROCID": "0"}
SRUN = {**ALLOCATION, "SLURM_STEP_NUM_TASKS": "4"}
SRUN_PMIX = {**SRUN, "PMIX_RANK": "1", "SLURM_MPI_TYPE": "pmix"}
SRUN_PMI2 = {**SRUN, "PMI_RANK": "1", "PMI_SIZE": "4"}
# On the second host of two, mpirun's daemon is a task of an srun.
MPIRUN_IN_SLURM = {**SRUN, **MPIRUN, "SLURM_STEP_NUM_TASKS": "2"}
# A shell from 'srun --ntasks=4 --pty bash': three other shells ended at once, without input.
TERMINAL = {**SRUN, "SLURM_PTY_PORT": "34889"}
# A shell from salloc, which is a step of one task.
INTERACTIVE = {**ALLOCATION, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "34889"}

SEVERAL = {
    "mpirun": MPIRUN,
    "horovodrun": HOROVODRUN_GLOO,
    "mpich": MPICH,
    "srun": SRUN,
    "srun-pmix": SRUN_PMIX,
    "srun-pmi2": SRUN_PMI2,
    "mpirun-in-slurm": MPIRUN_IN_SLURM,
    "mpirun-in-a-terminal-of-srun": {**TERMINAL, **MPIRUN},
}
ALONE = {
    "nothing": {},
    "mpirun-of-one": {"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"},
    "batch-script": ALLOCATION,
    "salloc": INTERACTIVE,
    "srun-terminal": TERMINAL,
    "srun-of-one": {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    "empty": {"OMPI_COMM_WORLD_SIZE": "", "SLURM_STEP_NUM_TASKS": ""},
}


def by_name(cases):
    return pytest.mark.parametrize("variables", cases.values(), ids=cases.keys())


@by_name(SEVERAL)
def test_several_processes_without_horovod_are_refused(variables):
    assert process_count(variables) == 4
    with pytest.raises(UserError, match=r"^4 processes .* add --horovod\.$"):
        check_alone(variables)


@by_name(ALONE)
def test_no_false_alarm_for_one_process(variables):
    assert process_count(variables) == 1
    check_alone(variables)


def of_tensorflow(*hosts):
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {"index": 0}})}


def test_a_cluster_of_tensorflow_is_refused():
    with pytest.raises(UserError, match=r"TF_CONFIG describes a cluster of 2 .* --horovod"):
        check_alone(of_tensorflow("a:1", "b:1"))


@pytest.mark.parametrize("variables", [of_tensorflow("a:1"), {"TF_CONFIG": ""}, {"TF_CONFIG": "1"}])
def test_no_false_alarm_for_other_uses_of_its_variable(variables):
    check_alone(variables)


@by_name({name: v for name, v in SEVERAL.items() if name != "srun"})
def test_launchers_that_horovod_knows(variables):
    assert is_launched(variables)


def test_one_rank_of_a_launcher_is_a_job():
    assert is_launched(ALONE["mpirun-of-one"])


@by_name({name: ALONE[name] for name in ("nothing", "batch-script", "salloc", "srun-terminal")})
def test_horovod_without_a_launcher(variables):
    assert not is_launched(variables)


def test_srun_without_a_process_manager():
    with pytest.raises(UserError, match=r"^--horovod: srun .*'srun --mpi=pmix'"):
        is_launched(SRUN)


@by_name(SEVERAL)
def test_ranks_that_did_not_meet(variables):
    check_all_met(variables, world_size=4)
    with pytest.raises(UserError, match=r"^4 processes .* sees 1 .* a different MPI"):
        check_all_met(variables, world_size=1)


@by_name(ALONE)
def test_more_ranks_than_a_launcher_told_of_are_no_fault(variables):
    check_all_met(variables, world_size=1)
    check_all_met(variables, world_size=8)


@pytest.mark.parametrize(
    ("bound", "allowed_cores", "warns"),
    [("1", 1, True), ("1", 7, True), ("1", 8, False), ("1", 16, False), ("0", 1, False)],
)
def test_cores_that_lie_idle(bound, allowed_cores, warns):
    variables = {**MPIRUN, "OMPI_MCA_orte_bound_at_launch": bound}
    warning = binding_warning(variables, allowed_cores=allowed_cores, all_cores=16, local_size=2)
    assert (warning is not None) == warns
    if warns:
        assert f"{allowed_cores} of this host's 16 cores" in warning


def test_a_job_systems_own_limits_are_no_fault_of_mpirun():
    assert binding_warning(MPIRUN, allowed_cores=2, all_cores=64, local_size=2) is None
