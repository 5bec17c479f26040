"""The comparison of training steps, from flags to results: what two benchmarks have in common."""

from __future__ import annotations

from absl import flags

from benchmarks.rank_jobs import read_network
from benchmarks.speed.comparison import (
    check_length,
    compare,
    define_comparison_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.report import step_results, step_table
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import BERT_BASE, SUBJECTS
from bert_tf import environment
from bert_tf.errors import UserError
from bert_tf.files import write_json

_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_pretraining.py", "run_squad.py")


def compare_steps(task: str) -> None:
    """Runs the comparison of the flags; prints a table and writes the results."""
    values = flags.FLAGS
    job = _job(task, values)
    subjects = subjects_from_flags(SUBJECTS)
    comparison = compare(
        subjects,
        job.to_json(),
        "train",
        lambda found: f"{job.sequences / found['seconds']:.4g} sequences/s",
    )
    table = step_table(
        subjects,
        comparison.found,
        sequences=job.sequences,
        most_foreign=values.most_foreign_load,
    )
    print("\n".join(table), flush=True)
    if values.json:
        config = job.to_json()
        del config["google_bert_dir"]
        results = step_results(
            task, subjects, comparison.found, sequences=job.sequences, config=config
        )
        write_json(values.json, results)
    comparison.raise_failures()


def _job(task: str, values: flags.FlagValues) -> StepJob:
    network = read_network(values.bert_config_file, BERT_BASE)
    check_length(values.seq_length, network.max_position_embeddings)
    predictions = values.predictions if task == PRETRAINING else 0
    if predictions > values.seq_length:
        raise UserError(f"--predictions={predictions} is more than --seq_length; lower it.")
    return StepJob(
        task=task,
        network=network,
        batch_size=values.batch_size,
        seq_length=values.seq_length,
        predictions=predictions,
        accumulation_steps=values.accumulation_steps,
        threads=values.threads or environment.available_cores(),
        warmup_steps=values.warmup_steps,
        timed_steps=values.steps,
        google_bert_dir=google_bert_dir_from_flags(_GOOGLE_FILES),
    )


def define_step_flags(*, batch_size: int, seq_length: int) -> None:
    """The flags of a comparison of training steps, with the defaults of its task."""
    define_comparison_flags(SUBJECTS)
    flags.DEFINE_string("bert_config_file", None, "The network; BERT-base if not given.")
    flags.DEFINE_integer("batch_size", batch_size, "Sequences of a micro batch.", lower_bound=1)
    flags.DEFINE_integer("seq_length", seq_length, "Tokens of a sequence.", lower_bound=2)
    flags.DEFINE_integer("accumulation_steps", 1, "Micro batches of an update.", lower_bound=1)
    flags.DEFINE_integer("warmup_steps", 3, "Steps before the timed ones.", lower_bound=1)
    flags.DEFINE_integer("steps", 5, "Timed steps of a turn.", lower_bound=1)
