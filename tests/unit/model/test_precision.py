"""The type of each class of operation for a precision."""

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.precision import policy_for


@pytest.mark.parametrize(
    ("name", "product_type"),
    [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")],
)
def test_only_products_leave_float32(name, product_type):
    described = policy_for(name).describe()
    assert described == {
        "attention": product_type,
        "dense": product_type,
        "embeddings": "float32",
        "softmax": "float32",
        "layer_norm": "float32",
        "activations": "float32",
        "logits": "float32",
        "loss": "float32",
    }


def test_policy_cannot_be_changed():
    with pytest.raises(AttributeError):
        policy_for("fp32").dense = tf.bfloat16


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="fp8"):
        policy_for("fp8")
