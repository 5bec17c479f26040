"""The output at chosen positions is that of the whole network there."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output, bert_specs, output_at_positions
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import create_variables
from tests.helpers.native_ops import requires_native_ops


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("native", "skip_padding"),
    [
        (False, False),
        pytest.param(True, False, marks=requires_native_ops),
        pytest.param(True, True, marks=requires_native_ops),
    ],
)
def test_it_equals_the_whole_output(layers, precision, native, skip_padding):
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=9,
        type_vocab_size=2,
    )
    rng = np.random.default_rng(0)
    ids, positions = rng.integers(0, 30, [4, 9]), rng.integers(0, 6, [4, 3])
    mask = np.arange(9) < np.array([[9], [6], [7], [9]])
    arrays = {
        "input_ids": ids,
        "input_mask": mask.astype(int),
        "segment_ids": rng.integers(0, 2, [4, 9]),
    }
    options = ForwardOptions(policy_for(precision), skip_padding=skip_padding)
    options = options.with_native_layers(native)
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(array) for name, array in arrays.items()}
        variables = create_variables(bert_specs(config, pooler=False), initializer_range=0.5)
        whole = bert_output(variables, config, features, options).sequence_output
        chosen = output_at_positions(variables, config, features, tf.constant(positions), options)
        session.run(tf.global_variables_initializer())
        whole, chosen = session.run([whole, chosen])
    expected = np.take_along_axis(whole, positions[:, :, np.newaxis], axis=1)
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    np.testing.assert_allclose(chosen, expected, rtol=tolerance, atol=tolerance)
