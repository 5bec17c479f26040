"""How often ranks communicate, counted in the timeline that Horovod writes.

An update exchanges each gradient once, however many micro batches it has; with several, all in one
round. Beside the gradients there is one small vector, each term's weight in the global batch.
"""

import numpy as np
import pytest

from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.timeline import read_timeline, rounds
from tests.parallel.updates_program import OF_GRADIENTS, UPDATES, cuts

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.timeout(1800)]

PROGRAM = "tests/parallel/updates_program.py"
RANKS = 2
CUTS = {f"{micro}x{steps}x{RANKS}": steps for micro, steps in cuts(RANKS, "adam")}
KINDS = ("adam", "every-micro-batch")


def exchanges_of(timeline, kind, cut):
    """(allreduces of each gradient, of anything else, rounds of gradients on the wire)."""
    scope = f"{kind}.{cut}/"
    reduced = {name: found for name, found in timeline.items() if found["ALLREDUCE"]}
    own = {name: found for name, found in reduced.items() if name.startswith(scope)}
    gradients = {name: found for name, found in own.items() if "SummedGradients" in name}
    others = {name: len(found["ALLREDUCE"]) for name, found in own.items() if name not in gradients}
    on_the_wire = [span for found in gradients.values() for span in found["MPI_ALLREDUCE"]]
    counts = {name: len(found["ALLREDUCE"]) for name, found in gradients.items()}
    return counts, others, rounds(on_the_wire)


def launch(directory, groups, kinds=KINDS, **variables):
    """What the updates did, and the timeline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_TIMELINE", str(directory / "timeline.json"))
        for name, value in variables.items():
            patch.setenv(name, value)
        mpirun(RANKS, PROGRAM, directory / "found.npz", groups, *kinds, timeout=1800)
    return dict(np.load(directory / "found.npz")), read_timeline(directory / "timeline.json")


@pytest.fixture(scope="module")
def by_default(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("default"), "auto", kinds=["adam"])


@pytest.fixture(scope="module")
def one_group(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("group"), 1)


def test_rounds_are_told_apart():
    assert rounds([(0, 4), (1, 5), (7, 9), (6, 8), (12, 13)]) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("cut", CUTS)
def test_each_gradient_travels_once_an_update(by_default, cut):
    updates, timeline = by_default
    gradients, others, on_the_wire = exchanges_of(timeline, "adam", cut)
    assert len(gradients) == len(updates[f"adam/{cut}/names"])
    assert set(gradients.values()) == {UPDATES}
    assert list(others.values()) == [UPDATES], others
    # With one micro batch the first gradients may be on their way before the last are known.
    assert on_the_wire == UPDATES if CUTS[cut] > 1 else on_the_wire >= UPDATES


@pytest.mark.exhaustive
def test_gradients_beyond_the_fusion_threshold_travel_in_pieces(by_default, tmp_path):
    cut = next(name for name, steps in CUTS.items() if steps > 1)
    num_bytes = 4 * by_default[0][f"adam/{cut}/sizes"].sum()
    _, timeline = launch(
        tmp_path, "auto", kinds=["adam"], HOROVOD_FUSION_THRESHOLD=str(num_bytes // 2)
    )
    gradients, _, on_the_wire = exchanges_of(timeline, "adam", cut)
    assert set(gradients.values()) == {UPDATES}
    assert on_the_wire >= 2 * UPDATES


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.exhaustive
def test_all_gradients_travel_in_one_round(one_group, cut):
    gradients, _, on_the_wire = exchanges_of(one_group[1], "adam", cut)
    assert set(gradients.values()) == {UPDATES}
    assert on_the_wire == UPDATES


@pytest.mark.exhaustive
@pytest.mark.parametrize("cut", CUTS)
def test_after_every_micro_batch_there_are_as_many_rounds_as_these(one_group, cut):
    gradients, others, on_the_wire = exchanges_of(one_group[1], "every-micro-batch", cut)
    assert set(gradients.values()) == {UPDATES * CUTS[cut]}
    assert on_the_wire == UPDATES * CUTS[cut]
    assert list(others.values()) == [UPDATES], others


@pytest.mark.exhaustive
@pytest.mark.parametrize("cut", CUTS)
def test_communicating_after_every_micro_batch_gives_the_same_updates(one_group, cut):
    updates, _ = one_group
    once, often = (updates[f"{kind}/{cut}/gradients"] for kind in KINDS)
    difference = np.linalg.norm(often - once, axis=-1).max()
    assert difference <= OF_GRADIENTS * np.linalg.norm(once, axis=-1).min()
