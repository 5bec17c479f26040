"""Runs every operation between products and writes what goes in and what comes out.

    python tests/unit/native/block_program.py FOUND.npz THREADS

All numbers are written as float32, which holds bfloat16's.
"""

import sys
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations

B, S, N, H, INNER = 3, 13, 3, 7, 75  # widths that fill no vector
ROWS, CLASSES = 7, 601  # of more than one block, and a part of one
D = N * H
# The rows' places; the others have none. Two are not in order.
PLACES = [place for place in range(B * S) if place % 5 != 2]
PLACES[3:5] = PLACES[4], PLACES[3]
TEMPERATURE = 1.75


class Attended(NamedTuple):
    """Shapes of attention: the rows of all places and those that are read."""

    B: int
    S: int
    N: int
    H: int
    padding: list[int]  # its places
    places: list[int]
    read: list[int]

    def in_places(self, rows):
        """Rows [R, N, H] to [B, N, S, H], zeros where there is no row."""
        places = self.places if len(rows) == len(self.places) else self.read
        spread = np.zeros((self.B * self.S, self.N, self.H))
        spread[places] = rows
        return spread.reshape(self.B, self.S, self.N, self.H).transpose(0, 2, 1, 3)

    def in_rows(self, heads, places):
        """[B, N, S, H] to the rows [R, N, H] of places."""
        return heads.transpose(0, 2, 1, 3).reshape(-1, self.N, self.H)[places]

    def score_bias(self):
        """[B, S]: -10000 for padding."""
        bias = np.zeros(self.B * self.S, np.float32)
        bias[self.padding] = -10000
        return bias.reshape(self.B, self.S)

    def row_of(self, places):
        """[B, S]: the row in each place, -1 if there is none."""
        rows = np.full(self.B * self.S, -1, np.int32)
        rows[places] = np.arange(len(places))
        return rows.reshape(self.B, self.S)


# Rows that are missing, in another order, read and not read; an example without queries; and more
# queries and keys than a block has, some of padding within an example.
ATTENDED = {
    "ragged": Attended(
        *(B, S, N, H),
        [*range(S + 5, 2 * S), *range(2 * S + 1, 3 * S)],
        PLACES,
        PLACES[2 : 2 * S : 3],
    ),
    "long": Attended(
        *(2, 147, 2, 24),
        [9, 10, *range(147 + 70, 2 * 147)],
        list(range(2 * 147)),
        list(range(2 * 147)),
    ),
    "alone": Attended(1, 1, 1, 5, [], [0], [0]),
    "padding": Attended(2, 37, 1, 40, list(range(37)), list(range(74)), list(range(74))),
}
THRESHOLD = round(0.3 * 65536)
KEY, COUNTER = 0x0123456789ABCDEF, (2**32 - 3, 77 << 16 | 5)  # the counter's low word overflows


def inputs(dtype):
    """Name -> tensor; large and small numbers among them."""
    draw = np.random.default_rng(1)

    def normal(*shape, scale=1.0):
        return (scale * draw.standard_normal(shape)).astype(np.float32)

    in_dtype = {
        "inner": normal(B, S, INNER, scale=4.0),
        "product": normal(len(PLACES), D),
        "words": normal(ROWS, CLASSES, scale=4.0),
        "dinner": normal(B, S, INNER),
        "dhalf": normal(len(PLACES), D),
        "learnt": normal(ROWS, CLASSES, scale=4.0),
        "known": normal(ROWS, CLASSES, scale=4.0),
        "exact_inner": normal(B, S, INNER, scale=4.0),
    }
    dlosses = normal(ROWS)
    dlosses[2] = 0.0
    in_float = {
        "inner_bias": normal(INNER),
        "bias": normal(D),
        "residual": normal(len(PLACES), D, scale=3.0) + 2.0,
        "gamma": normal(D),
        "beta": normal(D),
        "dy": normal(len(PLACES), D),
        "word_bias": normal(CLASSES),
        "labels": draw.integers(CLASSES, size=ROWS).astype(np.float32),
        "dlosses": dlosses,
        "learnt_bias": normal(CLASSES),
        "known_bias": normal(CLASSES),
        "exact_inner_bias": normal(INNER),
    }
    for name, case in ATTENDED.items():
        width = case.N * case.H
        in_dtype[f"{name}_joined"] = normal(len(case.places), 3 * width, scale=2.0)
        in_dtype[f"{name}_dcontext"] = normal(len(case.read), width)
        in_float[f"{name}_joined_bias"] = normal(3 * width)
    given = {name: tf.cast(tf.constant(value), dtype) for name, value in in_dtype.items()}
    return {**given, **{name: tf.constant(value) for name, value in in_float.items()}}


