"""The loss of many words without all of their scores in memory.

The scores of a block of rows are all that its losses and gradients need: a row's loss depends on no
other row, and its part of the gradient is known up to a factor that all rows share. Each block is
therefore differentiated right after its losses, and its scores are freed before the next block's
are computed; nothing is computed twice.
"""

from __future__ import annotations

import math

import tensorflow.compat.v1 as tf

from bert_tf.model.losses import ACCURACY, ROWS_OF_A_BLOCK, ClassScores, score_sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums


def score_sums_in_blocks(
    scores: ClassScores,
    labels: tf.Tensor,
    weights: tf.Tensor,
    *,
    options: ForwardOptions,
    most_rows: int = ROWS_OF_A_BLOCK,
) -> Sums:
    """Like ``losses.score_sums``, for scores that ``need_blocks``, of ``most_rows`` at a time.

    Gradients of the classes and of the bias are summed over blocks in float32. No gradient flows to
    ``weights``. Raises ValueError if the factors of the scores are unknown.
    """
    if scores.factors is None:
        raise ValueError("the factors of the scores are unknown")
    rows = scores.factors[0].shape[0]
    size = math.ceil(rows / math.ceil(rows / most_rows))  # equal blocks, but for the last

    @tf.custom_gradient
    def loss_and_metric(x: tf.Tensor, classes: tf.Tensor, bias: tf.Tensor) -> object:
        totals: list[tf.Tensor] = []
        dx: list[tf.Tensor] = []
        for begin in range(0, rows, size):
            # One block at a time, since all blocks together would use the memory of the whole.
            with tf.control_dependencies([*totals, *dx]):
                part = x[begin : begin + size]
            block = slice(begin, begin + size)
            sums = score_sums(
                ClassScores.of_product(part, classes, bias, dtype=x.dtype),
                labels[block],
                weights[block],
                options=options,
            )
            dpart, *shared = tf.gradients(sums.loss, [part, classes, bias])
            dx.append(dpart)
            found = [tf.cast(v, tf.float32) for v in (sums.loss, sums.metrics[ACCURACY], *shared)]
            totals = [total + v for total, v in zip(totals, found)] if totals else found
        loss, correct, *sums_of_shared = totals

        def gradient(dloss: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
            found = [tf.concat(dx, axis=0), *sums_of_shared]
            return [
                tf.cast(dloss * tf.cast(value, tf.float32), given.dtype)
                for value, given in zip(found, (x, classes, bias))
            ]

        return (loss, correct), gradient

    loss, correct = loss_and_metric(*scores.factors, scores.bias)
    return Sums(loss, tf.reduce_sum(weights), {ACCURACY: correct})
