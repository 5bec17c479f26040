"""Estimates how much memory a rank will need, before it is allocated.

What the backward pass needs from the forward pass is read off the graph: the tensors that
operations of the forward pass produce and operations of the backward pass use. The rest is
arithmetic on the number of parameters.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.model.recompute import SCOPE
from bert_tf.model.task import Network, create_network
from bert_tf.model.variables import num_weights
from bert_tf.train.job import Job

# Measured on Linux in fp32 and bf16, with micro batches of 4 to 32 and one to four of them per
# update, mostly with native operations, on BERT-base, networks of 4 x 768, 6 x 384 and 4 x 384, and
# a tiny one: with these constants the estimate is between 1 % below the peak and 11 % above it.
# With logits for many words (1,600 of 30,000 in a network of 4 x 384) it is 20 % above: gradients
# then fit into the memory that the logits had. With logits in blocks (2,560 and 5,120 words in a
# network of 4 x 256) it is 9 % below and 5 % above.
# Resident memory of a process that has imported TensorFlow and built a graph.
PROCESS_BYTES = 512 << 20
# Memory of gradients in multiples of the trained weights' bytes: as computed, clipped, parts of the
# embeddings' gradients, and fragmented free blocks.
_GRADIENT_COPIES = 4
# The same with sums over several micro batches. Native operations add and clip in place: large
# networks then have fewer copies, plus a constant for free blocks.
_COPIES_WITH_SUMS, _NATIVE_COPIES_WITH_SUMS, _FREE_BYTES = 7, 6, 80 << 20
# Horovod's buffer for tensors that are sent together (tensor fusion).
FUSION_BUFFER_BYTES = 128 << 20
# Temporaries of the backward pass that live at the same time, in units of the largest kept tensor.
_TEMPORARIES = 3

# Operations whose result shares the memory of their input.
_ALIASES = {"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze",
            "StopGradient"}  # fmt: skip
# Operations whose result is the memory of a variable.
_VARIABLES = {"ReadVariableOp", "VarHandleOp", "ResourceGather"}


class MemoryEstimate(NamedTuple):
    """The bytes that one rank needs, and the number of ranks on its host.

    Attributes:
      process: the program without a network.
      weights: float32 variables.
      gradients: gradients of one micro batch, and their sums if an update has several.
      optimizer: slots of the trained weights, or this rank's shard of them.
      activations: tensors of a micro batch that are kept for the backward pass, and temporaries.
      communication: reduced gradients and Horovod's buffer.
      local_size: number of ranks on this host.
    """

    process: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    communication: int
    local_size: int

    @property
    def total(self) -> int:
        """The total number of bytes for one rank."""
        return sum(self) - self.local_size


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that processes can still allocate, on the host and in the container; None: unknown."""
    limits = []
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
        limits += [int(found[1]) * 1024] if found else []
        most = (cgroup / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # another system, or no container
    return min(limits, default=None)


def estimate_memory(job: Job) -> MemoryEstimate:
    """Estimates the peak memory of training; builds one micro batch's graph but runs nothing."""
    job = job.with_batch(job.plan.batch.at_full_size())
    specs = job.task.specs()
    trained = job.plan.trained(specs)
    parameters = sum(map(math.prod, trained.values()))
    with tf.Graph().as_default():
        options = dataclasses.replace(job.arithmetic.options, compiled=False)
        network = create_network(job.task, options)
        forward, backward = _one_micro_batch(job, network, trained)
        kept = kept_bytes(forward, backward)
        recomputed = max(map(sum, recomputed_bytes(backward)), default=0)
    communicates = job.run.ranks.world_size > 1
    return MemoryEstimate(
        process=PROCESS_BYTES,
        weights=4 * num_weights(specs),
        gradients=_gradient_bytes(4 * parameters, job),
        optimizer=job.plan.slot_bytes(specs),
        activations=sum(kept) + recomputed + _TEMPORARIES * max(kept, default=0),
        communication=(4 * parameters + FUSION_BUFFER_BYTES) * communicates,
        local_size=job.run.ranks.local_size,
    )


def _gradient_bytes(one_copy: int, job: Job) -> int:
    """The memory of gradients and, with several micro batches, of their sums."""
    if job.plan.batch.accumulation_steps == 1:
        return _GRADIENT_COPIES * one_copy
    most = _COPIES_WITH_SUMS * one_copy
    if job.arithmetic.against_native_ops is not None:
        return most
    return min(most, _NATIVE_COPIES_WITH_SUMS * one_copy + _FREE_BYTES)


def format_memory(estimate: MemoryEstimate) -> str:
    """Formats the estimate as one line, in GiB."""
    parts = zip(estimate._fields[:-1], estimate)
    listed = "  ".join(f"{name} {_gib(value)}" for name, value in parts if value)
    total = f"about {_gib(estimate.total)} GiB a rank"
    if estimate.local_size > 1:
        total += f", {_gib(estimate.total * estimate.local_size)} GiB on this host"
    return f"memory, estimated: {total} ({listed})"


def kept_bytes(forward: Iterable[tf.Operation], backward: Iterable[tf.Operation]) -> list[int]:
    """Sizes of the tensors that ``forward`` operations produce and ``backward`` operations read.

    Tensors that share memory are counted once; tensors of unknown size are not counted.
    """
    produced = set(forward)
    sizes: dict[str, int] = {}
    for operation in backward:
        for tensor in operation.inputs:
            base = tensor
            while base.op.type in _ALIASES:
                base = base.op.inputs[base.value_index]
            if base.op in produced and base.op.type not in _VARIABLES:
                sizes[base.name] = _bytes(base)
    return [size for size in sizes.values() if size]


def recomputed_bytes(backward: Sequence[tf.Operation]) -> list[list[int]]:
    """The kept sizes of each part that the backward pass recomputes; one is alive at a time."""
    parts: dict[str, list[tf.Operation]] = {}
    for operation in backward:
        part, scope, rest = operation.name.partition(f"/{SCOPE}/")
        if scope and "_grad/" not in rest:  # tf.gradients names operations after the forward ones
            parts.setdefault(part, []).append(operation)
    recomputed = set().union(*parts.values())
    gradients = [operation for operation in backward if operation not in recomputed]
    return [kept_bytes(part, gradients) for part in parts.values()]


def _one_micro_batch(
    job: Job, network: Network, trained: Iterable[str]
) -> tuple[list[tf.Operation], list[tf.Operation]]:
    """The operations of the forward and backward pass, built in the current graph."""
    graph = tf.get_default_graph()
    specs = job.train_input().element_spec
    features = {name: _placeholder(spec, job) for name, spec in specs.items()}
    if "input_mask" in features:
        # Without padding, the number of rows is static and at its maximum.
        features["input_mask"] = tf.ones_like(features["input_mask"])
    before = set(graph.get_operations())
    zero = tf.zeros([], tf.int64)
    dropout = Dropout(job.settings.seed, data_position=zero, first_example=zero)
    sums = network.losses(features, dropout=dropout)
    loss = tf.add_n([term.loss for term in sums.values()])
    forward = [op for op in graph.get_operations() if op not in before]
    tf.gradients(loss, [network.variables[name] for name in trained])
    before.update(forward)
    return forward, [op for op in graph.get_operations() if op not in before]


def _placeholder(spec: tf.TensorSpec, job: Job) -> tf.Tensor:
    """A placeholder for a feature of a micro batch, at the largest sequence length."""
    _, *rest = spec.shape.as_list()
    shape = [job.training.max_seq_length if size is None else size for size in rest]
    return tf.placeholder(spec.dtype, [job.plan.batch.micro_batch_size, *shape])


def _bytes(tensor: tf.Tensor) -> int:
    if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.resource, tf.string):
        return 0
    return math.prod(tensor.shape.as_list()) * tensor.dtype.size


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f}"
