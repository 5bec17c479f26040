"""A SQuAD fine-tuning step here, in google-research/bert and in transformers.

    python -m benchmarks.finetuning_step --google_bert_dir=bert --json=finetuning_step.json

The step itself, on full-length sequences; what length buckets save is benchmarks.padding's subject.
Who takes part and how is as in benchmarks.pretraining_step.
"""

from __future__ import annotations

from benchmarks.script import run_benchmark
from benchmarks.speed.comparison import compare_steps, step_flags
from benchmarks.speed.steps import SPANS

if __name__ == "__main__":
    run_benchmark(step_flags(batch_size=8, seq_length=384), lambda: compare_steps(SPANS))
