"""Profiles the time of our training step by class of operation.

    python -m benchmarks.step_profile --task=pretraining --precision=bf16

In traced steps, all operations run one at a time, so that their times add up; in total they are
slower than a training step, in which some run in parallel. To see the cost of each form of an
optimizer, compare runs with and without ``--native_ops``, for ``--optimizer_type`` adamw and lamb.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks.results import Result, printed, spread_result
from benchmarks.script import run_benchmark, shared_flags, start_tensorflow
from benchmarks.speed.steps import PRETRAINING, SPANS, StepJob

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

REST = "the rest"

# Class, pattern of the kernel's type, pattern of the operation's name; the first rule with two
# matching patterns applies. Kernels are more specific than names, so they come first.
_RULES = [
    (name, re.compile(kernel), re.compile(operation))
    for name, kernel, operation in (
        ("products", r"MatMul|Einsum", ""),
        ("optimizer and clip", r"^BertTf(GlobalNorm|AdamW|Lamb)$", ""),
        ("gelu and its bias", r"^BertTfBiasGelu", ""),
        ("bias, dropout, residual and norm", r"^BertTfResidualNorm", ""),
        ("softmax and losses", r"^BertTfDivergence", ""),
        ("attention", r"^BertTfAttention", ""),
        ("optimizer and clip", r"^ResourceApply|^Assign|^L2Loss$", ""),
        ("optimizer and clip", "", r"^(cond|AdamW|Lamb|global_norm|mul(_\d+)?$|truediv(_\d+)?$)"),
        ("dropout", r"^Stateless|^Random|^GreaterEqual$|^Bitcast$", ""),
        ("softmax and losses", r"Softmax", ""),
        ("softmax and losses", "", r"Softmax|/loss/"),
        ("transposes", r"Transpose", ""),
        ("layer norm", "", r"LayerNorm"),
        ("gelu and its bias", "", r"(intermediate|transform)/dense"),
        ("embedding", r"Gather|SegmentSum|Scatter", ""),
        ("dropout", "", r"(output|embeddings|attention/self)/(mul|Cast)_\d"),
        ("embedding", "", r"embeddings"),
        ("biases", r"^BiasAdd", ""),
        ("casts", r"^Cast$", ""),
    )
]


def class_of(kernel: str, operation: str) -> str:
    """The class of an operation, from its kernel's type and its name in the graph."""
    for name, of_kernel, of_operation in _RULES:
        if of_kernel.search(kernel) and of_operation.search(operation):
            return name
    return REST


def kernel_of(label: str) -> str:
    """The kernel's type, from a trace's label, ``[memory] name = Type(inputs)``."""
    found = re.search(r" = (\w+)\(", label)
    return found[1] if found else ""


def seconds_by_class(metadata: tf.RunMetadata) -> Counter[str]:
    """Seconds spent in each class in a traced run."""
    seconds: Counter[str] = Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            name = class_of(kernel_of(node.timeline_label), node.node_name)
            seconds[name] += (node.op_end_rel_micros - node.op_start_rel_micros) / 1e6
    return seconds


def profile_results(
    traced: Sequence[Mapping[str, float]], config: Mapping[str, Any]
) -> list[Result]:
    """Seconds per class, the longest first, and in total; medians over the steps."""
    classes = {name: [step.get(name, 0.0) for step in traced] for name in set().union(*traced)}
    results = [spread_result(name, seconds, "s", config) for name, seconds in classes.items()]
    results.sort(key=lambda found: -found["value"])
    return [*results, spread_result("all", [sum(step.values()) for step in traced], "s", config)]


def measure() -> Iterator[Result]:
    """Profiles the step given by the flags."""
    import tensorflow.compat.v1 as tf

    from benchmarks.speed.ours import Settings, running_step

    values = flags.FLAGS
    start_tensorflow()
    job = StepJob.from_flags(values.task)
    how = {"native_ops": values.native_ops, "optimizer_type": values.optimizer_type}
    settings = Settings(
        values.precision, native=values.native_ops, optimizer_type=values.optimizer_type
    )
    options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
    with running_step(job, settings, one_operation_at_a_time=True) as step:
        for _ in range(job.warmup_steps):
            step.run()
        traced = [seconds_by_class(step.trace(options)) for _ in range(job.steps)]
    config = {**job.to_json(), "precision": step.chosen["precision"], **how}
    yield from printed(profile_results(traced, config))


FLAGS = {
    "task": ((PRETRAINING, SPANS), "Task of the step."),
    "native_ops": (True, "As in training, if they are built."),
    "optimizer_type": (("adamw", "lamb"), "As in training."),
    **shared_flags("bert_config_file", "precision", "batch_size", "seq_length", "predictions"),
    **shared_flags("threads", "warmup_steps", "steps", "json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
