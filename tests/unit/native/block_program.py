"""Runs every operation between products and writes what goes in and what comes out.

    python tests/unit/native/block_program.py FOUND.npz THREADS

All numbers are written as float32, which holds bfloat16's.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations

B, S, N, H, INNER = 3, 13, 3, 7, 75  # widths that fill no vector
ROWS, CLASSES = 7, 601  # of more than one block, and a part of one
D = N * H
# The rows' places; the others have none. Two are not in order.
PLACES = [place for place in range(B * S) if place % 5 != 2]
PLACES[3:5] = PLACES[4], PLACES[3]
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
        "joined": normal(len(PLACES), 3 * D),
        "words": normal(ROWS, CLASSES, scale=4.0),
        "scores": normal(B, N, S, S, scale=5.0),
        "dinner": normal(B, S, INNER),
        "dhalf": normal(len(PLACES), D),
        "ddropped": normal(B, N, S, S),
        "dquery": normal(B, N, S, H),
        "dkey": normal(B, N, S, H),
        "dvalue": normal(B, N, S, H),
        "context": normal(B, N, S, H),
        "dmerged": normal(len(PLACES), D),
    }
    padding = np.where(np.arange(S) < np.array([[S], [5], [1]]), 0, -10000).astype(np.float32)
    dlosses = normal(ROWS)
    dlosses[2] = 0.0
    in_float = {
        "inner_bias": normal(INNER),
        "bias": normal(D),
        "joined_bias": normal(3 * D),
        "score_bias": padding,
        "residual": normal(len(PLACES), D, scale=3.0) + 2.0,
        "gamma": normal(D),
        "beta": normal(D),
        "dy": normal(len(PLACES), D),
        "word_bias": normal(CLASSES),
        "labels": draw.integers(CLASSES, size=ROWS).astype(np.float32),
        "dlosses": dlosses,
    }
    given = {name: tf.cast(tf.constant(value), dtype) for name, value in in_dtype.items()}
    return {**given, **{name: tf.constant(value) for name, value in in_float.items()}}


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
    y = native.bert_tf_bias_gelu(product=given["inner"], bias=given["inner_bias"])
    full, half, _ = native.bert_tf_residual_norm(
        **{name: given[name] for name in ("product", "bias", "residual", "gamma", "beta")},
        **draw,
        **places,
    )
    softmax = native.bert_tf_softmax_dropout(
        scores=given["scores"], bias=given["score_bias"], **draw
    )
    heads = native.bert_tf_split_heads(
        joined=given["joined"], bias=given["joined_bias"], heads=N, scale=0.375, **places
    )
    merged = native.bert_tf_merge_heads(context=given["context"], heads=N, **places)
    loss = native.bert_tf_softmax_loss(
        product=given["words"], bias=given["word_bias"], labels=tf.cast(given["labels"], tf.int32)
    )
    found = {"gelu": y, "full": full, "half": half, **softmax._asdict(), **heads._asdict()}
    found.update(loss._asdict(), merged=merged)
    gradients = {
        ("inner", "inner_bias"): ([y], ["dinner"]),
        ("product", "bias", "residual", "gamma", "beta"): ([full, half], ["dy", "dhalf"]),
        ("scores",): ([softmax.dropped], ["ddropped"]),
        ("joined", "joined_bias"): (heads, ["dquery", "dkey", "dvalue"]),
        ("context",): ([merged], ["dmerged"]),
        ("words", "word_bias"): ([loss.losses], ["dlosses"]),
    }
    for names, (outputs, given_gradients) in gradients.items():
        of_inputs = tf.gradients(
            list(outputs), [given[n] for n in names], [given[n] for n in given_gradients]
        )
        found.update({f"gradient of {name}": g for name, g in zip(names, of_inputs)})
    return {name: tf.cast(tensor, tf.float32) for name, tensor in {**given, **found}.items()}


def main(path, threads):
    """Runs both types."""
    config = tf.ConfigProto(intra_op_parallelism_threads=int(threads))
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tensors = {
            f"{dtype.name}/{name}": tensor
            for dtype in (tf.float32, tf.bfloat16)
            for name, tensor in compute(dtype).items()
        }
        np.savez(path, **session.run(tensors))


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
