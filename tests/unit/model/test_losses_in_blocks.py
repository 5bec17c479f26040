"""The loss of many words in blocks of rows: against float64, and one block's scores at a time."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import (
    ACCURACY,
    ROWS_OF_A_BLOCK,
    ClassScores,
    score_sums,
    score_sums_in_blocks,
)
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.tasks.pretraining.task import MASKED_LM, PretrainingTask
from bert_tf.update.gradients import accumulate_gradients
from bert_tf.update.kernels import TensorFlowKernels
from tests.helpers import rounding
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.objectives import differentiated

pytestmark = requires_native_ops

D, V, SCALE = 24, 301, 0.25  # SCALE: the factor of the loss that the update gives
PRECISIONS = {"fp32": (tf.float32, rounding.FLOAT32), "bf16": (tf.bfloat16, rounding.BFLOAT16)}
OPTIONS = ForwardOptions(native_layers=True)


def given(rows):
    """Values that bfloat16 holds exactly, so that only sums and results are rounded."""
    rng = np.random.default_rng(rows)
    quarters = {"x": rng.integers(-8, 9, [rows, D]), "classes": rng.integers(-4, 5, [V, D])}
    return {
        **{name: (value / 4).astype(np.float32) for name, value in quarters.items()},
        "bias": rng.normal(size=V).astype(np.float32),
        "labels": rng.integers(0, V, rows).astype(np.int32),
        "weights": rng.choice([0.0, 1.0, 0.5], rows).astype(np.float32),
    }


def in_float64(values):
    """The sums, and the gradients of the factors and of the bias."""
    x, classes, bias = (values[name].astype(np.float64) for name in ("x", "classes", "bias"))
    labels, weights = values["labels"], values["weights"].astype(np.float64)
    logits = x @ classes.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -(weights * np.log(probabilities[rows, labels])).sum()
    correct = (weights * (logits.argmax(axis=1) == labels)).sum()
    d = probabilities
    d[rows, labels] -= 1
    d *= SCALE * weights[:, np.newaxis]
    return loss, weights.sum(), correct, d @ classes, d.T @ x, d.sum(axis=0)


def computed(values, dtype, sums_of, threads=1, **settings):
    """What ``in_float64`` returns, by the graph."""
    config = tf.ConfigProto(inter_op_parallelism_threads=threads)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = {name: tf.placeholder_with_default(v, v.shape) for name, v in values.items()}
        x, classes, bias = fed["x"], fed["classes"], fed["bias"]
        scores = ClassScores.of_product(x, classes, bias, dtype=dtype)
        sums = sums_of(scores, fed["labels"], fed["weights"], options=OPTIONS, **settings)
        gradients = tf.gradients(SCALE * sums.loss, [x, classes, bias])
        return session.run([sums.loss, sums.weight, sums.metrics[ACCURACY], *gradients])


def assert_close(found, expected, unit):
    """Within the rounding of scores, probabilities and gradients, relative to the largest."""
    for ours, exact in zip(found, expected):
        # Products of D terms, then of V or all rows; a rounded score changes its exp by as much as
        # its own size, which is below 32.
        bound = (32 + D + V) * rounding.FLOAT32 + 32 * unit
        assert np.abs(ours - exact).max() <= bound * np.abs(exact).max()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("rows", "most_rows"), [(1, 7), (7, 7), (50, 7), (41, 20), (64, 16)])
def test_sums_and_gradients_are_exact_up_to_rounding(rows, most_rows, precision):
    dtype, unit = PRECISIONS[precision]
    values = given(rows)
    found = computed(values, dtype, score_sums_in_blocks, most_rows=most_rows)
    assert_close(found, in_float64(values), unit)
    assert_close(found, computed(values, dtype, score_sums), unit)


def test_any_number_of_threads_gives_the_same_bits():
    values = given(50)
    one, many = (
        computed(values, tf.float32, score_sums_in_blocks, threads=threads, most_rows=7)
        for threads in (1, 4)
    )
    for expected, found in zip(one, many):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["x", "classes", "bias"])
def test_numbers_that_are_not_finite_reach_the_loss_and_the_gradients(name, bad):
    values = given(50)
    values[name][20, ...] = bad
    values["weights"][:] = 1
    whole = computed(values, tf.float32, score_sums)
    found = computed(values, tf.float32, score_sums_in_blocks, most_rows=7)
    assert not np.isfinite(found[0])
    for ours, expected in zip(found[3:], whole[3:]):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))


def test_no_tensor_has_the_scores_of_more_than_a_block():
    values = given(60)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(v.dtype, v.shape) for name, v in values.items()}
        scores = ClassScores.of_product(fed["x"], fed["classes"], fed["bias"], dtype=tf.float32)
        sums = score_sums_in_blocks(
            scores, fed["labels"], fed["weights"], options=OPTIONS, most_rows=20
        )
        gradients = tf.gradients(sums.loss, [fed["x"], fed["classes"], fed["bias"]])
        trace = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
        feed = {fed[name]: value for name, value in values.items()}
        session.run([sums.loss, *gradients], feed, options=options, run_metadata=trace)
    nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
    sizes = {
        np.prod([dim.size for dim in output.tensor_description.shape.dim])
        for node in nodes
        for output in node.output
    }
    assert 20 * V in sizes
    assert not [size for size in sizes if size > max(20 * V, 60 * D, V * D)]


def test_a_block_waits_for_the_gradients_of_the_one_before():
    values = given(60)
    with tf.Graph().as_default() as graph:
        fed = {name: tf.constant(value) for name, value in values.items()}
        scores = ClassScores.of_product(fed["x"], fed["classes"], fed["bias"], dtype=tf.float32)
        score_sums_in_blocks(scores, fed["labels"], fed["weights"], options=OPTIONS, most_rows=20)
        products = [
            op for op in graph.get_operations() if op.type == "MatMul" and op != scores.product.op
        ]
    assert len(products) == 9  # three of each block
    for block in (1, 2):
        assert awaited_by(products[3 * block]).issuperset(products[: 3 * block])


def awaited_by(operation):
    """All operations that run before this one."""
    found, new = set(), [operation]
    while new:
        before = {tensor.op for op in new for tensor in op.inputs}.union(
            *(op.control_inputs for op in new)
        )
        new = before - found
        found |= new
    return found


def large_batch(batch):
    """The small batch, repeated to more masked words than are computed at once."""
    copies = 2 * ROWS_OF_A_BLOCK // batch["masked_lm_ids"].size + 1
    return {name: np.concatenate([value] * copies) for name, value in batch.items()}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_training_computes_the_same_gradients_in_blocks(config, batch, micro_batches):
    """Whole networks with dropout, with and without ``whole_scores``."""
    batch = large_batch(batch)
    size = len(batch["input_ids"])
    gradients, forms = {}, {}
    for whole in (False, True):
        task = PretrainingTask(config, next_sentence=False, whole_scores=whole)
        with tf.Graph().as_default() as graph, tf.Session() as session:
            options = ForwardOptions(policy_for("fp32"), native_layers=True)
            network = create_network(task, options, seed=3)
            fed = {n: tf.placeholder_with_default(v, v.shape) for n, v in batch.items()}

            def micro_batch(index, network=network, fed=fed):
                # Every micro batch is the same, with other dropout masks.
                zero = tf.zeros([], tf.int64)
                dropout = Dropout(5, data_position=zero, first_example=tf.cast(index, tf.int64))
                loss = network.losses(fed, dropout=dropout)[MASKED_LM].loss
                return loss / size, loss[tf.newaxis]

            variables = network.variables.trainable()
            found, metrics = accumulate_gradients(
                differentiated(micro_batch, variables),
                accumulation_steps=micro_batches,
                num_metrics=1,
                variables=variables,
                add=TensorFlowKernels().add,
            )
            forms[whole] = str(graph.as_graph_def()).count('op: "BertTfSoftmaxLoss"')
            session.run(tf.global_variables_initializer())
            gradients[whole] = session.run([metrics / size, *found])
    assert forms == {False: 3, True: 1}
    ours, expected = (np.concatenate([v.ravel() for v in gradients[whole]]) for whole in forms)
    bound = rounding.of_products(20, 2 * ROWS_OF_A_BLOCK)
    assert np.linalg.norm(ours - expected) <= bound * np.linalg.norm(expected)


def test_only_the_training_of_many_rows_needs_blocks():
    def scores(rows, dtype=tf.float32):
        x, classes = tf.zeros([rows or 1, D]), tf.zeros([V, D])
        if rows is None:
            x = tf.placeholder(tf.float32, [None, D])
        return ClassScores.of_product(x, classes, tf.zeros([V]), dtype=dtype)

    many = 2 * ROWS_OF_A_BLOCK + 1
    with tf.Graph().as_default():
        zero = tf.zeros([], tf.int64)
        training = OPTIONS.with_dropout(Dropout(1, data_position=zero, first_example=zero))
        assert scores(many).need_blocks(training)
        assert scores(many, tf.bfloat16).need_blocks(training)
        assert not scores(many - 1).need_blocks(training)
        assert not scores(None).need_blocks(training)
        assert not scores(many).need_blocks(OPTIONS)  # an evaluation
        assert not scores(many, tf.float16).need_blocks(training)  # needs its loss scale first
        plain = dataclasses.replace(training, native_layers=False)
        assert not scores(many).need_blocks(plain)
        assert not scores(many)._replace(factors=None).need_blocks(training)
