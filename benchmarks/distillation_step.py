"""A distillation step of BERT here and in transformers: teacher and student.

    python -m benchmarks.distillation_step --json=distillation_step.json

The teacher is the network of --bert_config_file (BERT-base), the student has half of its layers;
the losses are those of the published DistilBERT, soft targets at all tokens or, with
--restrict_ce_to_mask, at masked ones. Who takes part and how is as in benchmarks.pretraining_step.
Those with a cached teacher compute its targets at masked words once for three epochs; their step is
an epoch's share.
"""

from __future__ import annotations

from benchmarks.script import run_benchmark
from benchmarks.speed.comparison import compare_steps, step_flags
from benchmarks.speed.steps import DISTILLATION
from benchmarks.speed.subjects import DISTILLING

FLAGS = {
    **step_flags("predictions", "batch_size", "seq_length", known=DISTILLING),
    "restrict_ce_to_mask": (False, "Compare soft targets at masked words only."),
}

if __name__ == "__main__":
    run_benchmark(FLAGS, lambda: compare_steps(DISTILLATION, DISTILLING))
