"""Counts how much of an update runs in half precision, by policy and by TensorFlow's rewrite.

    python -m benchmarks.studies.dtype_coverage --bert_config_file=recipes/bert_tiny.json

One pre-training update on a made-up batch is run in each way, and the graphs that TensorFlow
executed, after all its rewrites, are counted: matrix products, and all other operations that
compute with floating-point numbers.

docs/howto/precision.md has the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from benchmarks.script import define_flags, shared_flags, start_tensorflow
from benchmarks.speed.batches import masked_words
from benchmarks.speed.ours import Settings, running_step
from benchmarks.speed.steps import PRETRAINING, StepJob
from bert_tf.cli.flags import run_command

# TensorFlow's operations, which the rewrite knows, in all cases.
WAYS = {
    "fp32": Settings("fp32", native=False),
    "bf16": Settings("bf16", native=False),
    "amp": Settings("fp32", native=False, amp=True),
}

_HALVES = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
_FLOATS = {tf.float32.as_datatype_enum, *_HALVES}
# These hold, move or convert numbers and compute nothing.
_NO_COMPUTATION = ("Cast", "Const", "Identity", "Reshape", "Transpose", "Concat", "Pack", "Unpack",
                   "Split", "Slice", "Gather", "ExpandDims", "Squeeze", "Shape", "Tile", "Fill",
                   "Arg", "Retval", "Assign", "ReadVariable", "VarHandle", "Switch",
                   "Merge", "Broadcast", "ZerosLike", "OnesLike", "Snapshot")  # fmt: skip


class Coverage(NamedTuple):
    """Numbers of executed operations, and how many of them ran in float16 or bfloat16.

    Attributes:
      products, half_products: matrix products.
      others, half_others: other floating-point computations.
    """

    products: int
    half_products: int
    others: int
    half_others: int


def coverage_of(run_metadata: tf.RunMetadata) -> Coverage:
    """Counts the operations of a run made with ``output_partition_graphs``."""
    products, others = [], []
    for op, kind in _computations(run_metadata):
        (products if "MatMul" in op or "Einsum" in op else others).append(kind in _HALVES)
    return Coverage(len(products), sum(products), len(others), sum(others))


def _computations(run_metadata: tf.RunMetadata) -> Iterator[tuple[str, int]]:
    """The name and floating-point type of each operation that computes."""
    for graph in run_metadata.partition_graphs:
        for node in graph.node:
            kind = node.attr["T"].type if "T" in node.attr else None
            moves = any(part in node.op for part in _NO_COMPUTATION)
            if kind in _FLOATS and not moves:
                yield node.op, kind


def measure() -> None:
    """Prints a line for each way of computing."""
    start_tensorflow()
    job = StepJob.from_flags(PRETRAINING)
    job = dataclasses.replace(job, predictions=masked_words(job.seq_length))
    options = tf.RunOptions(output_partition_graphs=True)
    print(f"{'':6}{'products':>10}{'in half':>9}{'others':>9}{'in half':>9}")
    for name, settings in WAYS.items():
        with running_step(job, settings) as step:
            found = coverage_of(step.trace(options))
        print(f"{name:6}{found.products:10}{found.half_products:9}", end="")
        print(f"{found.others:9}{found.half_others:9}", flush=True)


if __name__ == "__main__":
    define_flags(shared_flags("bert_config_file", "threads", batch_size=8, seq_length=32))
    run_command(lambda _: measure())
