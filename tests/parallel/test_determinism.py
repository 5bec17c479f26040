"""Runs with ``--deterministic`` end in the same bits on three and four ranks.

Two ranks add two numbers, in either order with the same result. From three ranks on, rounding
depends on the order. Open MPI's ring, which is chosen here, starts the sum of an element at a rank
that depends on its place in the buffer; Horovod's cycle decides what is in a buffer together.
"""

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.tensors import variables_of
from tests.parallel.shared_state_program import GLOBAL_BATCH, STEPS

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.timeout(1800)]

PROGRAM = "tests/parallel/shared_state_program.py"
RING = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    "OMPI_MCA_coll_tuned_reduce_scatter_algorithm": "3",
}
CYCLES = ("1", "8")  # milliseconds


def results(directory, ranks, cycle, runs):
    """Every variable after the last update, by run."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**RING, "HOROVOD_CYCLE_TIME": cycle}.items():
            patch.setenv(name, value)
        mpirun(ranks, PROGRAM, directory, *runs, timeout=1800)
    return {
        run.name: variables_of(tf.train.latest_checkpoint(str(run))) for run in directory.iterdir()
    }


def differing(one, other):
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


@pytest.mark.exhaustive
def test_timing_changes_no_bit(tmp_path):
    runs = [f"once:plain:{STEPS}:adam:{GLOBAL_BATCH // 3}"]
    first, second = (results(tmp_path / cycle, 3, cycle, runs)["once"] for cycle in CYCLES)
    assert not differing(first, second)
    assert first["global_step"] == STEPS


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [3, 4])
def test_timing_changes_no_bit_of_any_run(tmp_path, ranks):
    micro = GLOBAL_BATCH // ranks  # without accumulation
    runs = [
        f"once:plain:{STEPS}:adam:{micro}",
        f"summed:plain:{STEPS}:lamb:1",
        f"shared:shared:{STEPS}:lamb:{micro}",
        f"resumed:shared:{STEPS // 2}:lamb:{micro}",
        f"resumed:shared:{STEPS}:lamb:{micro}",
    ]
    first, second = (results(tmp_path / cycle, ranks, cycle, runs) for cycle in CYCLES)
    assert first.keys() == second.keys() == {"once", "summed", "shared", "resumed"}
    pairs = {name: (first[name], second[name]) for name in first}
    pairs["resumed and not"] = first["resumed"], first["shared"]
    found = {run: differing(*pair) for run, pair in pairs.items()}
    assert not any(found.values()), found
    assert first["once"]["global_step"] == STEPS
