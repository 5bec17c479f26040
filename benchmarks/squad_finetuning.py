"""SQuAD fine-tuning against transformers' question-answering example: speed and scores.

    python -m benchmarks.squad_finetuning --mode=throughput --init_checkpoint=DIR \
        --train_file=train-v1.1.json --predict_file=dev-v1.1.json --work_dir=work
    python -m benchmarks.squad_finetuning --mode=quality --seeds=1,2,3 ... --json=results.json

Every subject (``--subjects``) starts from the same weights, with a head drawn from the same
distribution (normal, 0.02), gets the same files and hyper-parameters, and is scored by the official
metric. Each run is a process of its own; what is finished is kept in ``--work_dir``.

``throughput``: a few steps and a few questions spread over the files, several turns in which the
subjects alternate; sequences a second without the first steps, the median of the turns, and the
ratio to ``ours``. ``quality``: the whole fine-tuning with each seed; mean and standard deviation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine, machine_line
from benchmarks.results import Result, result
from benchmarks.script import define_flag, define_shared_flags, known_names, run_benchmark
from benchmarks.speed.subjects import Subject
from benchmarks.squad_subjects import SUBJECTS, Job, Run, run_subject
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, read_json, require_file, write_json
from bert_tf.squad.examples import read_squad
from bert_tf.squad.metrics import evaluate

# Flags of the job, as in run_squad.py, with their defaults.
_JOB_FLAGS = {
    "max_seq_length": 384,
    "doc_stride": 128,
    "train_batch_size": 12,
    "predict_batch_size": 8,
    "learning_rate": 3e-5,
    "num_train_epochs": 2.0,
    "warmup_proportion": 0.1,
    "weight_decay": 0.01,
    "version_2_with_negative": False,
}
_SPEEDS = {"training": "train_timings", "prediction": "predict_timings"}
_SCORES = ("exact_match", "f1")


def cut_squad(source: Path, most_questions: int, target: Path) -> Path:
    """Writes a SQuAD file with some questions of another one, spread evenly over them."""
    content = read_json(source, what="SQuAD file")
    total = sum(len(p["qas"]) for article in content["data"] for p in article["paragraphs"])
    kept, number, articles = min(most_questions, total), 0, []
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            questions = []
            for question in paragraph["qas"]:
                number += 1
                if number * kept // total > (number - 1) * kept // total:
                    questions.append(question)
            if questions:
                paragraphs.append({**paragraph, "qas": questions})
        if paragraphs:
            articles.append({**article, "paragraphs": paragraphs})
    write_json(target, {**content, "data": articles})
    return target


def rate(timings: Sequence[tuple[int, float]], *, skipped: int) -> float:
    """Sequences a second without the first ``skipped`` batches; with them if there are no more."""
    timed = timings[skipped:] or timings
    return sum(sequences for sequences, _ in timed) / sum(seconds for _, seconds in timed)


def speed_results(
    runs: Mapping[str, Sequence[Run]], *, skipped: int, config: Mapping[str, Any]
) -> list[Result]:
    """Medians of the turns of every subject, and how many times faster ours is than the others."""
    results = []
    for name, attribute in _SPEEDS.items():
        rates = {
            subject: [rate(getattr(run, attribute), skipped=skipped) for run in turns]
            for subject, turns in runs.items()
        }
        rows = [
            result(name, statistics.median(r), "sequences/s", {**config, "turns": r}, subject)
            for subject, r in rates.items()
        ]
        results += _with_comparisons(rows, "ratio", config, operator.truediv)
    return results


def score_results(
    scores: Mapping[str, Sequence[Mapping[str, float]]], *, config: Mapping[str, Any]
) -> list[Result]:
    """Means of the seeds of every subject, with their spread, and what ours is above the others."""
    results = []
    for name in _SCORES:
        rows = []
        for subject, of_seeds in scores.items():
            values = [score[name] for score in of_seeds]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            described = {**config, "of_seeds": values, "standard_deviation": deviation}
            rows.append(result(name, statistics.mean(values), "%", described, subject))
        results += _with_comparisons(rows, "points", config, operator.sub)
    return results


def _with_comparisons(
    rows: Sequence[Result],
    unit: str,
    config: Mapping[str, Any],
    compare: Callable[[float, float], float],
) -> list[Result]:
    """A row of each subject and those of ours against each peer, all with the machine."""
    compared = [
        result(
            f"{ours['name']}, {ours['subject']} to {peer['subject']}",
            compare(ours["value"], peer["value"]),
            unit,
            config,
            ours["subject"],
        )
        for ours in rows
        for peer in rows
        if SUBJECTS[ours["subject"]].is_ours and not SUBJECTS[peer["subject"]].is_ours
    ]
    machine = describe_machine()
    return [{**row, "config": {**row["config"], **machine}} for row in (*rows, *compared)]


def print_table(results: Sequence[Result]) -> None:
    """A line for each result, with the spread where there is one."""
    print(f"\n{machine_line()}")
    for row in results:
        deviation = row["config"].get("standard_deviation")
        spread = "" if deviation is None else f" (standard deviation {deviation:.2f})"
        is_comparison = row["unit"] in ("ratio", "points")
        label = row["name"] if is_comparison else f"{row['name']}, {row['subject']}"
        print(f"{label:60} {row['value']:10.2f} {row['unit']}{spread}")


def measure() -> Iterator[Result]:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    is_quality = values.mode == "quality"
    subjects = _chosen_subjects()
    seeds = parse_seeds(values.seeds) if is_quality else list(range(1, values.turns + 1))
    work_dir = make_output_dir(values.work_dir, flag="work_dir")
    job = _job(values, work_dir)
    runs: dict[str, list[Run]] = {subject.name: [] for subject in subjects}
    for seed in seeds:  # the subjects alternate, so that a machine that slows down slows all
        for subject in subjects:
            seeded = dataclasses.replace(job, flags={**job.flags, "seed": seed})
            directory = work_dir / f"{values.mode}-{subject.name}-{seed}"
            runs[subject.name].append(run_subject(subject, seeded, directory))
    files = {"train_file": job.train_file.name, "predict_file": job.predict_file.name}
    config = {**job.flags, **files, "seeds": seeds}
    results = speed_results(runs, skipped=values.untimed_steps, config=config)
    if is_quality:
        squad = read_squad(
            job.predict_file,
            flag="predict_file",
            version_2_with_negative=job.flags["version_2_with_negative"],
            needs_answers=False,
        )
        scores = {
            name: [evaluate(squad, read_json(run.predictions, what="predictions")) for run in of]
            for name, of in runs.items()
        }
        results += score_results(scores, config=config)
    print_table(results)
    yield from results


def _chosen_subjects() -> list[Subject]:
    """The subjects of the flag; raises UserError where what they need is not installed."""
    subjects = [SUBJECTS[name] for name in known_names("subjects", SUBJECTS)]
    needed = "torch", "transformers"
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing and not all(subject.is_ours for subject in subjects):
        raise UserError(f"--subjects: the peer needs {missing[0]}; install the dev requirements.")
    return subjects


def parse_seeds(text: str) -> list[int]:
    """The numbers of a comma-separated list; raises UserError for anything else."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds={text}: give whole numbers with commas between them.") from None


