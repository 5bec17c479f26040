"""Where the time of our training step goes, by class of operation.

    python -m benchmarks.step_profile --task=pretraining --precision=bf16

Traced steps with all operations one after the other, so that their times add up: the whole is
slower than a step in training, where some run side by side. What the optimizer costs in each form
is in the runs with ``--native_ops`` and without, for ``--optimizer_type`` adamw and lamb.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.results import Result, print_result, spread_result
from benchmarks.script import define_shared_flags, run_benchmark, start_tensorflow
from benchmarks.speed.steps import PRETRAINING, SPANS, StepJob

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

REST = "the rest"
_WARMUP_STEPS = 3

# Class, pattern of the kernel's type, pattern of the operation's name; the first rule whose
# patterns are both found decides. Kernels say what they do better than names, so they come first.
_RULES = [
    (name, re.compile(kernel), re.compile(operation))
    for name, kernel, operation in (
        ("products", r"MatMul|Einsum", ""),
        ("optimizer and clip", r"^BertTf(GlobalNorm|AdamW|Lamb)$", ""),
        ("gelu and its bias", r"^BertTfBiasGelu", ""),
        ("bias, dropout, residual and norm", r"^BertTfResidualNorm", ""),
        ("softmax and losses", r"^BertTfSoftmaxDropout", ""),
        ("heads and their biases", r"^BertTfSplitHeads", ""),
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
    """The class of an operation from its kernel's type and its name in the graph."""
    for name, of_kernel, of_operation in _RULES:
        if of_kernel.search(kernel) and of_operation.search(operation):
            return name
    return REST


def kernel_of(label: str) -> str:
    """The kernel's type from a trace's label, ``[memory] name = Type(inputs)``."""
    found = re.search(r" = (\w+)\(", label)
    return found[1] if found else ""


def seconds_by_class(metadata: tf.RunMetadata) -> Counter[str]:
    """Seconds of each class in a traced run."""
    seconds: Counter[str] = Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            name = class_of(kernel_of(node.timeline_label), node.node_name)
            seconds[name] += (node.op_end_rel_micros - node.op_start_rel_micros) / 1e6
    return seconds


def trace(job: StepJob, precision: str, *, native: bool, optimizer_type: str) -> list[Counter[str]]:
    """Seconds of each class in each of the job's timed steps."""
    import tensorflow.compat.v1 as tf

    from benchmarks.speed.ours import Settings, build_update, choose
    from bert_tf.model.precision import policy_for
    from bert_tf.tuning.session import SessionSettings, session_config

    features = job.batch(job.sequences)
    config = session_config(SessionSettings(job.threads))
    config.inter_op_parallelism_threads = 1
    options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
    traced = []
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = {n: tf.placeholder(v.dtype, v.shape, name=n) for n, v in features.items()}
        kernels = choose(Settings(native=native))
        update = build_update(
            job, policy_for(precision), fed, kernels, optimizer_type=optimizer_type
        )
        step = update.train_op
        feed = {fed[name]: value for name, value in features.items()}
        session.run(tf.global_variables_initializer())
        for _ in range(job.warmup_steps):
            session.run(step, feed)
        for _ in range(job.timed_steps):
            metadata = tf.RunMetadata()
            session.run(step, feed, options=options, run_metadata=metadata)
            traced.append(seconds_by_class(metadata))
    return traced


def profile_results(
    traced: Sequence[Mapping[str, float]], config: Mapping[str, Any]
) -> list[Result]:
    """Seconds of each class, the longest first, and of all; medians of the steps."""
    totals = [sum(step.values()) for step in traced]
    classes = _longest_first(traced)
    results = [
        spread_result(name, [step.get(name, 0.0) for step in traced], "s", config)
        for name in classes
    ]
    return [*results, spread_result("all", totals, "s", config)]


def _longest_first(traced: Sequence[Mapping[str, float]]) -> Iterable[str]:
    names = {name for step in traced for name in step}
    return sorted(
        names, key=lambda name: -statistics.median(step.get(name, 0.0) for step in traced)
    )


def measure() -> Iterator[Result]:
    """Profiles the step of the flags."""
    from bert_tf.ranks.distribution import SingleProcess
    from bert_tf.tuning.speed_choice import Wanted, measured_choice

    values = flags.FLAGS
    start_tensorflow()
    job = StepJob.from_flags(values.task, warmup_steps=_WARMUP_STEPS)
    precision = measured_choice(
        Wanted(values.precision, values.native_ops),
        job.network,
        sequences=job.batch_size,
        length=job.seq_length,
        accumulation_steps=1,
        ranks=SingleProcess(job.threads),
    ).precision
    how = {"native_ops": values.native_ops, "optimizer_type": values.optimizer_type}
    config = {**job.to_json(), "precision": precision, **how, **describe_machine()}
    traced = trace(job, precision, native=values.native_ops, optimizer_type=values.optimizer_type)
    for result in profile_results(traced, config):
        print_result(result)
        yield result


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.step_profile``."""
    flags.DEFINE_enum("task", PRETRAINING, [PRETRAINING, SPANS], "What the step is of.")
    flags.DEFINE_boolean("native_ops", True, "As in training, where they are built.")
    flags.DEFINE_enum("optimizer_type", "adamw", ["adamw", "lamb"], "As in training.")
    shared = ("bert_config_file", "precision", "batch_size", "seq_length", "predictions")
    define_shared_flags(*shared, "threads", "steps", "json")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
