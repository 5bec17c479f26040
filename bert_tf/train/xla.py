"""Reports what XLA compiled, and how long that took."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_tf.train.summary import WarmUp
from bert_tf.util.environment import suppressed_stderr


def compile_first_cluster(config: tf.ConfigProto) -> None:
    """Compiles a trivial cluster with XLA, to suppress what the first compilation prints.

    TensorFlow announces the first cluster of a process on the terminal, at every log level.
    """
    with suppressed_stderr(), tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = result = tf.placeholder(tf.float32, [])
        with tf.xla.experimental.jit_scope():
            for _ in range(4):
                result = tf.tanh(result) + 1.0
        session.run(result, {fed: 1.0})


class XlaReport(tf.train.SessionRunHook):
    """Reports how many clusters an update runs and how long they took to compile.

    Reports after a few updates, and again at the end if more shapes were compiled since then.
    """

    _REPORTED_RUN = 6

    def __init__(self, warm_up: WarmUp, report: Callable[[int, float, int], None]) -> None:
        """``report`` is called with clusters, seconds of compilation and number of batch shapes."""
        self._warm_up = warm_up
        self._report = report
        self._runs = 0
        self._clusters = 0
        self._reported_shapes = 0

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._runs += 1
        if self._runs > 1:
            return None
        return tf.train.SessionRunArgs(None, options=traced())

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if self._runs == 1:
            self._clusters = count_compiled_clusters(run_values.run_metadata)
        elif self._runs == self._REPORTED_RUN:
            self._send_report()

    def end(self, session: tf.Session) -> None:
        if self._warm_up.shapes != self._reported_shapes:
            self._send_report()

    def _send_report(self) -> None:
        self._reported_shapes = self._warm_up.shapes
        self._report(self._clusters, self._warm_up.extra_seconds, self._reported_shapes)


def traced() -> tf.RunOptions:
    """Run options that make the metadata name the executed operations."""
    return tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)


def count_compiled_clusters(run_metadata: tf.RunMetadata) -> int:
    """The number of distinct clusters that a traced run executed as compiled code."""
    ran = set()
    for device in run_metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if "= _XlaRun(" in node.timeline_label:
                ran.add(node.node_name)
    return len(ran)
