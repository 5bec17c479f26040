"""Updates that XLA compiles against those that TensorFlow executes operation by operation.

Both compute the same in other orders; tests/parallel/test_equivalence.py derives what rounding may
make of that. Dropout draws the same bits.
"""

import numpy as np
import pytest

from bert_tf.ranks.ranks import SingleProcess
from bert_tf.update.batch_plan import BatchPlan
from tests.parallel.test_equivalence import assert_equal_up_to_rounding
from tests.parallel.updates_program import GLOBAL_BATCH, KINDS, UNCOMPILED, cuts, run_updates

pytestmark = pytest.mark.each_tensorflow

FAST = ("xla", GLOBAL_BATCH, 1)
TASKS = (
    "xla",
    *(f"xla-{task}" for task in ("squad", "classes", "tags", "distillation", "electra")),
)
# All tasks with one and with four micro batches, all else with four.
CASES = [
    (kind, micro_batch, steps)
    for kind in UNCOMPILED
    for micro_batch, steps in cuts(1, kind)
    if kind in TASKS or steps > 1
]


def updates(kind, micro_batch, steps):
    """What ten updates did."""
    plan = BatchPlan(micro_batch, steps, 1)
    return run_updates(SingleProcess(1), KINDS[kind], plan, kind)


@pytest.mark.parametrize(
    ("kind", "micro_batch", "steps"),
    [pytest.param(*c, marks=[] if c == FAST else pytest.mark.slow) for c in CASES],
)
def test_compiled_updates_equal_uncompiled_ones(kind, micro_batch, steps):
    compiled = updates(kind, micro_batch, steps)
    uncompiled = updates(UNCOMPILED[kind], micro_batch, steps)
    assert len(compiled["functions"]) == 2
    assert len(uncompiled["functions"]) == 0
    np.testing.assert_array_equal(compiled["first_weights"], uncompiled["first_weights"])
    np.testing.assert_array_equal(compiled["scales"], uncompiled["scales"])
    assert_equal_up_to_rounding(compiled, uncompiled, UNCOMPILED[kind])
    # The bounds hold for ten updates; in float32, a first one with other masks would be far off.
    if KINDS[kind].precision == "fp32":
        np.testing.assert_allclose(compiled["norms"][0], uncompiled["norms"][0], rtol=1e-5)