def attention(case, joined, bias, *, score_bias=None, **draw):
    """The context of the rows that are read."""
    return (
        native_operations()
        .bert_tf_attention(
            joined=joined,
            bias=bias,
            score_bias=case.score_bias() if score_bias is None else score_bias,
            places=case.places,
            row_of=case.row_of(case.places),
            read_places=case.read,
            read_row_of=case.row_of(case.read),
            heads=case.N,
            scale=0.375,
            **draw,
        )
        .context
    )


def compute(dtype):
    """Name -> tensor: the inputs, the outputs and the gradients."""
    native = native_operations()
    given = inputs(dtype)
    draw = {
        "key": tf.constant([KEY], tf.uint64),
        "counter": tf.constant(COUNTER, tf.uint64),
        "threshold": THRESHOLD,
    }
    row_of = np.full(B * S, -1, np.int32)
    row_of[PLACES] = np.arange(len(PLACES))
    places = {"places": tf.constant(PLACES), "row_of": tf.constant(row_of.reshape(B, S))}
    gelus = {
        name: native.bert_tf_bias_gelu(
            product=given[inner], bias=given[f"{inner}_bias"], exact=name == "exact gelu"
        )
        for name, inner in (("gelu", "inner"), ("exact gelu", "exact_inner"))
    }
    full, half, _ = native.bert_tf_residual_norm(
        **{name: given[name] for name in ("product", "bias", "residual", "gamma", "beta")},
        **draw,
        **places,
    )
    contexts = {
        f"{name} context": attention(
            case, given[f"{name}_joined"], given[f"{name}_joined_bias"], **draw
        )
        for name, case in ATTENDED.items()
    }
    loss = native.bert_tf_softmax_loss(
        product=given["words"], bias=given["word_bias"], labels=tf.cast(given["labels"], tf.int32)
    )
    divergence = native.bert_tf_divergence(
        product=given["learnt"],
        bias=given["learnt_bias"],
        known_product=given["known"],
        known_bias=given["known_bias"],
        temperature=TEMPERATURE,
    )
    found = {**gelus, "full": full, "half": half, **contexts, **loss._asdict()}
    found["divergences"] = divergence.losses
    gradients = {
        ("inner", "inner_bias"): ([gelus["gelu"]], ["dinner"]),
        ("exact_inner", "exact_inner_bias"): ([gelus["exact gelu"]], ["dinner"]),
        ("product", "bias", "residual", "gamma", "beta"): ([full, half], ["dy", "dhalf"]),
        **{
            (f"{name}_joined", f"{name}_joined_bias"): (
                [contexts[f"{name} context"]],
                [f"{name}_dcontext"],
            )
            for name in ATTENDED
        },
        ("words", "word_bias"): ([loss.losses], ["dlosses"]),
        ("learnt", "learnt_bias"): ([divergence.losses], ["dlosses"]),
    }
    for names, (outputs, given_gradients) in gradients.items():
        of_inputs = tf.gradients(
            list(outputs), [given[n] for n in names], [given[n] for n in given_gradients]
        )
        found.update({f"gradient of {name}": g for name, g in zip(names, of_inputs)})
    return {name: tf.cast(tensor, tf.float32) for name, tensor in {**given, **found}.items()}


