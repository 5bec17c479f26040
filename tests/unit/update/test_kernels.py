"""Which form of the arithmetic a job takes; and that both forms agree."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError
from bert_tf.native import library
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.update import kernels as module
from bert_tf.update.kernels import (
    NativeKernels,
    TensorFlowKernels,
    choose_kernels,
    times,
)
from bert_tf.update.optimizers import AdamW, Lamb, clip_factor

MISSING = "the native operations are not built"


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: object())
    monkeypatch.setattr(module, "native_operations", lambda: object())


@pytest.fixture
def not_built(monkeypatch):
    def fail():
        raise library.MissingLibrary(MISSING)

    monkeypatch.setattr(module, "native_operations", fail)


class WithAnother(SingleProcess):
    """Rank 0 of two; the other one has the given problem."""

    def __init__(self, problem):
        super().__init__(1)
        self._problem = problem

    def gather(self, value):
        return [value, ("host-b", self._problem)]


def choose(wanted=None, *, has_gpu=False, ranks=None):
    return choose_kernels(wanted, has_gpu=has_gpu, ranks=ranks or SingleProcess(1))


@pytest.mark.usefixtures("built")
def test_native_where_it_is_built():
    for wanted in (None, True):
        chosen = choose(wanted, ranks=WithAnother(None))
        assert isinstance(chosen, NativeKernels)
        assert chosen.description == "native"


@pytest.mark.usefixtures("built")
def test_tensorflows_where_it_is_asked_for():
    assert choose(False).description == "TensorFlow's (--native_ops=false)"


@pytest.mark.usefixtures("not_built")
def test_tensorflows_where_nothing_is_built():
    chosen = choose()
    assert isinstance(chosen, TensorFlowKernels)
    assert chosen.description == f"TensorFlow's ({MISSING})"
    with pytest.raises(UserError, match=f"^--native_ops: {MISSING}; drop the flag"):
        choose(True)


@pytest.mark.usefixtures("built")
def test_tensorflows_on_gpus():
    assert "runs on GPUs" in choose(has_gpu=True).description
    with pytest.raises(UserError, match=r"--native_ops: .* GPUs"):
        choose(True, has_gpu=True)


@pytest.mark.usefixtures("built")
def test_all_ranks_use_one_form():
    chosen = choose(ranks=WithAnother(MISSING))
    assert chosen.description == f"TensorFlow's (rank 1 on host host-b: {MISSING})"
    with pytest.raises(UserError, match="--native_ops: rank 1 on host host-b"):
        choose(True, ranks=WithAnother(MISSING))


def test_times_none_is_times_one():
    assert times(None, None) is None
    assert times(2.0, None) == times(None, 2.0) == 2.0
    assert times(2.0, 3.0) == 6.0


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("optimizer", [AdamW, Lamb])
def test_both_forms_agree_over_twenty_updates(optimizer, bias_correction):
    try:
        native = NativeKernels()
    except library.MissingLibrary as error:
        pytest.skip(str(error))
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
            update = optimizer(
                0.01, bias_correction=bias_correction, kernels=kernels
            ).apply_gradients(zip(fed.values(), variables), factor=factor)
            session.run(tf.global_variables_initializer())
            for values in gradients:
                session.run(update, {fed[name]: values[name] for name in fed})
            results.append(session.run({v.op.name: v for v in tf.global_variables()}))
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=5e-6, atol=1e-6, err_msg=name)
