"""The outermost layer of a benchmark that computes with TensorFlow."""

from __future__ import annotations

from typing import Callable

from bert_tf import environment
from bert_tf.command_line import run_command


def run_benchmark(define_flags: Callable[[], None], measure: Callable[[], None]) -> None:
    """Parses the flags and measures, without TensorFlow's start-up messages.

    A UserError ends the process as one sentence.
    """
    define_flags()

    def main(_) -> None:
        environment.prepare_environment(verbose=False, use_xla=False)
        measure()

    run_command(main)
