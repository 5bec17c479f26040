"""The outermost layer of a benchmark that computes with TensorFlow."""

from __future__ import annotations

from typing import Callable

from absl import app

from bert_tf import environment
from bert_tf.errors import exit_on_user_error


def run_benchmark(define_flags: Callable[[], None], measure: Callable[[], None]) -> None:
    """Parses the flags and measures, without TensorFlow's start-up messages.

    A UserError ends the process as one sentence.
    """
    define_flags()

    def main(_) -> None:
        environment.prepare_environment(verbose=False, use_xla=False)
        exit_on_user_error(measure)

    app.run(main)
