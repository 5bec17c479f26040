"""Pre-trains BERT on the records that data_prep makes, on one process or on all ranks of a job."""

from __future__ import annotations

from absl import app, flags

from bert_tf import environment
from bert_tf.config import flags as bert_flags
from bert_tf.errors import exit_on_user_error


def main(_) -> None:
    """Turns flags into settings and runs the task."""
    exit_on_user_error(_run)


def _run() -> None:
    settings = bert_flags.pretraining_settings(flags.FLAGS)
    environment.prepare_environment(
        verbose=settings.runtime.verbose, use_xla=settings.runtime.use_xla
    )
    # TensorFlow reads its environment when it is loaded, and --help should not wait for it.
    from bert_tf.tasks import pretraining

    pretraining.run(settings)


def run() -> None:
    """The console script."""
    bert_flags.define_pretraining_flags(flags.FLAGS)
    flags.adopt_module_key_flags(bert_flags)
    app.run(main)


if __name__ == "__main__":
    run()
