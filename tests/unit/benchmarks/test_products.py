from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.speed.products import (
    Product,
    build_products,
    forward_products,
    session_config,
    step_operations,
)
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, SPANS, StepJob
from benchmarks.speed.subjects import BERT_BASE
from bert_tf.model.config import BertConfig

TINY = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
)


def closed_formula(batch, length):
    """A pass takes 2 operations for each weight and token, and the two products of attention."""
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)
    attention = 12 * 2 * 2 * 768 * length * batch * length
    return 2 * weights * batch * length + attention


def test_operations_of_a_pretraining_step():
    batch, length, predictions = 16, 128, 20
    products = forward_products(StepJob(BERT_BASE, PRETRAINING, batch, length, predictions))
    words = 2 * batch * predictions * (768**2 + 768 * 30522)
    sentence = 2 * batch * (768**2 + 768 * 2)
    assert step_operations(products) == 3 * (closed_formula(batch, length) + words + sentence)


def test_operations_of_a_span_step():
    products = forward_products(StepJob(BERT_BASE, SPANS, 8, 384))
    head = 2 * 8 * 384 * 768 * 2
    assert step_operations(products) == 3 * (closed_formula(8, 384) + head)


@pytest.mark.parametrize("restrict", [False, True])
def test_operations_of_a_distillation_step(restrict):
    """The student has half of the layers; a teacher has a forward pass alone."""
    job = StepJob(BERT_BASE, DISTILLATION, 16, 128, predictions=20, restrict_ce_to_mask=restrict)
    compared = 16 * (20 if restrict else 128)
    words = 2 * compared * (768**2 + 768 * 30522)
    teacher = closed_formula(16, 128)
    student = teacher / 2
    assert step_operations(forward_products(job)) == 3 * (student + words) + teacher + words


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "product", [Product(1, 3, 5, 7), Product(1, 3, 5, 7, True), Product(2, 3, 5, 7, True)]
)
def test_a_product_has_two_gradients(product, precision):
    """Sides of ones: each result is the length that it sums over, in the shape of a side."""
    with tf.Graph().as_default(), tf.Session(config=session_config(1)) as session:
        build_products(iter([product]), precision)
        session.run(tf.global_variables_initializer())
        found = [
            session.run(tf.cast(operation.outputs[0], tf.float32))
            for operation in tf.get_default_graph().get_operations()
            if "MatMul" in operation.type
        ]
    m, rows, inner, columns, transposed, _ = product
    stack = () if m == 1 else (m,)
    right = (columns, inner) if transposed else (inner, columns)
    expected = [((rows, columns), inner), ((rows, inner), columns), (right, rows)]
    assert len(found) == 3
    for values, (shape, length) in zip(found, expected):
        np.testing.assert_array_equal(values, np.full((*stack, *shape), length))


def test_a_teachers_product_has_none():
    with tf.Graph().as_default():
        build_products(iter([Product(1, 3, 5, 7, trained=False)]), "fp32")
        operations = tf.get_default_graph().get_operations()
    assert sum("MatMul" in operation.type for operation in operations) == 1


def test_equal_products_are_all_computed():
    products = forward_products(StepJob(TINY, PRETRAINING, 2, 4, predictions=1))
    with tf.Graph().as_default(), tf.Session(config=session_config(1)) as session:
        operation = build_products(products, "fp32")
        session.run(tf.global_variables_initializer())
        metadata = tf.RunMetadata()
        session.run(
            operation,
            options=tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE),
            run_metadata=metadata,
        )
    executed = [
        node.node_name
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if re.search(r" = \w*MatMul\w*\(", node.timeline_label)
    ]
    assert len(executed) == 3 * (2 * 6 + 4)
