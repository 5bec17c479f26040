"""One global batch, cut in every way: the same update.

Gradients are compared after the reduction, so what differs is the order in which float32 numbers
were added: 1e-6 of the gradient's norm. Weights are compared to 1e-5 of what they are after ten
updates with learning rate 1e-3, except where a gradient is zero in theory. That is so for the bias
of every attention key: a constant added to all keys adds the same to all scores of a query, which
softmax ignores. What float32 leaves there is rounding noise of about 1e-9, and Adam divides it by
its own size: sign and step are arbitrary, up to learning rate times updates.
"""

import numpy as np
import pytest

from tests.support import mpirun, requires_horovod

LEARNING_RATE, UPDATES = 1e-3, 10

# micro batch, accumulation steps, ranks
SPLITS = {"1x4": (4, 1, 1), "2x2": (2, 1, 2), "2x1x2": (1, 2, 2), "1x1x4": (1, 4, 1)}


def updates(tmp_path_factory, split, optimizer, dropout, every_micro_batch=False):
    micro, steps, ranks = split
    out = tmp_path_factory.mktemp("updates") / "found.npz"
    program = "tests/parallel/updates_program.py"
    flags = [micro, steps, int(ranks > 1), optimizer, dropout, int(every_micro_batch)]
    mpirun(ranks, program, out, *flags)
    return np.load(out)


@pytest.fixture(scope="module", params=[("adam", 0.0), ("lamb", 0.1)], ids=["adam", "lamb-dropout"])
def reference(request, tmp_path_factory):
    optimizer, dropout = request.param
    return optimizer, dropout, updates(tmp_path_factory, SPLITS["1x4"], optimizer, dropout)


def assert_same_updates(found, expected):
    names = list(expected["names"])
    for update in range(UPDATES):
        norm = float(expected[f"norm_{update}"])
        assert norm > 0.5, "the clip must be active to be tested"
        for i, name in enumerate(names):
            key = f"gradient_{update}_{i}"
            # After clipping the whole gradient has norm 0.5.
            difference = np.linalg.norm(found[key] - expected[key])
            assert difference <= 1e-6 * 0.5, (update, name, difference)
    for i, name in enumerate(names):
        zero_gradient = name.endswith("attention/self/key/bias")
        tolerance = LEARNING_RATE * UPDATES if zero_gradient else 1e-5
        np.testing.assert_allclose(
            found[f"weight_{i}"], expected[f"weight_{i}"], rtol=0, atol=tolerance, err_msg=name
        )


@requires_horovod
@pytest.mark.parallel
@pytest.mark.parametrize("split", ["2x2", "2x1x2", "1x1x4"])
def test_every_cut_gives_the_same_updates(reference, split, tmp_path_factory):
    optimizer, dropout, expected = reference
    found = updates(tmp_path_factory, SPLITS[split], optimizer, dropout)
    assert_same_updates(found, expected)


@requires_horovod
@pytest.mark.parallel
def test_communicating_after_every_micro_batch_gives_the_same_updates(tmp_path_factory):
    expected = updates(tmp_path_factory, SPLITS["2x1x2"], "adam", 0.0)
    found = updates(tmp_path_factory, SPLITS["2x1x2"], "adam", 0.0, every_micro_batch=True)
    assert_same_updates(found, expected)
