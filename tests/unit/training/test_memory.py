"""The estimate of memory: against a network small enough to count by hand."""

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.tasks.span_task import SpanTask
from bert_tf.training.memory import MemoryEstimate, estimate_memory, format_memory, kept_bytes
from bert_tf.update.batch_plan import BatchPlan
from tests.jobs import job_of
from tests.small_span_model import CONFIG
from tests.support import requires_native_ops


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
    # Of tensors that grow with the batch only tanh's result, which squaring and the sum read as
    # well under other names. The input is made by nobody here, the variable is no activation.
    large = [size for size in kept if size > 16]
    assert large == [5 * 3 * 4]


@requires_native_ops
def test_padding_that_is_skipped_is_counted():
    """A batch without padding may come."""

    def sequences():
        columns = {name: np.ones([4, 60], np.int32) for name in INPUTS}
        labels = dict.fromkeys(("start_positions", "end_positions"), np.ones([4, 1], np.int32))
        return tf.data.Dataset.from_tensors({**columns, **labels})

    estimates = [
        estimate_memory(
            job_of(
                SpanTask(CONFIG),
                options=ForwardOptions(native_layers=True, skip_padding=skips),
                batches=sequences,
                batch=BatchPlan(4, 1, world_size=1),
                max_seq_length=60,
            )
        )
        for skips in (True, False)
    ]
    assert estimates[0] == estimates[1]
    assert estimates[0].activations > 4 * 60 * CONFIG.hidden_size * 4


def test_the_total_and_its_line():
    gib = 1 << 30
    estimate = MemoryEstimate(gib, gib // 2, gib // 2, gib, 2 * gib, 0, local_size=4)
    assert estimate.total == 5 * gib
    line = format_memory(estimate)
    assert "about 5.00 GiB a rank, 20.00 GiB on this host" in line
    assert "activations 2.00" in line
    assert "communication" not in line, "a single rank has none"
