"""Evaluates masked language models on texts: masked perplexity and pseudo-perplexity."""

from __future__ import annotations

from absl import flags

from bert_tf import environment
from bert_tf.config.evaluation_flags import define_evaluation_flags, evaluation_settings
from bert_tf.config.flags import run_script
from bert_tf.ranks.launched import end_with_launcher


def main() -> None:
    """Turns flags into settings and runs the evaluation."""
    settings = evaluation_settings(flags.FLAGS)
    runtime = settings.runtime
    if runtime.horovod:
        end_with_launcher()
    environment.prepare_environment(verbose=runtime.verbose, use_xla=False)
    # TensorFlow reads its environment when it is loaded, and --help should not wait for it.
    from bert_tf.tasks import scoring

    scoring.run(settings)


def run() -> None:
    """The console script."""
    run_script(define_evaluation_flags, main)


if __name__ == "__main__":
    run()
