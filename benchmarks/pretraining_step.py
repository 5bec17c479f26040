"""A pre-training step of BERT here, in google-research/bert and in transformers.

    python -m benchmarks.pretraining_step --google_bert_dir=bert --json=pretraining_step.json

Masked words and next sentence; forward and backward pass, gradients clipped, Adam with decay. All
subjects (``--subjects``) get the same features without padding, and all cores. ``limit-*`` are
the matrix products of the step and nothing else. Each turn of a subject is a separate process,
and the order of the subjects changes from turn to turn. docs/speed.md says who they are.
"""

from __future__ import annotations

from benchmarks.script import run_benchmark
from benchmarks.speed.comparison import compare_steps, step_flags
from benchmarks.speed.steps import PRETRAINING

if __name__ == "__main__":
    run_benchmark(
        step_flags("predictions", "batch_size", "seq_length"), lambda: compare_steps(PRETRAINING)
    )
