"""The native blocks between products against the plain ones, values and gradients."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import NativeBlocks, PlainBlocks, blocks_for
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.model.variables import create_variables
from tests.helpers import rounding
from tests.helpers.forward_passes import pretraining_specs, sums_of_heads
from tests.helpers.native_ops import requires_native_ops

pytestmark = requires_native_ops

# Difference of the two forms relative to the norm. In float32 it is the rounding of sums over at
# most 101 words, in some 32 products, forwards and backwards; in bfloat16 it is as large as the
# effect of bfloat16 itself, since only the plain form rounds attention's scores.
TOLERANCE = {"fp32": rounding.of_products(32, 101), "bf16": 2.0**-5}


def network(hidden_size, heads, intermediate_size, **changes):
    """A small one."""
    return BertConfig(
        vocab_size=101,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
        type_vocab_size=2,
        max_position_embeddings=32,
        **changes,
    )


CONFIGS = {
    # Widths and lengths that are not multiples of vectors, and ones that are.
    "odd": network(45, 5, 70),
    "even": network(64, 2, 128, hidden_act="gelu_tanh"),
    "exact GELU": network(45, 5, 33, hidden_act="gelu_erf"),
    "other activation": network(32, 2, 33, hidden_act="relu", hidden_dropout_prob=0.0),
}
LENGTHS = {"odd": 19, "even": 32, "exact GELU": 21, "other activation": 17}


def batch(config, length, *, known):
    """Three sequences, two of them padded; without ``known``, only their rank is static."""
    draw = np.random.default_rng(0)
    real = np.array([[length], [length - 5], [3]])
    arrays = {
        "input_ids": draw.integers(config.vocab_size, size=(3, length), dtype=np.int32),
        "input_mask": (np.arange(length) < real).astype(np.int32),
        "segment_ids": draw.integers(2, size=(3, length), dtype=np.int32),
        "masked_lm_positions": draw.integers(3, size=(3, 4), dtype=np.int32),
        "masked_lm_ids": draw.integers(config.vocab_size, size=(3, 4), dtype=np.int32),
        "masked_lm_weights": np.ones((3, 4), np.float32),
        "next_sentence_labels": draw.integers(2, size=(3, 1), dtype=np.int32),
    }
    return {
        name: tf.placeholder_with_default(array, array.shape if known else [None] * array.ndim)
        for name, array in arrays.items()
    }


def loss_and_gradients(config, options, *, length, dropout, known=True):
    """The loss, and each variable's gradient by name."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create_variables(pretraining_specs(config), initializer_range=0.2)
        source = None
        if dropout:
            position, first = tf.constant(3, tf.int64), tf.constant(7, tf.int64)
            source = Dropout(5, data_position=position, first_example=first)
        features = batch(config, length, known=known)
        sums = sums_of_heads(variables, config, features, options.with_dropout(source))
        loss = sums.total_loss()
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, variables.all())]
        session.run(tf.global_variables_initializer())
        value, found = session.run([loss, gradients])
    return value, dict(zip([v.op.name for v in variables.all()], found))


def norm(gradients):
    return np.sqrt(sum(np.square(g).sum(dtype=np.float64) for g in gradients))


@pytest.mark.parametrize(
    ("precision", "dropout", "name"),
    [
        ("fp32", True, "odd"),
        ("fp32", True, "other activation"),
        ("bf16", True, "even"),
        *(
            pytest.param(precision, False, name, marks=pytest.mark.slow)
            for precision, name in (("fp32", "even"), ("bf16", "odd"), ("bf16", "other activation"))
        ),
    ],
)
def test_a_network_has_the_same_loss_and_gradients(precision, dropout, name):
    options = ForwardOptions(policy_for(precision))
    plain_loss, plain = loss_and_gradients(
        CONFIGS[name], options, length=LENGTHS[name], dropout=dropout
    )
    native_loss, native = loss_and_gradients(
        CONFIGS[name],
        options.with_native_layers(),
        length=LENGTHS[name],
        dropout=dropout,
    )
    tolerance = TOLERANCE[precision]
    assert native_loss == pytest.approx(plain_loss, rel=tolerance)
    assert plain.keys() == native.keys()
    whole = norm(plain.values())
    assert norm([native[v] - plain[v] for v in plain]) <= tolerance * whole
    for variable, gradient in plain.items():
        # The key bias has a gradient of 0 in theory: both forms give rounding noise.
        if not variable.endswith("key/bias"):
            difference = norm([native[variable] - gradient])
            assert difference <= 4 * tolerance * norm([gradient]) + 1e-3 * tolerance * whole, (
                variable
            )


def test_unknown_dimensions_change_nothing():
    # In float32, since rounding to bfloat16 would amplify the noise.
    options = ForwardOptions(native_layers=True)
    known, unknown = (
        loss_and_gradients(CONFIGS["odd"], options, length=19, dropout=True, known=known)
        for known in (True, False)
    )
    assert known[0] == pytest.approx(unknown[0], rel=TOLERANCE["fp32"])
    for variable, gradient in known[1].items():
        difference = norm([unknown[1][variable] - gradient])
        assert difference <= TOLERANCE["fp32"] * norm(known[1].values()), variable


def test_which_layers_are_native():
    mask = tf.ones([1, 2], tf.int32)
    for precision in ("fp32", "bf16"):
        options = ForwardOptions(policy_for(precision)).with_native_layers()
        assert isinstance(blocks_for(options, mask), NativeBlocks)
        assert not options.with_native_layers(False).native_layers
    for policy in (
        policy_for("fp16"),
        PrecisionPolicy(dense=tf.bfloat16),
        PrecisionPolicy(softmax=tf.bfloat16),
    ):
        assert not ForwardOptions(policy).with_native_layers().native_layers
    assert type(blocks_for(ForwardOptions(policy_for("bf16")), mask)) is PlainBlocks
