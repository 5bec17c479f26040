"""How much memory a rank will need, worked out before it is taken.

What the backward pass needs of the forward pass is read off the graph itself: the tensors that
operations of the forward pass make and operations of the backward pass use. The rest is arithmetic
on the number of parameters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.config.optimizers import optimizer_row
from bert_tf.model.dropout import Dropout
from bert_tf.model.recompute import SCOPE
from bert_tf.model.task import Network, create_network
from bert_tf.model.variables import VariableSpec, num_weights
from bert_tf.training.job import Job
from bert_tf.training.plans import trained_specs

# Measured on Linux with BERT-base, a network of 6 x 384 and a tiny one, micro batches of 4 to 32,
# fp32 or bf16: with these numbers the estimate is within 11 % of the peak.
# Resident memory of a process that has imported TensorFlow and built a graph.
PROCESS_BYTES = 512 << 20
# How many times the bytes of the trained weights gradients take: as they come, clipped, the parts
# of the embeddings', freed blocks that nothing fits into; with several micro batches sums too.
_GRADIENT_COPIES, _GRADIENT_COPIES_OF_SUMS = 4, 7
# Horovod's buffer for tensors that travel together.
FUSION_BUFFER_BYTES = 128 << 20
# The largest tensors of the backward pass that live side by side, in units of the largest kept one.
_TEMPORARIES = 3

# Operations whose result is their input's memory under another name.
_ALIASES = {"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze",
            "StopGradient"}  # fmt: skip
# Operations whose result is a variable's memory.
_VARIABLES = {"ReadVariableOp", "VarHandleOp", "ResourceGather"}


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank, and how many ranks share a host.

    Attributes:
      process: the program without a network.
      weights: float32 variables.
      gradients: of one micro batch, with the sums of an update where it has several.
      optimizer: its slots, of the weights that are trained.
      activations: what the backward pass keeps of a micro batch, and its temporaries.
      communication: reduced gradients and Horovod's buffer.
      local_size: ranks on this host.
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
        """Bytes of one rank."""
        fields = dataclasses.asdict(self)
        fields.pop("local_size")
        return sum(fields.values())


def estimate_memory(job: Job) -> MemoryEstimate:
    """Estimates the peak of a training; builds one micro batch of its graph and runs nothing."""
    specs = job.task.specs()
    trained = trained_specs(specs, job.optimization)
    parameters = num_weights(trained)
    with tf.Graph().as_default():
        network = create_network(job.task, job.options)
        forward, backward = _one_micro_batch(job, network, trained)
        kept = kept_bytes(forward, backward)
        again = max(map(sum, recomputed_bytes(backward)), default=0)
    accumulates = job.batch.accumulation_steps > 1
    copies = _GRADIENT_COPIES_OF_SUMS if accumulates else _GRADIENT_COPIES
    communicates = job.context.ranks.world_size > 1
    return MemoryEstimate(
        process=PROCESS_BYTES,
        weights=4 * num_weights(specs),
        gradients=4 * parameters * copies,
        optimizer=optimizer_row(job.optimization.optimizer).slot_bytes(parameters),
        activations=sum(kept) + again + _TEMPORARIES * max(kept, default=0),
        communication=(4 * parameters + FUSION_BUFFER_BYTES) * communicates,
        local_size=job.context.ranks.local_size,
    )


def format_memory(estimate: MemoryEstimate) -> str:
    """One line, in GiB."""
    parts = {
        name: value
        for name, value in dataclasses.asdict(estimate).items()
        if name != "local_size" and value
    }
    listed = "  ".join(f"{name} {_gib(value)}" for name, value in parts.items())
    total = f"about {_gib(estimate.total)} GiB a rank"
    if estimate.local_size > 1:
        total += f", {_gib(estimate.total * estimate.local_size)} GiB on this host"
    return f"memory, estimated: {total} ({listed})"


def kept_bytes(forward: Iterable[tf.Operation], backward: Iterable[tf.Operation]) -> list[int]:
    """Sizes of the tensors that ``forward`` operations make and ``backward`` operations read.

    Tensors that share their memory count once; those of unknown size not at all.
    """
    made = set(forward)
    sizes: dict[str, int] = {}
    for operation in backward:
        for tensor in operation.inputs:
            base = tensor
            while base.op.type in _ALIASES:
                base = base.op.inputs[base.value_index]
            if base.op in made and base.op.type not in _VARIABLES:
                sizes[base.name] = _bytes(base)
    return [size for size in sizes.values() if size]


def recomputed_bytes(backward: Sequence[tf.Operation]) -> list[list[int]]:
    """The same of each part that the backward pass computes again: one of them lives at a time."""
    parts: dict[str, list[tf.Operation]] = {}
    for operation in backward:
        part, scope, rest = operation.name.partition(f"/{SCOPE}/")
        if scope and "_grad/" not in rest:  # tf.gradients names operations after what they are of
            parts.setdefault(part, []).append(operation)
    again = set().union(*parts.values())
    gradients = [operation for operation in backward if operation not in again]
    return [kept_bytes(part, gradients) for part in parts.values()]


def _one_micro_batch(
    job: Job, network: Network, trained: Sequence[VariableSpec]
) -> tuple[list[tf.Operation], list[tf.Operation]]:
    """The operations of the forward and of the backward pass, in the current graph."""
    graph = tf.get_default_graph()
    specs = job.train_input().element_spec
    features = {name: _placeholder(spec, job) for name, spec in specs.items()}
    if "input_mask" in features:
        # Without padding there are as many rows as there can be, and the graph knows how many.
        features["input_mask"] = tf.ones_like(features["input_mask"])
    before = set(graph.get_operations())
    place = tf.zeros([], tf.int64)
    dropout = Dropout(job.context.settings.seed, data_position=place, first_example=place)
    sums = network.losses(features, dropout=dropout)
    loss = tf.add_n([term.loss for term in sums.values()])
    forward = [op for op in graph.get_operations() if op not in before]
    tf.gradients(loss, [network.variables[spec.name] for spec in trained])
    known = before.union(forward)
    return forward, [op for op in graph.get_operations() if op not in known]


def _placeholder(spec: tf.TensorSpec, job: Job) -> tf.Tensor:
    """A micro batch of a feature; sequences are as long as they get."""
    _, *rest = spec.shape.as_list()
    shape = [job.data.max_seq_length if size is None else size for size in rest]
    return tf.placeholder(spec.dtype, [job.batch.micro_batch_size, *shape])


def _bytes(tensor: tf.Tensor) -> int:
    if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.resource, tf.string):
        return 0
    return math.prod(tensor.shape.as_list()) * tensor.dtype.size


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f}"
