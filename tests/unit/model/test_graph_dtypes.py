"""The types of all operations in forward and backward graphs."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.model.variables import create_variables
from tests.helpers.forward_passes import pretraining_specs, sums_of_heads


@pytest.fixture(name="config")
def network_of_one_layer(config):
    return dataclasses.replace(config, num_hidden_layers=1)


HALF_TYPES = {tf.float16, tf.bfloat16}
PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "_FusedMatMul"}
# Operations that only move or convert numbers, which half-precision operands pass through.
MOVEMENTS = {"Cast", "Reshape", "Transpose", "Shape", "ConcatV2", "ConcatOffset", "Slice"}


def build(config, batch, policy):
    """Forward with dropout, loss and gradients in the default graph; the variables' gradients."""
    variables = create_variables(pretraining_specs(config), initializer_range=0.1)
    features = {name: tf.constant(value) for name, value in batch.items()}
    zero = tf.constant(0, tf.int64)
    dropout = Dropout(1, data_position=zero, first_example=zero)
    options = ForwardOptions(policy, dropout)
    loss = sums_of_heads(variables, config, features, options).total_loss()
    return variables, loss, tf.gradients(loss, variables.all())


def float_types(operation):
    tensors = [*operation.inputs, *operation.outputs]
    return {tensor.dtype.base_dtype for tensor in tensors if tensor.dtype.is_floating}


def module_of_product(operation):
    """The policy's class of a product, from the layer it belongs to."""
    if "/attention/self/" in operation.name and operation.type != "MatMul":
        return "attention"
    if "/embeddings/" in operation.name:
        return "embeddings"
    return "logits" if "/seq_relationship/logits/" in operation.name else "dense"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_products_have_the_type_of_the_policy_and_all_else_is_float32(config, batch, precision):
    policy = policy_for(precision)
    products = collections.Counter()
    with tf.Graph().as_default() as graph:
        variables, _, gradients = build(config, batch, policy)
        for operation in graph.get_operations():
            if operation.type in PRODUCTS:
                module = module_of_product(operation)
                direction = "backward" if operation.name.startswith("gradients") else "forward"
                products[module, direction] += 1
                assert float_types(operation) == {getattr(policy, module)}, operation.name
            elif operation.type not in MOVEMENTS:
                assert float_types(operation) <= {tf.float32}, (operation.type, operation.name)
    assert {variable.dtype.base_dtype for variable in variables.all()} == {tf.float32}
    assert {gradient.dtype for gradient in gradients} == {tf.float32}
    # A layer of four dense products (query, key and value are one) and two of attention, the
    # pooler, the masked-LM transform and the words' scores. A product has two in its backward pass
    # (the one by one-hot segments is pruned when it runs).
    assert products == {
        ("dense", "forward"): 4 + 3,
        ("dense", "backward"): 2 * (4 + 3),
        ("attention", "forward"): 2,
        ("attention", "backward"): 2 * 2,
        ("embeddings", "forward"): 1,
        ("embeddings", "backward"): 2,
        ("logits", "forward"): 1,
        ("logits", "backward"): 2,
    }


def test_the_float32_operations_are_really_there(config, batch):
    """The test above would also pass on a graph without these operations."""
    with tf.Graph().as_default() as graph:
        build(config, batch, policy_for("bf16"))
        types = collections.Counter(operation.type for operation in graph.get_operations())
    assert types["Softmax"] == 1
    assert types["SparseSoftmaxCrossEntropyWithLogits"] == 2
    assert types["Rsqrt"] == types["RsqrtGrad"] == 4  # layer norms
    assert types["Tanh"] == types["TanhGrad"] == 3  # GELU: the layer and the transform; pooler
    assert types["GreaterEqual"] == 4  # dropout: embeddings, three a layer


# Evidence of the type of a class: (class, type of operation, part of its name).
SIGNS = [
    ("attention", "BatchMatMulV2", "/attention/self/"),
    ("dense", "MatMul", "/intermediate/dense/"),
    ("dense", "MatMul", "/attention/self/"),
    ("dense", "MatMul", "/pooler/dense/"),
    ("dense", "MatMul", "/transform/dense/"),
    ("embeddings", "MatMul", "/embeddings/"),
    ("softmax", "Softmax", "/attention/self/"),
    ("layer_norm", "Rsqrt", "/LayerNorm/"),
    ("layer_norm", "RsqrtGrad", "/LayerNorm/"),
    ("activations", "Tanh", "/intermediate/"),
    ("activations", "TanhGrad", "/intermediate/"),
    ("activations", "BiasAdd", "/output/dense/"),
    ("activations", "Tanh", "/pooler/"),
    ("dense", "MatMul", "/predictions/logits/"),
    ("logits", "BiasAdd", "/predictions/l"),
    ("logits", "MatMul", "/seq_relationship/logits/"),
    ("loss", "SparseSoftmaxCrossEntropyWithLogits", "/predictions/loss/"),
    ("loss", "SparseSoftmaxCrossEntropyWithLogits", "/seq_relationship/loss/"),
]


@pytest.mark.parametrize("changed", sorted({module for module, _, _ in SIGNS}))
def test_each_class_obeys_its_field_of_the_policy(config, batch, changed):
    with tf.Graph().as_default() as graph:
        build(config, batch, PrecisionPolicy(**{changed: tf.bfloat16}))
        for module, kind, part in SIGNS:
            matching = [
                operation
                for operation in graph.get_operations()
                if operation.type == kind and part in operation.name
            ]
            assert matching, (kind, part)
            expected = tf.bfloat16 if module == changed else tf.float32
            for operation in matching:
                assert float_types(operation) == {expected}, operation.name


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.05), ("fp16", 0.005)])
def test_half_precision_comes_near_float32(config, batch, precision, tolerance):
    """Loss and gradients differ by a few roundings to 8 or 11 bits, but are not equal."""
    results = {}
    for name in ("fp32", precision):
        with tf.Graph().as_default(), tf.Session() as session:
            _, loss, gradients = build(config, batch, policy_for(name))
            norm = tf.linalg.global_norm(gradients)
            session.run(tf.global_variables_initializer())
            results[name] = np.array(session.run([loss, norm]))
    error = np.abs(results[precision] / results["fp32"] - 1)
    assert np.all(error < tolerance)
    assert np.all(error > 0)
