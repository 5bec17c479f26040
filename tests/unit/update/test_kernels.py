"""Both forms of an update's arithmetic agree."""

import hashlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.native import library
from bert_tf.update.gradients import clip_factor
from bert_tf.update.kernels import (
    NativeKernels,
    TensorFlowKernels,
    kernels_for,
    times,
)
from bert_tf.update.optimizer import Optimizer
from tests.helpers import rounding
from tests.helpers.programs import run, skip_without
from tests.helpers.updates import apply_gradients


def test_the_form_follows_from_the_reason(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: object())
    assert isinstance(kernels_for(None), NativeKernels)
    assert kernels_for(None).description == "native"
    assert kernels_for("not built").description == "TensorFlow's (not built)"


def test_times_none_is_times_one():
    assert times(None, None) is None
    assert times(2.0, None) == times(None, 2.0) == 2.0
    assert times(2.0, 3.0) == 6.0


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lans"])
def test_both_forms_agree_over_twenty_updates(optimizer, bias_correction):
    try:
        native = NativeKernels()
    except library.MissingLibrary as error:
        skip_without("native_ops", str(error))
    rng = np.random.default_rng(0)
    start = {
        "table": rng.standard_normal([301, 40], np.float32),
        "bias": rng.standard_normal(40, np.float32),
        "kernel": rng.standard_normal([40, 13], np.float32),
    }
    gradients = [
        {name: rng.standard_normal(value.shape, np.float32) for name, value in start.items()}
        for _ in range(20)
    ]
    results = []
    for kernels in (TensorFlowKernels(), native):
        with tf.Graph().as_default(), tf.Session() as session:
            variables = [
                tf.get_variable(name, initializer=value, use_resource=True)
                for name, value in start.items()
            ]
            fed = {name: tf.placeholder(tf.float32, v.shape) for name, v in start.items()}
            factor = clip_factor(kernels.global_norm(list(fed.values())), 10.0)
            made = Optimizer(optimizer, 0.01, bias_correction=bias_correction, kernels=kernels)
            update = apply_gradients(made, zip(fed.values(), variables), factor)
            session.run(tf.global_variables_initializer())
            for values in gradients:
                session.run(update, {fed[name]: values[name] for name in fed})
            results.append(session.run({v.op.name: v for v in tf.global_variables()}))
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        difference = np.abs(results[1][name] - value).max()
        # Each of the two forms is off by so much.
        assert difference <= 2 * rounding.of_updates(20) * np.abs(value).max(), name


def random_gradients():
    """A table, a kernel with short rows, vectors and what looks like a matrix."""
    rng = np.random.default_rng(3)
    shapes = [(400, 768), (65536, 3), (300001,), (1, 300000), (768,), (2, 2000), ()]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def bits_of_norms(threads):
    """A hash of the norms of several gradients and of what LAMB makes of them."""
    kernels = TensorFlowKernels()
    # Of one tensor in ten the last bit shows how its sum was cut.
    values = np.random.default_rng(4).standard_normal((32, 300, 768), np.float32)
    config = tf.ConfigProto(intra_op_parallelism_threads=threads)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        # Fed: constants would be computed before the session's threads come in.
        fed = tf.placeholder(tf.float32, values.shape)
        gradients = tf.unstack(fed)
        variables = [
            tf.get_variable(f"v{index}", initializer=value, use_resource=True)
            for index, value in enumerate(values)
        ]
        norms = [kernels.global_norm([gradient]) for gradient in gradients]
        with tf.control_dependencies(norms):
            update = apply_gradients(
                Optimizer("lamb", 0.1, kernels=kernels), zip(gradients, variables)
            )
        session.run(tf.global_variables_initializer())
        found, _ = session.run([norms, update], {fed: values[::-1]})
        digests = [
            hashlib.sha256(np.stack(arrays).tobytes()).hexdigest()
            for arrays in (found, session.run(variables))
        ]
    return " ".join(digests)


@pytest.mark.slow
def test_ranks_of_unequal_cores_find_the_same_norms():
    # TensorFlow makes a process's threads once, for its first session.
    code = "from tests.unit.update import test_kernels as t; print(t.bits_of_norms({}))"
    one, five = (run("-c", code.format(threads)).stdout for threads in (1, 5))
    norms, updates = one.split()
    assert five.split() == [norms, updates]


def test_tensorflows_norm_is_that_of_float64():
    values = random_gradients()
    with tf.Graph().as_default(), tf.Session() as session:
        for chosen in (values, values[1:2], values[2:3], values[4:5], values[6:]):
            expected = np.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in chosen))
            norm = TensorFlowKernels().global_norm([tf.constant(v) for v in chosen])
            assert session.run(norm) == pytest.approx(expected, rel=1e-6)
        for bad in (np.nan, np.inf, -np.inf):
            spoilt = [values[0].copy(), values[4]]
            spoilt[0][7, 3] = bad
            norm = session.run(TensorFlowKernels().global_norm(list(map(tf.constant, spoilt))))
            assert not np.isfinite(norm)
