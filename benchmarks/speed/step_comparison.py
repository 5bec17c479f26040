"""The comparison of training steps, from flags to results: what two benchmarks have in common."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.rank_jobs import read_network
from benchmarks.speed.process import run_in_process
from benchmarks.speed.report import machine_line, step_results, step_table
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import (
    BERT_BASE,
    SUBJECTS,
    Subject,
    chosen_subjects,
    default_subjects,
)
from benchmarks.speed.turns import Disturbance, take_turns
from bert_tf import environment
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json

_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_pretraining.py", "run_squad.py")


def compare_steps(task: str) -> None:
    """Runs the comparison of the flags; prints a table and writes the results."""
    values = flags.FLAGS
    job = _job(task, values)
    subjects = _subjects(values)
    disturbance = Disturbance(values.most_foreign_load, values.retries)
    print(machine_line(), flush=True)

    def measure(subject: Subject) -> dict:
        found = run_in_process(subject, job.to_json(), "train")
        rate = job.sequences / found["seconds"]
        print(f"{subject.name}: {rate:.4g} sequences/s", flush=True)
        return found

    comparison = take_turns(subjects, measure, turns=values.turns, disturbance=disturbance)
    print()
    for line in step_table(
        subjects,
        comparison.found,
        sequences=job.sequences,
        most_foreign=disturbance.most_foreign,
    ):
        print(line, flush=True)
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
    if values.seq_length > network.max_position_embeddings:
        raise UserError(
            f"--seq_length={values.seq_length} is more than the network's "
            f"{network.max_position_embeddings} positions; lower it."
        )
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
        google_bert_dir=google_bert_dir(values),
    )


def google_bert_dir(values: flags.FlagValues) -> str | None:
    """The directory of --google_bert_dir; raises UserError where it lacks what is run."""
    if values.google_bert_dir is None:
        return None
    for name in _GOOGLE_FILES:
        require_file(Path(values.google_bert_dir, name), flag="google_bert_dir")
    return str(Path(values.google_bert_dir).resolve())


def _subjects(values: flags.FlagValues) -> list[Subject]:
    has_google_bert = values.google_bert_dir is not None
    if values.subjects:
        return chosen_subjects(values.subjects, has_google_bert=has_google_bert)
    features = describe_machine()["cpu_features"]
    return default_subjects(cpu_features=features, has_google_bert=has_google_bert)


def define_comparison_flags(subjects: dict[str, Subject] = SUBJECTS) -> None:
    """Flags of every comparison whose subjects take turns in processes of their own."""
    flags.DEFINE_list("subjects", [], f"Who takes part, of {', '.join(subjects)}; all by default.")
    flags.DEFINE_string("bert_config_file", None, "The network; BERT-base if not given.")
    flags.DEFINE_string("google_bert_dir", None, "A checkout of google-research/bert.")
    flags.DEFINE_integer("threads", None, "Cores to use; all if not given.", lower_bound=1)
    flags.DEFINE_integer("turns", 5, "Processes of every subject.", lower_bound=1)
    flags.DEFINE_float(
        "most_foreign_load", 0.06, "Larger shares of the machine taken by others spoil a turn."
    )
    flags.DEFINE_integer("retries", 2, "How often a spoilt turn is taken again.", lower_bound=0)
    flags.DEFINE_string("json", None, "Where to write the results.")


def define_step_flags(*, batch_size: int, seq_length: int) -> None:
    """The flags of a comparison of training steps, with the defaults of its task."""
    define_comparison_flags()
    flags.DEFINE_integer("batch_size", batch_size, "Sequences of a micro batch.", lower_bound=1)
    flags.DEFINE_integer("seq_length", seq_length, "Tokens of a sequence.", lower_bound=2)
    flags.DEFINE_integer("accumulation_steps", 1, "Micro batches of an update.", lower_bound=1)
    flags.DEFINE_integer("warmup_steps", 3, "Steps before the timed ones.", lower_bound=1)
    flags.DEFINE_integer("steps", 5, "Timed steps of a turn.", lower_bound=1)
