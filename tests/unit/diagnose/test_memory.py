"""The estimate of memory: against a network small enough to count by hand."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.diagnose.memory import MemoryEstimate, estimate_memory, format_memory, kept_bytes
from bert_tf.model.config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.jobs import begun, job_of
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.programs import run
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings
from tests.helpers.small_span_model import CONFIG

B, S = 4, 60


def test_what_the_backward_pass_reads_is_counted_once():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [5, 4])
        w = tf.get_variable("w", [4, 3], use_resource=True)
        before = set(graph.get_operations())
        product = tf.matmul(x, w)
        hidden = tf.tanh(product)
        seen_twice = tf.reshape(hidden, [3, 5])
        loss = tf.reduce_sum(tf.square(seen_twice)) + tf.reduce_sum(hidden)
        forward = [op for op in graph.get_operations() if op not in before]
        tf.gradients(loss, [w])
        backward = [op for op in graph.get_operations() if op not in before.union(forward)]
        kept = kept_bytes(forward, backward)
    # Of the tensors that grow with the batch only tanh's result, which squaring and the sum also
    # read under other names. The input is not produced here, and the variable is no activation.
    large = [size for size in kept if size > 16]
    assert large == [5 * 3 * 4]


def estimate_of(
    task, columns, *, options=None, accumulation_steps=1, world_size=1, native=False, **changes
):
    """For micro batches of these arrays."""
    batch_size, *_ = next(iter(columns.values())).shape
    ranks = SimpleNamespace(world_size=world_size, local_size=world_size)
    job = job_of(
        task,
        run=begun(ranks=ranks),
        against_native_ops=None if native else "requested",
        options=options or ForwardOptions(),
        batches=lambda: tf.data.Dataset.from_tensors(columns),
        batch=BatchPlan(batch_size, accumulation_steps, world_size=world_size),
        max_seq_length=S,
        optimization=optimization_settings(**changes),
    )
    return estimate_memory(job)


def sequences():
    columns = {name: np.ones([B, S], np.int32) for name in INPUTS}
    labels = dict.fromkeys(("start_positions", "end_positions"), np.ones([B, 1], np.int32))
    return {**columns, **labels}


@requires_native_ops
@pytest.mark.parametrize("skip_padding", [True, False])
def test_activations_by_hand(skip_padding):
    """As many rows as places: a batch without padding may come where padding is skipped, too."""
    options = ForwardOptions(native_layers=True, skip_padding=skip_padding)
    found = estimate_of(SpanTask(CONFIG), sequences(), options=options)
    D, inner = CONFIG.hidden_size, CONFIG.intermediate_size
    rows, queries = B * S, B * CONFIG.num_attention_heads * S
    a_layer = (
        3 * rows * D
        + 3 * D  # the product with query, key and value, and its bias
        + 2 * queries  # the largest score and the sum of the exponentials
        + rows * D  # the heads, joined
        + 2 * rows * inner  # the product, and what GELU makes of it
        + 2 * 3 * rows * D  # twice the product before a norm, and the norm in two types
        + 3 * D * D  # the kernels of query, key and value, joined
    )
    # The norm's input without its mean, its scaled and its shifted output, twice dropout.
    embeddings = 5 * rows * D + rows * CONFIG.type_vocab_size
    kept = 4 * (CONFIG.num_hidden_layers * a_layer + embeddings)
    # What is left is a number a row and the span's scores.
    largest = rows * max(inner, 3 * D)
    assert found.activations == pytest.approx(kept + 3 * 4 * largest, rel=0.01)


@pytest.mark.parametrize(
    ("accumulation_steps", "world_size", "copies", "communication"),
    [(1, 1, 4, 0), (2, 1, 7, 0), (1, 2, 4, 1), (3, 4, 7, 1)],
)
def test_what_does_not_grow_with_the_batch(accumulation_steps, world_size, copies, communication):
    found = estimate_of(
        RegressionTask(CONFIG),
        {"x": np.ones([B, 3], np.float32), "y": np.ones([B], np.float32)},
        accumulation_steps=accumulation_steps,
        world_size=world_size,
    )
    assert found.weights == 4 * 4, "a kernel of three numbers and a bias"
    assert found.gradients == copies * 4 * 4
    assert found.optimizer == 2 * 4 * 4
    assert found.communication == communication * (4 * 4 + 128 * 1024**2)
    assert found.process == 512 * 1024**2
    assert found.local_size == world_size
    assert 0 < found.activations < 1000


@pytest.mark.parametrize(("world_size", "expected"), [(1, 4), (2, 3), (4, 2)])
def test_slots_that_are_shared_out(world_size, expected):
    """Of three numbers and a bias the first rank has the most."""
    found = estimate_of(
        RegressionTask(CONFIG),
        {"x": np.ones([B, 3], np.float32), "y": np.ones([B], np.float32)},
        world_size=world_size,
        shard_optimizer_state=True,
    )
    assert found.optimizer == 2 * 4 * expected


def test_large_gradients_that_are_added_in_place_take_less():
    task = SpanTask(dataclasses.replace(CONFIG, vocab_size=1_000_000))
    found = estimate_of(task, sequences(), accumulation_steps=2, native=True)
    assert found.gradients == 6 * found.weights + 80 * 1024**2 < 7 * found.weights
    found = estimate_of(task, sequences(), accumulation_steps=2)
    assert found.gradients == 7 * found.weights


_TRAIN = """
import dataclasses, json, sys
from pathlib import Path
from bert_tf.tasks.pretraining import run as pretraining
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import CONFIG, pretraining_settings
directory, *dry_run = sys.argv[1:]
settings = pretraining_settings(Path(directory))
config = dataclasses.replace(
    CONFIG, hidden_size=512, num_hidden_layers=2, intermediate_size=2048, vocab_size=40_000
)
Path(directory, "bert_config.json").write_text(json.dumps(config.to_dict()))
optimization = with_values(settings.optimization, micro_batch_size=16, num_train_steps=2)
pretraining.run(
    dataclasses.replace(
        settings,
        network={"vocab_size": config.vocab_size},
        run=dataclasses.replace(settings.run, dry_run=bool(dry_run)),
        optimization=optimization,
    )
)
status = Path("/proc/self/status").read_text()
print("peak", int(status.split("VmHWM:")[1].split()[0]) << 10)
"""


@pytest.mark.slow
def test_a_training_takes_what_was_estimated(tmp_path):
    """No more than a tenth above the estimate, which counts a third for copies of gradients.

    How many of them are there at the same time is a matter of the order in which threads come to
    run the operations: runs that take a quarter less have been seen on one machine.
    """

    def figure(pattern, *more):
        directory = tmp_path / "-".join(["run", *more])
        directory.mkdir()
        return float(re.search(pattern, run("-c", _TRAIN, directory, *more).stdout)[1])

    estimated = figure(r"estimated: about (\S+) GiB a rank", "dry") * 1024**3
    assert 0.7 * estimated < figure(r"peak (\d+)") < 1.1 * estimated


def test_the_total_and_its_line():
    gib = 1 << 30
    estimate = MemoryEstimate(gib, gib // 2, gib // 2, gib, 2 * gib, 0, local_size=4)
    assert estimate.total == 5 * gib
    line = format_memory(estimate)
    assert "about 5.00 GiB a rank, 20.00 GiB on this host" in line
    assert "activations 2.00" in line
    assert "communication" not in line, "a single rank has none"
