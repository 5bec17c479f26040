"""One global batch, cut in every way into ranks, accumulation steps and micro batches: one update.

Every cut is compared with the whole batch in one piece. What may differ is rounding:

- In float32 it is the order in which numbers are added (tests/helpers/rounding.py): a gradient
  passes through some 16 products, the longest of which sums over the 128 tokens of the global
  batch, and each weight's step is its gradient over its own size.
- In half precision both factors of a product and its result are rounded to the type, by at most
  its unit roundoff. The cut decides what a product of gradients adds up before it is rounded, and
  independent errors add up by their squares: sqrt(3 x 16) times the roundoff, of the gradient's
  norm. Updates follow the gradients, so the weights may differ by as much of the way that they
  went, and the gradients of weights that differ by as much again: twice that.
- In a single weight, whose gradient may be smaller than what rounding makes of it, they may differ
  by one update that goes another way: the first is the largest,
  (1 - 0.9) / sqrt(1 - 0.999) = sqrt(10) times the learning rate.

Some gradients are zero in theory. A constant that is added to all keys of an attention adds the
same to all scores of a query, and softmax ignores it: the key's bias. The same goes for the bias of
the span head, added to the scores of all positions. What rounding leaves of them is noise, and the
optimizers divide by its size: sign and step are arbitrary, up to learning rate times updates. LANS
divides a gradient by its norm before it adds epsilon to anything, so noise makes full steps there,
and two runs may go as far in opposite ways.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest

from tests.helpers import rounding
from tests.helpers.programs import mpirun, requires_horovod
from tests.parallel import updates_program
from tests.parallel.updates_program import (
    CLIP_NORM,
    GLOBAL_BATCH,
    KINDS,
    LEARNING_RATE,
    PRODUCTS,
    SHARDED,
    UNCOMPILED,
    UPDATES,
    cuts,
)

pytestmark = [
    requires_horovod,
    pytest.mark.parallel,
    pytest.mark.each_tensorflow,
    pytest.mark.timeout(1800),
]

PROGRAM = "tests/parallel/updates_program.py"
FAST_KINDS = ("adam-dropout",)
SLOW_KINDS = ("squad", "ramp", "every-cut")
OTHER_KINDS = (
    *("adam", "lamb-dropout", "bf16", "fp16"),
    *("distillation", "electra", "lans", "nvlamb", "muon"),
)


class Launch(NamedTuple):
    """One job for all checks, since starting its ranks takes longer than their work.

    Attributes:
      ranks: how many.
      compared: the kinds that are compared with the whole batch.
      shared: those that are compared with their forms whose ranks share the optimizer's state.
    """

    ranks: int
    compared: tuple[str, ...]
    shared: tuple[str, ...] = ()

    @property
    def kinds(self):
        """All that the job runs."""
        sharded = (SHARDED[name] for name in self.shared)
        return tuple(dict.fromkeys([*self.compared, *self.shared, *sharded]))


# Many ranks take long where there are fewer cores, and so do many kinds; so does compiling.
FAST = [
    Launch(1, FAST_KINDS),
    Launch(2, FAST_KINDS, ("adam-dropout",)),
]
SLOW = [Launch(1, (*SLOW_KINDS, "tensorflow")), Launch(2, (*SLOW_KINDS, "xla"))]
LAUNCHES = [
    *FAST,
    *SLOW,
    Launch(1, OTHER_KINDS),
    Launch(2, ("fp16", "distillation", "electra", "muon"), ("muon",)),
    Launch(
        2,
        ("lamb-dropout", "lans", "nvlamb", "bf16", "tensorflow"),
        ("lamb-dropout", "lans", "nvlamb", "bf16", "fp16-overflow", "tensorflow"),
    ),
    Launch(2, ("xla-squad", "xla-fp16", "xla-ramp", "xla-muon"), ("xla-lamb",)),
    Launch(
        4,
        ("every-cut", "fp16", "squad", "muon"),
        ("adam-dropout", "lamb-dropout", "muon", "bf16", "tensorflow"),
    ),
    Launch(8, ("every-cut",)),
]
# Where each kind has its whole batch in one piece.
OF_ONE_RANK = {kind: launch for launch in LAUNCHES if launch.ranks == 1 for kind in launch.compared}
ZERO_GRADIENTS = ("attention/self/key/bias", "cls/squad/output_bias")
# Relative to the gradient's norm.
OF_GRADIENTS = {
    "fp32": updates_program.OF_GRADIENTS,
    "bf16": 2 * rounding.of_products(3 * PRODUCTS, 1, rounding.BFLOAT16),
    "fp16": 2 * rounding.of_products(3 * PRODUCTS, 1, rounding.FLOAT16),
}
OF_A_WEIGHT = LEARNING_RATE * 10**0.5
WHOLE = f"{GLOBAL_BATCH}x1x1"
CASES = [
    (launch, kind, f"{micro}x{steps}x{launch.ranks}")
    for launch in LAUNCHES
    for kind in launch.compared
    for micro, steps in cuts(launch.ranks, kind)
]


def marks(launch):
    """Of the tests that need a launch."""
    slow = pytest.mark.slow if launch in SLOW else pytest.mark.exhaustive
    return [] if launch in FAST else slow


OTHERS = [
    pytest.param(*case, id="-".join(case[1:]), marks=marks(case[0]))
    for case in CASES
    if case[2] != WHOLE
]
SHARED = [
    pytest.param(launch, kind, id=f"{launch.ranks}-{kind}", marks=marks(launch))
    for launch in LAUNCHES
    for kind in launch.shared
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every update of a launch did, by kind, cut and name; each is launched once."""

    @functools.cache
    def launched(launch):
        out = tmp_path_factory.mktemp("updates") / "found.npz"
        mpirun(launch.ranks, PROGRAM, out, "auto", *launch.kinds, timeout=1800)
        return dict(np.load(out))

    return launched


