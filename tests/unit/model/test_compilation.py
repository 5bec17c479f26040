"""Functions that XLA compiles: what they are in a graph, and what cannot be compiled."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.compilation import (
    compiled,
    compiled_functions,
    explained_compilation,
    silence_first_compilation,
)
from bert_tf.model.dropout import Dropout, numbers_like
from bert_tf.tuning.arithmetic import SessionSettings, session_config
from bert_tf.util.errors import UserError

pytestmark = pytest.mark.each_tensorflow

CONFIG = session_config(SessionSettings(threads=2))


def test_a_compiled_function_is_one_operation_and_reads_and_assigns_variables():
    with tf.Graph().as_default() as graph, tf.Session(config=CONFIG) as session:
        total = tf.get_variable("total", initializer=1.0, use_resource=True)
        fed = tf.placeholder(tf.float32, [None])

        def add():
            total.assign_add(tf.reduce_sum(fed), read_value=False)
            return {"double": [2.0 * fed], "none": None}

        outputs = compiled(add)()
        assert outputs["none"] is None
        assert len(compiled_functions(graph)) == 1
        session.run(tf.global_variables_initializer())
        for length in (2, 3):  # another shape is compiled too
            found = session.run(outputs["double"][0], {fed: np.ones([length])})
            np.testing.assert_array_equal(found, 2 * np.ones([length]))
        assert session.run(total) == 6.0


def test_functions_in_loops_are_counted():
    with tf.Graph().as_default() as graph:
        half = compiled(lambda x: x / 2.0)
        tf.while_loop(lambda x: x > 1.0, lambda x: [half(x)], [tf.placeholder(tf.float32, [])])
        assert len(compiled_functions(graph)) == 1


def test_an_operation_that_cannot_be_compiled_is_named():
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        text = tf.placeholder(tf.int32, [2])
        joined = compiled(lambda: tf.strings.length(tf.as_string(text)))()
        with (
            pytest.raises(UserError, match=r"XLA cannot compile .*AsString.*--use_xla=false"),
            explained_compilation(),
        ):
            session.run(joined, {text: [1, 2]})


def test_other_reasons_of_the_compiler_are_passed_on():
    message = "Fail to proof the equality of two dimensions\n\ttf2xla conversion failed while ..."
    error = tf.errors.InvalidArgumentError(None, None, message)
    sentence = r"XLA cannot compile .* \(Fail to proof .* dimensions\); give --use_xla=false\."
    with pytest.raises(UserError, match=sentence), explained_compilation():
        raise error


def test_other_errors_pass():
    error = tf.errors.InvalidArgumentError(None, None, "something else")
    with pytest.raises(tf.errors.InvalidArgumentError), explained_compilation():
        raise error


@pytest.mark.parametrize(("position", "first"), [(0, 0), (7, 5), (2**40, 2**33)])
def test_dropout_draws_the_same_bits(position, first):
    """Also where the halves of a counter carry."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        place = [tf.placeholder(tf.int64, []) for _ in range(2)]
        source = Dropout(3**30, data_position=place[0], first_example=place[1])

        def numbers():
            return numbers_like(tf.zeros([5, 3, 7]), source.draw(21, 0.1, site=9))

        both = [numbers(), compiled(numbers)()]
        plain, same = session.run(both, dict(zip(place, (position, first))))
        np.testing.assert_array_equal(same, plain)


def test_the_first_compilation_leaves_the_terminal_as_it_was(capfd):
    descriptors = len(os.listdir("/proc/self/fd"))
    silence_first_compilation(CONFIG)
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_terminal_is_given_back_when_compiling_fails(capfd, monkeypatch):
    def fail(*_, **__):
        os.write(2, b"swallowed\n")
        raise RuntimeError("no compiler")

    monkeypatch.setattr(tf, "Session", fail)
    with pytest.raises(RuntimeError, match="no compiler"):
        silence_first_compilation(CONFIG)
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"
