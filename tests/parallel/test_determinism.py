"""Runs with ``--deterministic`` end in the same bits on three and four ranks.

Two ranks add two numbers, in either order with the same result. From three ranks on, rounding
depends on the order. Open MPI's ring, which is chosen here, starts the sum of an element at a rank
that depends on its place in the buffer; Horovod's cycle decides what is in a buffer together.
"""

import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.shared_state_program import GLOBAL_BATCH, STEPS
from tests.support import mpirun, requires_horovod, variables_of

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.timeout(1800)]

PROGRAM = "tests/parallel/shared_state_program.py"
RING = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    "OMPI_MCA_coll_tuned_reduce_scatter_algorithm": "3",
}
CYCLES = ("1", "8")  # milliseconds


def results(directory, ranks, cycle):
    """Every variable after the last update, by run."""
    once = GLOBAL_BATCH // ranks  # a micro batch without accumulation
    runs = [
        f"once:plain:{STEPS}:adam:{once}",
        f"summed:plain:{STEPS}:lamb:1",
        f"shared:shared:{STEPS}:lamb:{once}",
        f"resumed:shared:{STEPS // 2}:lamb:{once}",
        f"resumed:shared:{STEPS}:lamb:{once}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**RING, "HOROVOD_CYCLE_TIME": cycle}.items():
            patch.setenv(name, value)
        mpirun(ranks, PROGRAM, directory, *runs, timeout=1800)
    return {
        run.name: variables_of(tf.train.latest_checkpoint(str(run))) for run in directory.iterdir()
    }


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_timing_changes_no_bit(tmp_path, ranks):
    first, second = (results(tmp_path / cycle, ranks, cycle) for cycle in CYCLES)
    assert first.keys() == second.keys() == {"once", "summed", "shared", "resumed"}
    pairs = {name: (first[name], second[name]) for name in first}
    pairs["resumed and not"] = first["resumed"], first["shared"]
    differing = {
        run: [name for name in one if one[name].tobytes() != other[name].tobytes()]
        for run, (one, other) in pairs.items()
    }
    assert not any(differing.values()), differing
    assert first["once"]["global_step"] == STEPS