def _job(values: flags.FlagValues, work_dir: Path) -> Job:
    """The job of all subjects, on files that are cut to what is to be measured."""
    checkpoint = Path(values.init_checkpoint)
    require_file(checkpoint / "config.json", flag="init_checkpoint")
    job_flags = {name: values[name].value for name in _JOB_FLAGS}
    most = {"train_file": values.max_train_questions, "predict_file": values.max_predict_questions}
    if values.mode == "throughput":
        steps = values.untimed_steps + values.timed_steps
        default = {
            "train_file": steps * values.train_batch_size,
            "predict_file": steps * values.predict_batch_size,
        }
        most = {name: most[name] or default[name] for name in most}
        job_flags["num_train_epochs"] = 1.0
    files = {}
    for name, number in most.items():
        files[name] = require_file(values[name].value, flag=name)
        if number is not None:
            target = work_dir / f"{files[name].stem}-{number}.json"
            files[name] = cut_squad(files[name], number, target)
    return Job(checkpoint, **files, flags=job_flags)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.squad_finetuning``."""
    flags.DEFINE_enum("mode", None, ["throughput", "quality"], "What to compare.", required=True)
    for name, text in {
        "init_checkpoint": "Directory of Hugging Face's form: config, vocabulary, weights.",
        "train_file": "SQuAD JSON to train on.",
        "predict_file": "SQuAD JSON to answer.",
        "work_dir": "Where runs are kept; a comparison started again resumes from there.",
    }.items():
        flags.DEFINE_string(name, None, text, required=True)
    default = ["ours-auto", "transformers-fp32-malloc", "transformers-bf16-malloc"]
    flags.DEFINE_list("subjects", default, f"Of {', '.join(SUBJECTS)}.")
    flags.DEFINE_string("seeds", "1,2,3", "Seeds of --mode=quality.")
    flags.DEFINE_integer("turns", 3, "Runs of every subject in --mode=throughput.")
    flags.DEFINE_integer("untimed_steps", 10, "Steps at the start that no rate counts.")
    flags.DEFINE_integer("timed_steps", 20, "Steps after these, in --mode=throughput.")
    flags.DEFINE_integer("max_train_questions", None, "Train on this many, spread over the file.")
    flags.DEFINE_integer("max_predict_questions", None, "Answer this many, spread over the file.")
    notes = {"doc_stride": "Step between windows (ours), overlap (the peer's)."}
    notes["num_train_epochs"] = "As in run_squad.py; 1 in --mode=throughput."
    for name, default in _JOB_FLAGS.items():
        define_flag(name, default, notes.get(name, "As in run_squad.py."))
    define_shared_flags("json")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
