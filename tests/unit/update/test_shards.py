"""What ranks keep of an optimizer's slots; their updates are compared in tests/parallel."""

import math

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.ranks.ranks import SingleProcess
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers import OPTIMIZERS
from bert_tf.update.shards import slot_bytes_of_rank

KERNEL = "bert/encoder/layer_0/attention/self/query/kernel"
SHAPES = {
    "bert/embeddings/word_embeddings": (7, 4),
    KERNEL: (4, 3),
    "bert/encoder/layer_0/output/dense/kernel": (2, 3),
    "bert/encoder/layer_0/output/dense/bias": (3,),
    "cls/seq_relationship/output_bias": (2,),
}


class OneOf(SingleProcess):
    """A rank of several that exchange nothing: for what is made before they would."""

    def __init__(self, rank, world_size):
        super().__init__(1)
        self.rank, self.world_size = rank, world_size


def slots_of_ranks(optimizer, world_size):
    """Each rank's parts of the slots."""
    found = []
    for rank in range(world_size):
        with tf.Graph().as_default() as graph:
            variables = [
                tf.get_variable(name, shape, use_resource=True) for name, shape in SHAPES.items()
            ]
            made = Optimizer(optimizer, 0.1, ranks=OneOf(rank, world_size), shard_state=True)
            made.create_slots(variables)
            made.create_slots(variables)  # again, as another update does
            saved = [variable.op.name for variable in tf.global_variables()]
            assert set(saved) == set(SHAPES)
            assert len(graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)) == len(made.shards.slots)
            found.append(made.shards.slots)
    return found


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_ranks_have_every_element_of_every_slot_once(optimizer, world_size):
    by_rank = slots_of_ranks(optimizer, world_size)
    row = OPTIMIZERS[optimizer]
    expected = [f"{n}/{slot}" for n, shape in SHAPES.items() for slot in row.slots_of(n, shape)]
    for slots in by_rank:
        assert [slot.name for slot in slots] == expected
    for parts in zip(*by_rank):
        elements = [e for slot in parts for e in range(slot.part.start, slot.part.end)]
        assert elements == list(range(math.prod(parts[0].shape)))
        for slot in parts:
            assert slot.variable.shape.num_elements() == slot.part.size


def test_a_momentum_of_muon_is_whole_on_one_rank():
    by_rank = slots_of_ranks("muon", 2)
    momenta = [[s.part.size for s in slots if s.name.endswith("muon_m")] for slots in by_rank]
    assert momenta == [[12, 0], [0, 6]]


def test_one_rank_shares_nothing():
    assert Optimizer("adam", 0.1, shard_state=True).shards is None


@given(
    world_size=st.integers(1, 9),
    name=st.sampled_from(sorted(OPTIMIZERS)),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_the_bytes_of_all_ranks_are_those_of_one(world_size, name, sizes):
    row = OPTIMIZERS[name]
    shapes = {f"bert/encoder/layer_{i}/kernel": (size, 3) for i, size in enumerate(sizes)}
    shapes["bert/pooler/dense/bias"] = (5,)
    owners = row.owners(shapes, world_size)
    found = [
        slot_bytes_of_rank(row, shapes, owners, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert sum(found) == row.slot_bytes(shapes)
    if not owners:
        assert max(found) - min(found) <= 4 * 2 * len(shapes)
