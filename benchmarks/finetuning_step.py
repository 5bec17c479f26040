"""A SQuAD fine-tuning step here, in google-research/bert and in transformers.

    python -m benchmarks.finetuning_step --google_bert_dir=bert --json=finetuning_step.json

The step itself, on full-length sequences; what length buckets save is benchmarks.squad_finetuning's
subject. Who takes part and how is as in benchmarks.pretraining_step.
"""

from __future__ import annotations

from benchmarks.speed.step_comparison import compare_steps, define_step_flags
from benchmarks.speed.steps import SPANS
from bert_tf.command_line import run_command


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.finetuning_step``."""
    define_step_flags(batch_size=8, seq_length=384)


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: compare_steps(SPANS))
