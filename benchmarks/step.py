"""Compares a BERT training step here, in google-research/bert and in transformers.

    python -m benchmarks.step --google_bert_dir=bert --json=pretraining_step.json
    python -m benchmarks.step --task=fine-tuning --google_bert_dir=bert
    python -m benchmarks.step --task=distillation

``pretraining`` predicts masked words and the next sentence, ``fine-tuning`` is SQuAD's: forward and
backward pass, gradient clipping, Adam with decay. All subjects (``--subjects``) get the same
features without padding, and all cores. ``limit-*`` are the matrix products of the step and nothing
else. Each turn of a subject is a separate process, and the order of the subjects changes from turn
to turn. docs/measurements/speed.md describes the subjects.

In ``distillation``, the network of --bert_config_file (BERT-base) is the teacher, and the student
has half of its layers; the losses are those of the published DistilBERT, with soft targets at all
tokens or, with --restrict_ce_to_mask, at masked ones. Subjects with a cached teacher compute its
targets at masked tokens once for three epochs; their step includes one epoch's part of that.
"""

from __future__ import annotations

from collections.abc import Iterator

from absl import flags

from benchmarks.results import Result
from benchmarks.script import run_benchmark, shared_flags
from benchmarks.speed.comparison import Figures, compare, comparison_flags
from benchmarks.speed.process import Found
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, SPANS, StepJob
from benchmarks.speed.subjects import DISTILLING, SUBJECTS
from bert_tf.util.errors import UserError

_MIB = 1 << 20
_SPAN_DEFAULTS = {"batch_size": 8, "seq_length": 384}
# Flags that only some of the tasks have.
_TASKS_WITH = {
    "predictions": (PRETRAINING, DISTILLATION),
    "restrict_ce_to_mask": (DISTILLATION,),
}


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Compares the steps given by the flags."""
    task = values.task
    for name, tasks in _TASKS_WITH.items():
        if values[name].present and task not in tasks:
            raise UserError(f"--{name} is for --task={' and --task='.join(tasks)}; leave it out.")
    masked_words = {}
    if task == SPANS:
        masked_words = {"predictions": 0}
        for name, default in _SPAN_DEFAULTS.items():
            values.set_default(name, default)
    job = StepJob.from_flags(task, **masked_words)
    if job.predictions > job.seq_length:
        raise UserError(f"--predictions={job.predictions} is more than --seq_length; lower it.")

    def figures(found: Found) -> Figures:
        return {
            f"{task} step": (job.sequences / found["seconds"], "sequences/s"),
            f"{task}, start": (found["first_step_seconds"], "s"),
            f"{task}, peak memory": (found["peak_memory_bytes"] / _MIB, "MiB"),
        }

    known = DISTILLING if task == DISTILLATION else SUBJECTS
    yield from compare(known, job.to_json(), "train", figures, config=job.to_json())


FLAGS = {
    "task": ((PRETRAINING, SPANS, DISTILLATION), "Task of the step."),
    **comparison_flags(
        {**SUBJECTS, **DISTILLING}, "threads", "bert_config_file", "accumulation_steps"
    ),
    **shared_flags("warmup_steps", "steps", "predictions"),
    "batch_size": (16, "Sequences per micro batch; 8 in fine-tuning.", 1),
    "seq_length": (128, "Tokens per sequence; 384 in fine-tuning.", 2),
    "restrict_ce_to_mask": (False, "Compare soft targets at masked tokens only, in distillation."),
}

if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
