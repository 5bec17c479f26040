"""The matrix products of a training step and nothing else, an upper bound for any training speed.

All products of the encoder and the heads, forward and backward, in float32 or bfloat16, one at a
time; query, key and value are one product. In distillation, the teacher's products have no backward
pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from benchmarks.script import start_tensorflow
from benchmarks.speed.packed_products import packed_product
from benchmarks.speed.steps import DISTILLATION, SPANS, StepJob, time_steps
from bert_tf.model.config import BertConfig

_TYPES = {"fp32": tf.float32, "bf16": tf.bfloat16}


class Product(NamedTuple):
    """[matrices, rows, inner] by [matrices, inner, columns].

    ``transposed``: the right side is stored as [matrices, columns, inner]. ``trained``: there is a
    backward pass.
    """

    matrices: int
    rows: int
    inner: int
    columns: int
    transposed: bool = False
    trained: bool = True

    @property
    def operations(self) -> int:
        """Multiplications and additions of the forward pass."""
        return 2 * self.matrices * self.rows * self.inner * self.columns


def forward_products(job: StepJob) -> Iterator[Product]:
    """The products of a micro batch's forward pass, including a teacher's."""
    tokens, masked = job.batch_size * job.seq_length, job.batch_size * job.predictions
    hidden = job.network.hidden_size
    if job.task == DISTILLATION:
        compared = masked if job.restrict_ce_to_mask else tokens
        for network, trained in ((job.student, True), (job.network, False)):
            for product in (*_encoder(job, network), *_words(network, compared)):
                yield product._replace(trained=trained)
        return
    yield from _encoder(job, job.network)
    if job.task == SPANS:
        yield Product(1, tokens, hidden, 2, transposed=True)
        return
    yield from _words(job.network, masked)
    yield Product(1, job.batch_size, hidden, hidden)
    yield Product(1, job.batch_size, hidden, 2, transposed=True)


def _encoder(job: StepJob, network: BertConfig) -> Iterator[Product]:
    batch_size, seq_length = job.batch_size, job.seq_length
    tokens, hidden, heads = (
        batch_size * seq_length,
        network.hidden_size,
        network.num_attention_heads,
    )
    width = hidden // heads
    for _ in range(network.num_hidden_layers):
        yield Product(1, tokens, hidden, 3 * hidden)
        yield Product(batch_size * heads, seq_length, width, seq_length, transposed=True)
        yield Product(batch_size * heads, seq_length, seq_length, width)
        yield Product(1, tokens, hidden, hidden)
        yield Product(1, tokens, hidden, network.intermediate_size)
        yield Product(1, tokens, network.intermediate_size, hidden)


def _words(network: BertConfig, tokens: int) -> Iterator[Product]:
    """The masked-LM head at some tokens."""
    yield Product(1, tokens, network.hidden_size, network.hidden_size)
    yield Product(1, tokens, network.hidden_size, network.vocab_size, transposed=True)


def step_operations(products: Iterator[Product]) -> int:
    """Multiplications and additions of a step; the backward pass has two products per product."""
    return sum(product.operations * (3 if product.trained else 1) for product in products)


def build_products(
    products: Iterator[Product], precision: str, *, packed: bool = False
) -> tf.Operation:
    """Adds a step's products to the current graph; variables hold their operands.

    ``packed``: those of dense layers have packed sides; bfloat16 only.
    """
    dtype = _TYPES[precision]
    return tf.group(
        *(result for product in products for result in _with_gradients(product, dtype, packed))
    )


def _with_gradients(product: Product, dtype: tf.DType, packed: bool) -> list[tf.Tensor]:
    """A product and, if it is trained, those for the gradients of its two operands."""
    matrices, rows, inner, columns, transposed, trained = product
    left, output = _held(matrices, rows, inner, dtype), _held(matrices, rows, columns, dtype)
    right = _held(matrices, *((columns, inner) if transposed else (inner, columns)), dtype)
    if packed and matrices == 1 and not transposed:
        forward = packed_product(left, right)
        return [forward, *(tf.gradients(forward, [left, right], output) if trained else [])]
    of_right = (output, left) if transposed else (left, output)
    forward = tf.matmul(left, right, transpose_b=transposed)
    if not trained:
        return [forward]
    return [
        forward,
        tf.matmul(output, right, transpose_b=not transposed),
        tf.matmul(*of_right, transpose_a=True),
    ]


def _held(matrices: int, rows: int, columns: int, dtype: tf.DType) -> tf.Tensor:
    """Ones kept by the session; operands of the same shape share them."""
    # Multiply single matrices as such: stacks of them use a different kernel.
    shape = [rows, columns] if matrices == 1 else [matrices, rows, columns]
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        name = f"matrix_{matrices}_{rows}_{columns}"
        ones = tf.ones_initializer()
        return tf.get_variable(name, shape, dtype, ones, trainable=False, use_resource=True)


def session_config(threads: int) -> tf.ConfigProto:
    """Runs one product at a time, and keeps products that are equal to others."""
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the products of a step."""
    start_tensorflow()
    job = StepJob.from_json(request)
    products = list(forward_products(job))
    with tf.Graph().as_default(), tf.Session(config=session_config(job.threads)) as session:
        operation = build_products(products, **request["settings"])
        session.run(tf.global_variables_initializer())

        def step() -> float:
            for _ in range(job.accumulation_steps):
                session.run(operation)
            return 0.0  # there is no loss

        found = time_steps(job, step, started=request["started"])
    operations = job.accumulation_steps * step_operations(products)
    return {**found, "gflops": operations / found["seconds"] / 1e9}
