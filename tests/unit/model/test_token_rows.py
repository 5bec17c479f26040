"""Rows of tokens against numpy, and an encoder with skipped padding against one without."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.token_rows import all_rows, rows_of_tokens
from bert_tf.model.variables import create_variables
from bert_tf.tasks.question_answering.task import POSITION, SpanTask
from tests.helpers.forward_passes import span_logits
from tests.helpers.native_ops import requires_native_ops

STEP = 64

masks = st.tuples(st.integers(1, 6), st.integers(1, 50)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 1), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@settings(max_examples=25, deadline=None)
@given(masks)
def test_each_token_has_a_row_and_padding_fills_up(mask):
    mask = np.array(mask, np.int32)
    x = np.random.default_rng(0).normal(size=(*mask.shape, 3)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        rows = rows_of_tokens(tf.placeholder_with_default(mask, [None, None]))
        given_x = tf.constant(x)
        taken = rows.take(given_x)
        spread = rows.spread(taken)
        [gradient] = tf.gradients(tf.square(spread), [given_x])
        places, row_of, taken, spread, gradient = session.run(
            [rows.places, rows.row_of, taken, spread, gradient]
        )
    tokens = np.flatnonzero(mask)
    assert len(places) == min(-(-len(tokens) // STEP) * STEP, mask.size)
    np.testing.assert_array_equal(places[: len(tokens)], tokens)
    assert len(set(places)) == len(places)
    np.testing.assert_array_equal(taken, x.reshape(-1, 3)[places])
    has_row = np.isin(np.arange(mask.size), places).reshape(mask.shape)
    np.testing.assert_array_equal(spread, np.where(has_row[..., None], x, 0.0))
    np.testing.assert_array_equal(row_of.reshape(-1)[places], np.arange(len(places)))
    np.testing.assert_array_equal(row_of >= 0, has_row)
    np.testing.assert_array_equal(gradient, 2 * spread)


def test_a_mask_known_to_be_without_padding_is_complete():
    with tf.Graph().as_default():
        assert rows_of_tokens(tf.ones([2, 4], tf.int32)).complete
        assert not rows_of_tokens(tf.constant([[1, 0]])).complete
        assert not rows_of_tokens(tf.placeholder(tf.int32, [2, 4])).complete


def test_all_rows():
    x = np.arange(24.0).reshape(2, 4, 3)
    with tf.Graph().as_default(), tf.Session() as session:
        rows = all_rows(tf.zeros([2, 4], tf.int32))
        assert rows.take(tf.constant(x)).shape.as_list() == [8, 3]
        spread, places, row_of = session.run(
            [rows.spread(rows.take(tf.constant(x))), rows.places, rows.row_of]
        )
    np.testing.assert_array_equal(spread, x)
    assert places.tolist() == row_of.reshape(-1).tolist() == list(range(8))


CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
)
LENGTHS = np.array([40, 3, 17, 9, 22])


def encoded(options, *, skip_padding, recompute=False):
    """Rows computed, logits of the tokens, loss and gradients of a batch with padding."""
    draw = np.random.default_rng(0)
    shape = (len(LENGTHS), LENGTHS.max())
    mask = (np.arange(shape[1]) < LENGTHS[:, None]).astype(np.int32)
    features = {
        "input_ids": draw.integers(CONFIG.vocab_size, size=shape, dtype=np.int32),
        "input_mask": mask,
        "segment_ids": draw.integers(2, size=shape, dtype=np.int32) * mask,
        "start_positions": np.minimum([[30], [2], [5], [8], [1]], LENGTHS[:, None] - 1),
        "end_positions": np.minimum([[31], [2], [9], [8], [20]], LENGTHS[:, None] - 1),
    }
    with tf.Graph().as_default() as graph, tf.Session() as session:
        fed = {name: tf.placeholder_with_default(v, v.shape) for name, v in features.items()}
        variables = create_variables(SpanTask(CONFIG).specs(), initializer_range=0.2, seed=3)
        place = tf.constant(3, tf.int64), tf.constant(7, tf.int64)
        options = dataclasses.replace(
            options,
            dropout=Dropout(5, data_position=place[0], first_example=place[1]),
            recompute=recompute,
            skip_padding=skip_padding,
        )
        logits = span_logits(variables, CONFIG, fed, options)
        loss = SpanTask(CONFIG).losses(logits, fed, options)[POSITION].loss
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, variables.all())]
        merged = [op for op in graph.get_operations() if op.type == "BertTfAttention"]
        rows = tf.shape(merged[0].outputs[0])[0] if merged else tf.size(mask)
        session.run(tf.global_variables_initializer())
        rows, logits, loss, gradients = session.run([rows, logits, loss, gradients])
    of_tokens = np.stack(logits)[:, mask == 1]
    return rows, of_tokens, loss, dict(zip((v.op.name for v in variables.all()), gradients))


@requires_native_ops
@pytest.mark.parametrize(
    ("precision", "tolerance", "recompute"),
    [
        ("fp32", 1e-5, True),
        ("bf16", 2.0**-6, False),
        pytest.param("fp32", 1e-5, False, marks=pytest.mark.exhaustive),
        pytest.param("bf16", 2.0**-6, True, marks=pytest.mark.exhaustive),
    ],
)
def test_skipped_padding_changes_nothing(precision, tolerance, recompute):
    """Dropout included: every token draws the same numbers as with all padding."""
    options = ForwardOptions(policy_for(precision), native_layers=True)
    rows, logits, loss, gradients = encoded(options, skip_padding=True, recompute=recompute)
    all_rows, *expected = encoded(options, skip_padding=False)
    assert (rows, all_rows) == (2 * STEP, len(LENGTHS) * LENGTHS.max())
    np.testing.assert_allclose(logits, expected[0], atol=tolerance * np.abs(logits).max())
    assert loss == pytest.approx(expected[1], rel=tolerance)
    whole = np.sqrt(sum(np.square(g).sum() for g in expected[2].values()))
    for name, gradient in expected[2].items():
        assert np.linalg.norm(gradients[name] - gradient) <= tolerance * whole, name


def test_the_plain_form_always_computes_padding():
    skipped, computed = (encoded(ForwardOptions(), skip_padding=s) for s in (True, False))
    np.testing.assert_array_equal(skipped[1], computed[1])
