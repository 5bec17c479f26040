"""Updates with the optimizer's state shared out over ranks, against those without.

What a rank adds up is the same, in the same order where there are two; norms are the roots of sums
over ranks, and may differ in their last digit. In bfloat16 the next products round that difference
to the type, so the weights have a wider tolerance there.
"""

import numpy as np
import pytest

from tests.parallel.updates_program import SHARDED, cuts
from tests.support import mpirun, requires_horovod

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.timeout(600)]

PROGRAM = "tests/parallel/updates_program.py"
RANKS = (2, pytest.param(4, marks=pytest.mark.slow))
TOLERANCES = {"fp32": 1e-6, "bf16": 1e-4}
# Zero in theory: Adam divides what rounding leaves of these gradients by its own size.
ZERO_GRADIENTS = "attention/self/key/bias"


@pytest.fixture(scope="module", params=RANKS)
def found(request, tmp_path_factory):
    """(number of ranks, what each update did)."""
    out = tmp_path_factory.mktemp("sharded") / "found.npz"
    plain = [name.removesuffix("-sharded") for name in SHARDED]
    mpirun(request.param, PROGRAM, out, "auto", *plain, *SHARDED, timeout=600)
    return request.param, dict(np.load(out))


@pytest.mark.parametrize("name", SHARDED)
def test_the_weights_are_those_of_whole_state(found, name):
    ranks, updates = found
    plain_name = name.removesuffix("-sharded")
    for micro, steps in cuts(ranks, name):
        cut = f"{micro}x{steps}x{ranks}"
        plain, sharded = (
            {key: updates[f"{kind}/{cut}/{key}"] for key in ("names", "sizes", "last_weights")}
            for kind in (plain_name, name)
        )
        drift = np.abs(sharded["last_weights"] - plain["last_weights"])
        is_zero = np.repeat([n.endswith(ZERO_GRADIENTS) for n in plain["names"]], plain["sizes"])
        assert drift[~is_zero].max() <= TOLERANCES[SHARDED[name].precision]
        np.testing.assert_allclose(
            updates[f"{name}/{cut}/norms"], updates[f"{plain_name}/{cut}/norms"], rtol=1e-4
        )
        assert updates[f"{name}/{cut}/is_same_on_ranks"]


@pytest.mark.parametrize("name", SHARDED)
def test_slots_are_divided_by_the_number_of_ranks(found, name):
    ranks, updates = found
    for micro, steps in cuts(ranks, name):
        cut = f"{micro}x{steps}x{ranks}"
        parts = updates[f"{name}/{cut}/slots_of_ranks"]
        [whole] = set(updates[f"{name.removesuffix('-sharded')}/{cut}/slots_of_ranks"])
        assert parts.sum() == whole
        # Each weight's parts differ by at most one element, in either of two slots.
        assert parts.max() - parts.min() <= 2 * len(updates[f"{name}/{cut}/sizes"])