def result(found, launch, kind, cut):
    return {
        name.split("/", 2)[2]: value
        for name, value in found(launch).items()
        if name.startswith(f"{kind}/{cut}/")
    }


def norms(rows):
    return np.linalg.norm(rows, axis=-1)


def test_there_is_every_cut():
    found = {cut for _, _, cut in CASES}
    assert len(found) == 10
    assert all(np.prod([int(n) for n in cut.split("x")]) == GLOBAL_BATCH for cut in found)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=marks(launch)) for kind, launch in OF_ONE_RANK.items()]
)
def test_what_is_compared_is_worth_comparing(found, kind):
    whole = result(found, OF_ONE_RANK[kind], kind, WHOLE)
    assert (whole["norms"] > CLIP_NORM).all(), "the clip must be active to be tested"
    assert norms(whole["gradients"]) == pytest.approx(CLIP_NORM, rel=1e-5)
    if kind == "fp16":
        assert whole["scales"][-1] > whole["scales"][0] > 1, "the loss scale must be at work"


@pytest.mark.parametrize(("launch", "kind", "cut"), OTHERS)
def test_every_cut_gives_the_same_updates(found, launch, kind, cut):
    reference = UNCOMPILED.get(kind, kind)
    whole = result(found, OF_ONE_RANK[reference], reference, WHOLE)
    cut = result(found, launch, kind, cut)
    np.testing.assert_array_equal(cut["first_weights"], whole["first_weights"])
    np.testing.assert_array_equal(cut["scales"], whole["scales"])
    assert len(cut["states"]) == launch.ranks
    assert len(set(cut["states"])) == 1, "weights, slots and counts are equal on all ranks"
    assert_equal_up_to_rounding(cut, whole, kind)


def bounds(kind, weights):
    """Of the gradients, and of the way that so many weights go."""
    precision = KINDS[kind].precision
    of_gradients = OF_GRADIENTS[precision]
    if precision != "fp32":
        return of_gradients, of_gradients
    return of_gradients, rounding.of_way(of_gradients, weights)


def assert_equal_up_to_rounding(found, expected, kind):
    """Gradients and weights of ten updates; those that overflow are skipped, by both."""
    is_zero = np.repeat([n.endswith(ZERO_GRADIENTS) for n in expected["names"]], expected["sizes"])
    drift = np.abs(found["last_weights"] - expected["last_weights"])
    assert is_zero.any()
    ways = 2 if kind.startswith("lans") else 1
    assert drift[is_zero].max() <= ways * LEARNING_RATE * UPDATES
    of_gradients, of_way = bounds(kind, (~is_zero).sum())
    sizes = norms(expected["gradients"])
    applied = np.isfinite(sizes)
    np.testing.assert_array_equal(np.isfinite(norms(found["gradients"])), applied)
    differences = norms(found["gradients"][applied] - expected["gradients"][applied])
    assert (differences / sizes[applied]).max() <= of_gradients
    way = (expected["last_weights"] - expected["first_weights"])[~is_zero]
    assert norms(drift[~is_zero]) <= of_way * norms(way)
    assert drift[~is_zero].max() <= OF_A_WEIGHT


@pytest.mark.parametrize(("launch", "kind"), SHARED)
def test_shared_state_gives_the_same_updates(found, launch, kind):
    """With the same cut on the same ranks; the exchanges may add up in other orders."""
    for micro, steps in cuts(launch.ranks, SHARDED[kind]):
        cut = f"{micro}x{steps}x{launch.ranks}"
        plain = result(found, launch, kind, cut)
        shared = result(found, launch, SHARDED[kind], cut)
        assert len(set(shared["states"])) == 1, "weights and counts are equal on all ranks"
        if kind in UNCOMPILED:  # ranks communicate within an update of shared state
            assert [len(plain["functions"]), len(shared["functions"])] == [2, 1]
        np.testing.assert_array_equal(shared["scales"], plain["scales"])
        if kind == "fp16-overflow":
            assert plain["scales"][1] < plain["scales"][0], "an update must be skipped"
        assert np.abs(plain["slots"]).max() > 0
        assert_equal_up_to_rounding(shared, plain, kind)
        _, of_way = bounds(kind, len(plain["slots"]))
        # Some slots are means of squares, whose errors are twice those of gradients.
        assert norms(shared["slots"] - plain["slots"]) <= 2 * of_way * norms(plain["slots"])
