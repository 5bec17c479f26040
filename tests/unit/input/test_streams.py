"""What resumed runs rely on: streams of random numbers that never change.

A run that was begun with an older version of this code is resumed with the same order, lengths,
masks and dropout. These literal values are of the streams as they have always been: a test that
fails here says that every run that is under way would see other data.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.length_buckets import LengthBuckets, LengthSortedBatches
from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.input.order import GlobalBatchSlice, batch_indices, epoch_permutation
from bert_tf.input.stateless_random import derive_keys, random_bits
from bert_tf.model.dropout import Dropout, numbers_like
from bert_tf.model.variables import VariableSpec, create_variables

LENGTHS = np.array([9, 3, 7, 12, 5, 5, 8, 2, 11, 4, 6, 10])


def mixed(value):
    """SplitMix64's finalizer, in Python's integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def key_of(seed, *counters):
    golden = 0x9E3779B97F4A7C15
    key = mixed((seed + golden) % 2**64)
    for counter in counters:
        key = mixed(mixed((key + golden) % 2**64) ^ (counter + golden) % 2**64)
    return key


def test_keys():
    found = derive_keys(12345, 7, [0, 1, 2**40])
    assert found.tolist() == [0xF0FE6441ABBC1F4C, 0xE7156AE96954CA5D, 0x10C7AA0ADD82F96A]
    assert found.tolist() == [key_of(12345, 7, counter) for counter in (0, 1, 2**40)]
    assert derive_keys(-1).tolist() == [0xE4D971771B652C20] == [key_of(2**64 - 1)]


def test_draws():
    [found] = random_bits(derive_keys(3, 1), 3)
    assert found.tolist() == [0x7A49B9411FE07880, 0xD388D7537A8E7C0C, 0xA64F77B31189E46C]


def test_orders():
    assert epoch_permutation(5, 2, 12).tolist() == [10, 1, 9, 2, 4, 3, 0, 8, 11, 7, 6, 5]
    of_many = epoch_permutation(5, 2, 10_000, start=9_990)
    assert of_many.tolist() == [2433, 5231, 381, 3186, 4068, 7681, 2935, 3555, 5420, 5933]
    rank_slice = GlobalBatchSlice(6, 1, 2, origin=5)
    assert batch_indices(3, rank_slice, num_records=10, seed=9).tolist() == [9, 6, 4]


def test_batches_of_like_length():
    buckets = LengthBuckets(LENGTHS, global_batch_size=4, seed=6, max_length=16)
    whole = GlobalBatchSlice(4)
    assert [buckets.indices(position, whole).tolist() for position in range(4)] == [
        [5, 10, 2, 6],
        [7, 1, 9, 4],
        [0, 11, 8, 3],
        [7, 1, 9, 4],
    ]
    assert [buckets.padded_length(position) for position in range(4)] == [8, 8, 16, 8]
    # The origin of a resumed run is rounded up to a whole batch: from the second one on.
    resumed = LengthBuckets(LENGTHS, global_batch_size=4, seed=6, max_length=16, origin=6)
    half = GlobalBatchSlice(4, 1, 2, origin=6)
    assert [resumed.indices(position, half).tolist() for position in range(3)] == [
        [8, 3],
        [9, 4],
        [8, 3],
    ]


def test_batches_of_a_prediction():
    batches = LengthSortedBatches(LENGTHS, batch_size=2, max_length=16, rank=1, world_size=2)
    found = [batches.indices(number).tolist() for number in range(batches.num_batches)]
    assert found == [[11, 0], [10, 4], [1, 7]]


MASKS = {  # by whole words, and the most words of an n-gram
    (False, 1): (
        [
            [2, 10, 11, 12, 13, 14, 15, 16, 4, 4, 19, 32, 4, 4, 23, 3],
            [2, 8, 31, 32, 4, 34, 35, 4, 3, 0, 0, 0, 0, 0, 0, 0],
        ],
        [[8, 9, 11, 12, 13, 0], [1, 4, 7, 0, 0, 0]],
        [[17, 18, 20, 21, 22, 0], [30, 33, 36, 0, 0, 0]],
    ),
    (True, 1): (
        [
            [2, 10, 11, 12, 13, 14, 15, 16, 4, 18, 19, 20, 4, 4, 4, 3],
            [2, 8, 4, 32, 33, 34, 4, 36, 3, 0, 0, 0, 0, 0, 0, 0],
        ],
        [[7, 8, 12, 13, 14, 0], [1, 2, 6, 0, 0, 0]],
        [[16, 17, 21, 22, 23, 0], [30, 31, 35, 0, 0, 0]],
    ),
    (True, 3): (
        [
            [2, 4, 4, 12, 13, 14, 15, 16, 17, 18, 19, 20, 4, 4, 4, 3],
            [2, 8, 4, 32, 33, 34, 4, 36, 3, 0, 0, 0, 0, 0, 0, 0],
        ],
        [[1, 2, 12, 13, 14, 0], [1, 2, 6, 0, 0, 0]],
        [[10, 11, 21, 22, 23, 0], [30, 31, 35, 0, 0, 0]],
    ),
}


@pytest.mark.parametrize(("whole_words", "ngram"), MASKS)
def test_masks(whole_words, ngram):
    special_ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    options = MaskingOptions(0.3, 6, do_whole_word_mask=whole_words, ngram=ngram)
    ids = np.array([[2, *range(10, 24), 3], [2, *range(30, 37), 3, *[0] * 7]])
    word_starts = np.ones_like(ids, bool)
    word_starts[:, 2::3] = False
    masked = mask_batch(
        ids,
        np.array([16, 9]),
        keys=example_keys(8, 4, [0, 1]),
        settings=MaskingSettings(options, 50, special_ids),
        word_starts=word_starts,
    )
    input_ids, positions, label_ids = MASKS[whole_words, ngram]
    assert masked.input_ids.tolist() == input_ids
    assert masked.positions.tolist() == positions
    assert masked.label_ids.tolist() == label_ids


@pytest.mark.each_tensorflow
def test_dropout():
    with tf.Graph().as_default(), tf.Session() as session:
        place = tf.constant(3, tf.int64), tf.constant(2, tf.int64)
        dropout = Dropout(11, data_position=place[0], first_example=place[1])
        found = session.run(numbers_like(tf.zeros([2, 3]), dropout.draw(3, 0.1, site=5)))
    assert found.tolist() == [[30001, 32519, 3537], [13269, 41306, 56176]]


@pytest.mark.each_tensorflow
def test_initial_weights():
    name = "bert/pooler/dense/kernel"
    with tf.Graph().as_default(), tf.Session() as session:
        created = create_variables([VariableSpec(name, (2, 3))], initializer_range=0.02, seed=4)
        session.run(tf.global_variables_initializer())
        found = session.run(created[name])
    expected = [
        [-0.005694832187, -0.001534205512, 0.001987386495],
        [0.022755477577, -0.00433232449, 0.012144048698],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
