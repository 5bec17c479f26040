"""Steps and predictions: what all subjects are given, how they are timed, and what a limit is."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.inference import batch_figures
from benchmarks.largest_batch import Line, largest_fitting, least_exceeding, search
from benchmarks.speed import steps
from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.products import (
    Product,
    build_products,
    forward_products,
    session_config,
    step_operations,
)
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, SPANS, StepJob, time_steps
from benchmarks.speed.subjects import BERT_BASE
from benchmarks.step_profile import REST, class_of, kernel_of
from tests.helpers.small_span_model import CONFIG

JOB = StepJob(CONFIG, PRETRAINING, 2, 8, 3, accumulation_steps=2, warmup_steps=2, steps=3)


def test_a_job_and_its_micro_batches():
    assert StepJob.from_json({**json.loads(json.dumps(JOB.to_json())), "started": 1.0}) == JOB
    whole, parts = JOB.batch(4), JOB.micro_batches()
    for name, values in whole.items():
        assert [len(part[name]) for part in parts] == [2, 2]
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    positions = whole["masked_lm_positions"]
    assert positions.shape == (4, 3)
    assert (np.diff(positions, axis=1) > 0).all(), "different ones, in order"
    assert positions.max() < 8
    assert whole["input_mask"].all()
    assert whole["input_ids"].max() < CONFIG.vocab_size
    assert not np.array_equal(whole["input_ids"], JOB.batch(4, seed=2)["input_ids"])


def test_warm_up_steps_are_not_counted(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(steps.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(steps.time, "monotonic", lambda: 17.0)
    losses = iter([5.0, 4.0, 3.0, 2.0, 1.0])
    found = time_steps(JOB, lambda: next(losses), started=10.0)
    assert next(losses, None) is None
    assert (found["seconds"], found["loss"], found["first_step_seconds"]) == (1, 5.0, 7.0)
    with pytest.raises(ArithmeticError, match="first step's loss is nan"):
        time_steps(JOB, lambda: math.nan, started=0.0)


def closed_formula(batch, length):
    """A pass takes 2 operations for each weight and token, and the two products of attention."""
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)
    attention = 12 * 2 * 2 * 768 * length * batch * length
    return 2 * weights * batch * length + attention


def test_operations_of_the_steps():
    products = forward_products(StepJob(BERT_BASE, PRETRAINING, 16, 128, predictions=20))
    words = 2 * 16 * 20 * (768**2 + 768 * 30522)
    sentence = 2 * 16 * (768**2 + 768 * 2)
    assert step_operations(products) == 3 * (closed_formula(16, 128) + words + sentence)
    head = 2 * 8 * 384 * 768 * 2
    products = forward_products(StepJob(BERT_BASE, SPANS, 8, 384))
    assert step_operations(products) == 3 * (closed_formula(8, 384) + head)
    # The student has half of the layers; a teacher has a forward pass alone.
    teacher = closed_formula(16, 128)
    for restrict, compared in ((False, 16 * 128), (True, 16 * 20)):
        job = StepJob(BERT_BASE, DISTILLATION, 16, 128, 20, restrict_ce_to_mask=restrict)
        words = 2 * compared * (768**2 + 768 * 30522)
        expected = 3 * (teacher / 2 + words) + teacher + words
        assert step_operations(forward_products(job)) == expected


@pytest.mark.parametrize(
    "product", [Product(1, 3, 5, 7), Product(2, 3, 5, 7, True), Product(1, 3, 5, 7, trained=False)]
)
def test_a_trained_product_has_two_gradients(product):
    """Sides of ones: each result is the length that it sums over, in the shape of a side."""
    with tf.Graph().as_default(), tf.Session(config=session_config(1)) as session:
        build_products(iter([product]), "fp32")
        session.run(tf.global_variables_initializer())
        operations = tf.get_default_graph().get_operations()
        found = [session.run(op.outputs[0]) for op in operations if "MatMul" in op.type]
    m, rows, inner, columns, transposed, trained = product
    stack = () if m == 1 else (m,)
    right = (columns, inner) if transposed else (inner, columns)
    expected = [((rows, columns), inner), ((rows, inner), columns), (right, rows)]
    assert len(found) == (3 if trained else 1)
    for values, (shape, length) in zip(found, expected):
        np.testing.assert_array_equal(values, np.full((*stack, *shape), length))


def test_equal_products_are_all_computed():
    products = forward_products(StepJob(CONFIG, PRETRAINING, 2, 4, predictions=1))
    with tf.Graph().as_default(), tf.Session(config=session_config(1)) as session:
        operation = build_products(products, "fp32")
        session.run(tf.global_variables_initializer())
        metadata, traced = tf.RunMetadata(), tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
        session.run(operation, options=traced, run_metadata=metadata)
    labels = [n.timeline_label for d in metadata.step_stats.dev_stats for n in d.node_stats]
    assert len([x for x in labels if re.search(r" = \w*MatMul\w*\(", x)]) == 3 * (
        CONFIG.num_hidden_layers * 6 + 4
    )


@pytest.mark.parametrize(("lengths", "rate"), [((), 4 / 0.05), ((4, 9), 4 / 0.06)])
def test_figures_of_a_turn_of_predictions(lengths, rate):
    """Milliseconds 0 to 100 and a long one; of real sequences the mean batch counts."""
    job = PredictionJob(CONFIG, (1, 4), 8, threads=1, warmup=1, repetitions=1, lengths=lengths)
    seconds = (np.arange(101) / 1e3).tolist()
    if lengths:
        seconds[-1] += 1.01
    values = batch_figures(job, 1, {"batch_seconds": [[1.0], seconds]})
    name = "prediction, batch of 4"
    assert values.pop(name) == (pytest.approx(rate), "sequences/s")
    expected = {f"{name}, p{p}": (pytest.approx(p), "ms") for p in (50, 90, 99)}
    assert values == expected


def test_batches_of_predictions():
    """Full ones of each size after a warm-up; of real lengths the longest first."""
    job = PredictionJob(CONFIG, (1, 3), seq_length=8, threads=1, warmup=1, repetitions=2)
    seen = []
    found = time_batches(job, seen.append)
    assert [len(batch["input_ids"]) for batch in seen] == [1, 1, 1, 3, 3, 3]
    assert [len(seconds) for seconds in found["batch_seconds"]] == [2, 2]
    job = PredictionJob(CONFIG, (2,), 32, threads=1, warmup=1, repetitions=3,
                        lengths=(4, 30, 17, 9))  # fmt: skip
    by_length, padded = (job.batches(2, by_length=choice) for choice in (True, False))
    for batches, positions in ((by_length, [32, 16]), (padded, [32, 32])):
        assert [batch["input_mask"].shape for batch in batches] == [(2, p) for p in positions]
        tokens = [batch["input_mask"].sum(axis=1).tolist() for batch in batches]
        assert tokens == [[30, 17], [9, 4]]
    short, full = by_length[1]["input_ids"], padded[1]["input_ids"]
    np.testing.assert_array_equal(short, full[:, :16])


@pytest.mark.parametrize(
    ("kernel", "operation", "expected"),
    [
        ("_MklMatMul", "gradients/cls/predictions/transform/LayerNorm/x/MatMul", "products"),
        ("BertTfAttentionGrad", "gradients/BertTfAttention_grad/BertTfAttentionGrad", "attention"),
        ("ResourceApplyAdam", "cond/AdamW/update/ResourceApplyAdam", "optimizer and clip"),
        ("Mul", "gradients/bert/encoder/layer_0/output/LayerNorm/mul_grad/Mul_1", "layer norm"),
        ("Mul", "bert/encoder/layer_1/attention/output/mul_1", "dropout"),
        ("UnsortedSegmentSum", "gradients/x", "embedding"),
        ("Pack", "unstack", REST),
    ],
)
def test_classes_of_operations(kernel, operation, expected):
    assert class_of(kernel, operation) == expected
    assert kernel_of(f"[mklcpu 0.2MB 0.2MB] {operation} = {kernel}(a/x, a/y)") == kernel


@pytest.mark.parametrize("bend", [0.0, 0.2, -0.1])
def test_the_search_ends_at_the_largest_batch(bend):
    """Memory is 100 and 10 a sequence, and each one takes more, or less, than those before it."""

    def measure(batch):
        tried.append(batch)
        return 100 + 10 * batch + bend / 10 * batch**2

    tried = []
    largest = max(batch for batch in range(1, 200) if measure(batch) <= 600)
    tried.clear()
    found = search(measure, {2: measure(2), 8: measure(8)}, limit=600, tries=9)
    fits, exceeds = largest_fitting(found, 600), least_exceeding(found, 600)
    assert fits <= largest < exceeds <= fits + max(1, int(0.03 * fits))
    assert len(tried) == len(set(tried)) <= 2 + 6


def test_the_largest_batch_by_a_line():
    line = Line.through({2: 7.0, 4: 11.0, 8: 19.0})
    assert (line.fixed, line.of_a_sequence) == (pytest.approx(3), pytest.approx(2))
    assert [line.largest_batch(limit) for limit in (2.9, 5.1, 13.0001)] == [0, 1, 5]
