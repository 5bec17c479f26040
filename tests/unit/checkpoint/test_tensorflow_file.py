"""The ``.meta`` beside a checkpoint, read by TensorFlow's own functions."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import Stored, meta_graph, write_checkpoint

pytestmark = pytest.mark.each_tensorflow

WEIGHT = "bert/encoder/layer_0/output/dense/kernel"


@pytest.fixture
def arrays():
    random = np.random.default_rng(1)
    return {
        WEIGHT: random.normal(size=(3, 5)).astype(np.float32),
        f"{WEIGHT}/adam_m": random.normal(size=(3, 5)).astype(np.float32),
        "bert/pooler/dense/bias": random.normal(size=5).astype(np.float16),
        "global_step": np.int64(12),
    }


def test_import_meta_graph_restores_the_checkpoint(arrays, tmp_path):
    path = str(tmp_path / "model.ckpt-12")
    write_checkpoint(path, arrays)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{path}.meta")
        saver.restore(session, path)
        found = {variable.op.name: session.run(variable) for variable in tf.global_variables()}
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
        # As in graphs of google-research/bert: the variable itself, not a handle.
        weight = graph.get_tensor_by_name(f"{WEIGHT}:0")
        np.testing.assert_array_equal(session.run(weight), arrays[WEIGHT])
        assert session.run(tf.train.get_global_step()) == 12


def test_its_graph_trains_and_saves(arrays, tmp_path):
    path = str(tmp_path / "model.ckpt-12")
    write_checkpoint(path, arrays)
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{path}.meta")
        weights = {variable.op.name: variable for variable in tf.trainable_variables()}
        assert weights.keys() == {WEIGHT, "bert/pooler/dense/bias"}
        session.run(tf.global_variables_initializer())
        assert not session.run(weights[WEIGHT]).any()
        saver.restore(session, path)
        update = tf.train.GradientDescentOptimizer(1.0)
        session.run(update.minimize(tf.reduce_sum(weights[WEIGHT]), var_list=[weights[WEIGHT]]))
        saver.save(session, str(tmp_path / "again"), write_meta_graph=False)
    np.testing.assert_allclose(
        tf.train.load_variable(str(tmp_path / "again"), WEIGHT), arrays[WEIGHT] - 1, rtol=1e-6
    )


def test_it_is_small_whatever_the_size_of_the_variables():
    layers = {f"bert/encoder/layer_{n}/kernel": Stored((1024, 4096), tf.float32) for n in range(99)}
    assert meta_graph(layers).ByteSize() < 2000 * len(layers)
