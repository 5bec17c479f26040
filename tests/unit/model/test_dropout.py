import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.model.dropout import Dropout, apply_dropout


def draw(shape, rate, *, seed=1, position=0, first=0, site=0, dtype=np.float32):
    """Dropout of an array of ones: 0 where dropped, 1 / (1 - rate) elsewhere."""
    with tf.Graph().as_default(), tf.Session() as session:
        dropout = Dropout(
            seed,
            data_position=tf.constant(position, tf.int64),
            first_example=tf.constant(first, tf.int64),
        )
        return session.run(dropout.apply(tf.ones(shape, dtype), rate, site=site))


@settings(max_examples=25, deadline=None)
@given(
    inner=st.lists(st.integers(1, 7), min_size=0, max_size=3),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**47 - 1),
    site=st.integers(0, 2**16 - 1),
)
def test_any_cut_of_a_global_batch_draws_the_same_masks(inner, cuts, seed, position, site):
    place = {"seed": seed, "position": position, "site": site}
    whole = draw([sum(cuts), *inner], 0.5, **place)
    starts = np.cumsum([0, *cuts[:-1]])
    parts = [
        draw([size, *inner], 0.5, first=int(first), **place) for first, size in zip(starts, cuts)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def philox_4x32(counter, key):
    """One block in plain integers, after Salmon et al. 2011, section 3: ten rounds."""
    words = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        product0, product1 = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            product1 >> 32 ^ words[1] ^ keys[0],
            product1 & 0xFFFFFFFF,
            product0 >> 32 ^ words[3] ^ keys[1],
            product0 & 0xFFFFFFFF,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def test_masks_equal_a_reference_generator():
    seed, position, site, first, examples, elements = 0xABCDEF0123456789, 77, 5, 3, 2, 11
    blocks = 2  # 11 numbers of 16 bits fill two blocks of eight
    expected = np.zeros([examples, elements], np.float32)
    for example in range(examples):
        words = []
        for block in range(blocks):
            low = (first + example) * blocks + block
            words += philox_4x32((position << 16 | site) << 64 | low, seed)
        numbers = np.array(words, np.uint32).view(np.uint16)[:elements]
        expected[example] = np.where(numbers >= 0.25 * 65536, 1 / 0.75, 0)
    actual = draw([examples, elements], 0.25, seed=seed, position=position, site=site, first=first)
    np.testing.assert_array_equal(actual, expected.astype(np.float32))


def test_streams_differ_by_seed_position_site_and_example():
    shape, rate = [4, 100], 0.5
    draws = [
        draw(shape, rate),
        draw(shape, rate, seed=2),
        draw(shape, rate, seed=1 + 2**40),
        draw(shape, rate, position=1),
        draw(shape, rate, position=2**30),
        draw(shape, rate, site=1),
        draw(shape, rate, first=4),
    ]
    rows = np.concatenate(draws)
    agreement = (rows[:, None] == rows[None]).mean(-1)
    # 100 fair coins agree in 50 places, give or take 5: eight deviations are never reached.
    assert np.abs(agreement - 0.5 - 0.5 * np.eye(len(rows))).max() < 0.4
    np.testing.assert_array_equal(draw(shape, rate), draws[0])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    count = 400_000
    result = draw([4, count // 4], rate)
    rounded = round(rate * 65536) / 65536
    kept = result[result != 0]
    deviation = np.sqrt(count * rate * (1 - rate))
    assert abs(len(kept) - count * (1 - rounded)) < 5 * deviation
    np.testing.assert_array_equal(kept, np.float32(1 / (1 - rounded)))


def test_gradient_uses_the_mask_of_the_forward_pass():
    with tf.Graph().as_default(), tf.Session() as session:
        zero = tf.constant(0, tf.int64)
        x = tf.constant(np.random.RandomState(0).randn(3, 9), tf.float32)
        y = Dropout(3, data_position=zero, first_example=zero).apply(x, 0.4, site=2)
        (gradient,) = tf.gradients(y, [x])
        x_value, y_value, gradient_value = session.run([x, y, gradient])
    np.testing.assert_allclose(gradient_value * x_value, y_value, rtol=1e-6)


def test_unknown_dimensions_draw_the_same_masks():
    known = draw([2, 3, 5], 0.5)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, None, 5])
        zero = tf.constant(0, tf.int64)
        y = Dropout(1, data_position=zero, first_example=zero).apply(x, 0.5, site=0)
        unknown = session.run(y, {x: np.ones([2, 3, 5])})
    np.testing.assert_array_equal(unknown, known)


def test_inside_a_while_loop_micro_batches_draw_their_slices():
    micro, steps, width = 3, 4, 10
    whole = draw([micro * steps, width], 0.5, position=9, site=1)
    with tf.Graph().as_default(), tf.Session() as session:

        def body(step, masks):
            dropout = Dropout(
                1,
                data_position=tf.constant(9, tf.int64),
                first_example=tf.cast(step, tf.int64) * micro,
            )
            return step + 1, masks.write(step, dropout.apply(tf.ones([micro, width]), 0.5, site=1))

        masks = tf.TensorArray(tf.float32, size=steps)
        _, masks = tf.while_loop(lambda step, _: step < steps, body, [0, masks])
        looped = session.run(masks.concat())
    np.testing.assert_array_equal(looped, whole)


def test_compiled_and_plain_graphs_draw_the_same_masks():
    plain = draw([3, 21], 0.3, seed=5, position=6, site=7)
    with tf.Graph().as_default(), tf.Session() as session:

        def compute(x):
            dropout = Dropout(
                5, data_position=tf.constant(6, tf.int64), first_example=tf.constant(0, tf.int64)
            )
            return dropout.apply(x, 0.3, site=7)

        compiled = tf.function(compute, jit_compile=True)
        result = session.run(compiled(tf.ones([3, 21])))
    np.testing.assert_array_equal(result, plain)


def test_rate_zero_and_evaluation_add_no_operations():
    with tf.Graph().as_default() as graph:
        x, zero = tf.ones([2, 3]), tf.constant(0, tf.int64)
        before = len(graph.get_operations())
        dropout = Dropout(1, data_position=zero, first_example=zero)
        assert dropout.apply(x, 0.0, site=0) is x
        assert apply_dropout(None, x, 0.5, site=0) is x
        assert len(graph.get_operations()) == before
        assert apply_dropout(dropout, x, 0.5, site=0) is not x


@pytest.mark.parametrize("site", [-1, 1 << 16])
def test_site_outside_its_bits_is_refused(site):
    with pytest.raises(ValueError, match="site"):
        draw([1, 1], 0.5, site=site)
