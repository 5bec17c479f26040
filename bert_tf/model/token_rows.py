"""Which positions of a batch are computed: all of them, or only those that hold a token.

Outside of attention, an encoder computes each position independently. It can operate on a matrix
with one row per token and leave out padding; only attention needs the rectangle of sequences by
positions. Zeng et al. 2022, "Boosting distributed training performance of the unpadded BERT model",
do this on GPUs.

Dimensions: B sequences, S positions, R rows, D row width.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.layers import shape_of

# The number of rows is padded to a multiple of this, because oneDNN has to prepare a product for
# each new number of rows.
_ROW_STEP = 64


class TokenRows(NamedTuple):
    """The rows computed for a batch.

    Attributes:
      places: [R] int32, the place of each row: sequence * S + position.
      row_of: [B, S] int32, the row at each place; -1 for padding without a row.
      complete: whether every place has a row, in order.
    """

    places: tf.Tensor
    row_of: tf.Tensor
    complete: bool

    def take(self, x: tf.Tensor) -> tf.Tensor:
        """Selects the rows from [B, S, D]: [R, D]."""
        flat = tf.reshape(x, [-1, shape_of(x)[-1]])
        if self.complete:
            return flat

        # TensorFlow's gradient would allow for rows that are gathered twice.
        @tf.custom_gradient
        def gathered(rows: tf.Tensor) -> object:
            return tf.gather(rows, self.places), self._spread_flat

        return gathered(flat)

    def rows_at(self, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Selects from [R, D] the rows at places [M]: [M, D]; any row for a place without one."""
        if not self.complete:
            places = tf.maximum(tf.gather(tf.reshape(self.row_of, [-1]), places), 0)
        return tf.gather(rows, places)

    def spread(self, rows: tf.Tensor) -> tf.Tensor:
        """Expands [R, D] to [B, S, D], with zeros at places without a row."""
        B, S = shape_of(self.row_of)
        flat = rows if self.complete else self._spread_flat(rows)
        return tf.reshape(flat, [B, S, shape_of(rows)[-1]])

    def _spread_flat(self, rows: tf.Tensor) -> tf.Tensor:
        """Expands [R, D] to [B * S, D]."""
        B, S = shape_of(self.row_of)
        return tf.scatter_nd(self.places[:, tf.newaxis], rows, [B * S, shape_of(rows)[-1]])


def mask_of_positions(input_mask: tf.Tensor, *positions: tf.Tensor) -> tf.Tensor:
    """[B, S] int32: 1 at each sequence's ``positions``, integers [B, P] each, 0 elsewhere."""
    B, S = shape_of(input_mask)
    chosen = tf.concat([tf.cast(part, tf.int32) for part in positions], axis=1)
    places = tf.reshape(tf.range(B)[:, tf.newaxis] * S + chosen, [-1, 1])
    ones = tf.ones_like(places[:, 0])
    return tf.reshape(
        tf.tensor_scatter_nd_update(tf.zeros([B * S], tf.int32), places, ones), [B, S]
    )


def all_rows(input_mask: tf.Tensor) -> TokenRows:
    """One row for each place of ``input_mask``, [B, S]."""
    B, S = shape_of(input_mask)
    places = tf.range(B * S)
    return TokenRows(places, tf.reshape(places, [B, S]), complete=True)


def rows_of_tokens(input_mask: tf.Tensor) -> TokenRows:
    """One row for each token of ``input_mask``, [B, S] integers, 1 for a token, 0 for padding."""
    known = tf.get_static_value(input_mask)
    if known is not None and known.all():
        return all_rows(input_mask)
    B, S = shape_of(input_mask)
    is_token = tf.reshape(tf.not_equal(input_mask, 0), [-1])
    tokens, padding = tf.where(is_token), tf.where(tf.logical_not(is_token))
    rows = -(-tf.size(tokens) // _ROW_STEP) * _ROW_STEP
    # Padding fills the rest of the last multiple.
    places = tf.cast(tf.concat([tokens, padding], axis=0)[:rows], tf.int32)
    row_of = tf.tensor_scatter_nd_update(
        tf.fill([B * S], -1), places, tf.range(tf.shape(places)[0])
    )
    return TokenRows(places[:, 0], tf.reshape(row_of, [B, S]), complete=False)
