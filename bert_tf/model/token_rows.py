"""Which positions of a batch are computed: all of them, or those that hold a token.

What lies between the attentions of an encoder computes each position for itself. It can take a
matrix of rows, one for each token, and leave padding out; attention alone needs the rectangle of
sequences by positions. Zeng et al. 2022, "Boosting distributed training performance of the unpadded
BERT model", do so on GPUs.

Dimensions: B sequences, S positions, R rows, D the width of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.shapes import shape_of

# Rows come in multiples of this many, with some of padding among them where tokens are fewer:
# oneDNN prepares a product anew for each number of rows.
_ROW_STEP = 64


class TokenRows(NamedTuple):
    """The rows of a batch.

    Attributes:
      places: [R] int32, where each row lies: sequence * S + position.
      row_of: [B, S] int32, the row of each place, -1 for a place of padding that has none.
      complete: whether every place has its row, in order.
    """

    places: tf.Tensor
    row_of: tf.Tensor
    complete: bool

    def take(self, x: tf.Tensor) -> tf.Tensor:
        """The rows of [B, S, D] as [R, D]."""
        flat = tf.reshape(x, [-1, shape_of(x)[-1]])
        if self.complete:
            return flat

        # TensorFlow's own gradient would look for rows that were taken twice.
        @tf.custom_gradient
        def gathered(every):
            return tf.gather(every, self.places), self._spread_flat

        return gathered(flat)

    def spread(self, rows: tf.Tensor) -> tf.Tensor:
        """[R, D] as [B, S, D], with zeros where there is no row."""
        B, S = shape_of(self.row_of)
        flat = rows if self.complete else self._spread_flat(rows)
        return tf.reshape(flat, [B, S, shape_of(rows)[-1]])

    def _spread_flat(self, rows: tf.Tensor) -> tf.Tensor:
        """[R, D] as [B * S, D]."""
        B, S = shape_of(self.row_of)
        return tf.scatter_nd(self.places[:, tf.newaxis], rows, [B * S, shape_of(rows)[-1]])


def every_row(input_mask: tf.Tensor) -> TokenRows:
    """A row for each place of ``input_mask``, [B, S]."""
    B, S = shape_of(input_mask)
    places = tf.range(B * S)
    return TokenRows(places, tf.reshape(places, [B, S]), complete=True)


def rows_of_tokens(input_mask: tf.Tensor) -> TokenRows:
    """A row for each token of ``input_mask``, [B, S] integers, 1 for a token and 0 for padding."""
    known = tf.get_static_value(input_mask)
    if known is not None and known.all():
        return every_row(input_mask)
    B, S = shape_of(input_mask)
    is_token = tf.reshape(tf.not_equal(input_mask, 0), [-1])
    tokens, padding = tf.where(is_token), tf.where(tf.logical_not(is_token))
    rows = -(-tf.size(tokens) // _ROW_STEP) * _ROW_STEP
    # Padding fills up what lacks to the step.
    places = tf.cast(tf.concat([tokens, padding], axis=0)[:rows], tf.int32)
    row_of = tf.tensor_scatter_nd_update(
        tf.fill([B * S], -1), places, tf.range(tf.shape(places)[0])
    )
    return TokenRows(places[:, 0], tf.reshape(row_of, [B, S]), complete=False)
