"""Reports that XLA compiles, for how many shapes of batches, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_tf.model.compilation import compiled_functions
from bert_tf.train.run_log import RunLog
from bert_tf.train.summary import WarmUp


class CompilationReport(tf.train.SessionRunHook):
    """Says before the first update that it is compiled, and afterwards how long that took.

    Says so again at the end if batches of further shapes were compiled since then.
    """

    def __init__(self, warm_up: WarmUp, log: RunLog, record: Callable[[dict[str, float]], None]):
        """``warm_up`` observes every update; ``record`` keeps the figures with the run."""
        self._warm_up = warm_up
        self._log = log
        self._record = record
        self._functions: Sequence[str] = ()
        self._reported_shapes = 0

    def begin(self) -> None:
        self._functions = compiled_functions(tf.get_default_graph())

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if not self._warm_up.shapes:
            number = len(self._functions)
            self._log.message(
                f"XLA compiles {number} function{'s' * (number > 1)} of an update, once for each "
                "shape of batches"
            )

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if not self._reported_shapes:
            self._report()

    def end(self, session: tf.Session) -> None:
        if self._warm_up.shapes != self._reported_shapes:
            self._report()

    def _report(self) -> None:
        shapes, seconds = self._warm_up.shapes, self._warm_up.warm_up_seconds
        self._reported_shapes = shapes
        self._log.message(
            f"XLA: compiling and running the first update of {shapes} batch "
            f"shape{'s' * (shapes > 1)} took {seconds:.1f} s, which rates do not include"
        )
        self._record({
            "xla_functions": len(self._functions),
            "xla_compile_seconds": round(seconds, 2),
            "xla_shapes": shapes,
        })  # fmt: skip
