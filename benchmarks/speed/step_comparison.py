"""The comparison of training steps, from flags to results: what two benchmarks have in common."""

from __future__ import annotations

from collections.abc import Iterator

from absl import flags

from benchmarks.results import Result
from benchmarks.script import define_shared_flags
from benchmarks.speed.comparison import (
    compare,
    define_comparison_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.report import step_results, step_table
from benchmarks.speed.steps import StepJob
from benchmarks.speed.subjects import SUBJECTS
from bert_tf.errors import UserError

_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_pretraining.py", "run_squad.py")


def define_step_flags(*names: str, batch_size: int, seq_length: int) -> None:
    """The flags of a comparison of training steps, with the defaults of its task."""
    define_comparison_flags(SUBJECTS)
    shared = ("bert_config_file", "accumulation_steps", "warmup_steps", "steps", *names)
    define_shared_flags(*shared, batch_size=batch_size, seq_length=seq_length)


def compare_steps(task: str) -> Iterator[Result]:
    """Runs the comparison of the flags; prints a table and gives the results."""
    job = StepJob.from_flags(task, google_bert_dir=google_bert_dir_from_flags(_GOOGLE_FILES))
    if job.predictions > job.seq_length:
        raise UserError(f"--predictions={job.predictions} is more than --seq_length; lower it.")
    subjects = subjects_from_flags(SUBJECTS)
    comparison = compare(
        subjects,
        job.to_json(),
        "train",
        lambda found: f"{job.sequences / found['seconds']:.4g} sequences/s",
    )
    most_foreign = flags.FLAGS.most_foreign_load
    found, sequences = comparison.found, job.sequences
    table = step_table(subjects, found, sequences=sequences, most_foreign=most_foreign)
    print("\n".join(table), flush=True)
    config = job.to_json()
    del config["google_bert_dir"]
    yield from step_results(task, subjects, found, sequences=sequences, config=config)
    comparison.raise_failures()
