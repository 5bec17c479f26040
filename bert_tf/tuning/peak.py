"""Measures the rate of a large matrix product, the reference for hardware utilisation."""

from __future__ import annotations

import time

import tensorflow.compat.v1 as tf

from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning.session import SessionSettings, session_config

# Large enough to reach the full rate, small enough to be quick.
_ROWS, _ROWS_ON_A_GPU = 2048, 8192
_TIMED_PRODUCTS = 5


def peak_flops(ranks: Ranks, session: SessionSettings, dtype: tf.DType) -> float:
    """FLOP/s of all ranks together in products of two large square matrices. Collective.

    All ranks measure at the same time, because they share processors and power when they train.

    Args:
      ranks: all ranks.
      session: how a rank's sessions execute.
      dtype: the data type of the matrices.
    """
    rows = _ROWS if session.gpu is None else _ROWS_ON_A_GPU
    with tf.Graph().as_default(), tf.Session(config=session_config(session)) as running:
        # A variable, because a product of constants would be computed only once.
        matrix = tf.get_variable("matrix", [rows, rows], dtype, tf.ones_initializer())
        product = tf.matmul(matrix, matrix).op
        running.run(tf.global_variables_initializer())
        running.run(product)
        ranks.gather(None)
        seconds = []
        for _ in range(_TIMED_PRODUCTS):
            started = time.perf_counter()
            running.run(product)
            seconds.append(time.perf_counter() - started)
    return sum(ranks.gather(2 * rows**3 / min(seconds)))