def not_numbers():
    """Every NaN of float32 by its sign, whether it signals, and its lowest nine bits; [M]."""
    low, kinds = np.arange(1, 512, dtype=np.uint32), np.uint32([0x7F800000, 0x7FC00000, 0x7FA55400])
    low = np.concatenate([[0x7FFFFF, 0x400000], low]).astype(np.uint32)
    patterns = (kinds[:, None] | low).ravel()
    return np.concatenate([patterns, patterns | 0x80000000]).astype(np.uint32).view(np.float32)


def compute_not_numbers(dtype):
    """Name -> tensor that is not a number anywhere, computed from sums with ``not_numbers``."""
    native = native_operations()
    biases = tf.constant(not_numbers())
    zeros = tf.zeros([1, not_numbers().size], dtype)
    y, exact = (
        native.bert_tf_bias_gelu(product=zeros, bias=biases, exact=exact) for exact in (False, True)
    )
    width, chosen = 20, not_numbers()[::37]
    spread = np.random.default_rng(2).standard_normal((chosen.size, width)).astype(np.float32)
    spread[np.arange(chosen.size), np.arange(chosen.size) % width] = chosen
    everywhere = list(range(chosen.size * width))
    joined = tf.zeros([len(everywhere), 3], dtype)
    context = attention(
        Attended(chosen.size, width, 1, 1, [], everywhere, everywhere),
        joined,
        tf.zeros([3]),
        score_bias=tf.constant(spread),
        key=tf.zeros([1], tf.uint64),
        counter=tf.zeros([2], tf.uint64),
        threshold=0,
    )
    logits = tf.cast(tf.constant(spread), dtype)
    loss = native.bert_tf_softmax_loss(
        product=logits, bias=tf.zeros([width]), labels=tf.zeros([chosen.size], tf.int32)
    )
    divergence = native.bert_tf_divergence(
        product=logits,
        bias=tf.zeros([width]),
        known_product=tf.zeros_like(logits),
        known_bias=tf.zeros([width]),
        temperature=2.0,
    )
    found = {
        "gelu": y,
        "gelu's gradient": tf.gradients(y, zeros)[0],
        "exact gelu": exact,
        "exact gelu's gradient": tf.gradients(exact, zeros)[0],
        "attention": context,
        "attention's gradient": tf.gradients(context, joined)[0],
        "losses": loss.losses,
        "loss's gradient": tf.gradients(loss.losses, logits)[0],
        "divergences": divergence.losses,
        "divergence's gradient": tf.gradients(divergence.losses, logits)[0],
    }
    return {name: tf.cast(tensor, tf.float32) for name, tensor in found.items()}


def compute_extremes(dtype):
    """GELU of the largest, the smallest and the infinite, and of zeros."""
    given = np.float32([np.inf, -np.inf, 3e38, -3e38, 88, -88, 1e-40, -1e-40, 1e-45, 0.0, -0.0])
    found = {
        name: native_operations().bert_tf_bias_gelu(
            product=tf.zeros([1, given.size], dtype), bias=tf.constant(given), exact=exact
        )
        for name, exact in (("extremes", False), ("extremes of exact gelu", True))
    }
    return {name: tf.cast(y, tf.float32) for name, y in found.items()}


def main(path, threads):
    """Runs both types."""
    config = tf.ConfigProto(intra_op_parallelism_threads=int(threads))
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tensors = {
            f"{dtype.name}/{name}": tensor
            for dtype in (tf.float32, tf.bfloat16)
            for name, tensor in {**compute(dtype), **compute_extremes(dtype)}.items()
        }
        for dtype in (tf.float32, tf.bfloat16):
            for name, tensor in compute_not_numbers(dtype).items():
                tensors[f"not a number/{dtype.name}/{name}"] = tensor
        np.savez(path, **session.run(tensors))


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
