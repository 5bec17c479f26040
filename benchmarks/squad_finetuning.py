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
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.squad_subjects import SUBJECTS, Job, Run, Subject, run_subject
from bert_tf.command_line import run_command
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, read_json, require_file, write_json
from bert_tf.squad.examples import SquadFile, read_squad
from bert_tf.squad.metrics import evaluate

Result = dict[str, Any]

_JOB_FLAGS = (
    "max_seq_length",
    "doc_stride",
    "train_batch_size",
    "predict_batch_size",
    "learning_rate",
    "num_train_epochs",
    "warmup_proportion",
    "weight_decay",
    "version_2_with_negative",
)
_SPEEDS = {"training": "train_timings", "prediction": "predict_timings"}
_SCORES = ("exact_match", "f1")


def cut_squad(source: Path, most_questions: int, target: Path) -> Path:
    """Writes a SQuAD file with so many questions, spread evenly over those of another one."""
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
        medians = {}
        for subject, turns in runs.items():
            rates = [rate(getattr(run, attribute), skipped=skipped) for run in turns]
            medians[subject] = statistics.median(rates)
            results.append(
                _result(name, subject, medians[subject], "sequences/s", {**config, "turns": rates})
            )
        results += _comparisons(name, medians, "ratio", config, lambda ours, peer: ours / peer)
    return results


def score_results(
    scores: Mapping[str, Sequence[Mapping[str, float]]], *, config: Mapping[str, Any]
) -> list[Result]:
    """Means of the seeds of every subject, with their spread, and what ours is above the others."""
    results = []
    for name in _SCORES:
        means = {}
        for subject, of_seeds in scores.items():
            values = [score[name] for score in of_seeds]
            means[subject] = statistics.mean(values)
            deviation = statistics.stdev(values) if len(values) > 1 else None
            details = {**config, "of_seeds": values, "standard_deviation": deviation}
            results.append(_result(name, subject, means[subject], "%", details))
        results += _comparisons(name, means, "points", config, lambda ours, peer: ours - peer)
    return results


def _comparisons(
    name: str,
    values: Mapping[str, float],
    unit: str,
    config: Mapping[str, Any],
    compare: Callable[[float, float], float],
) -> list[Result]:
    return [
        _result(
            f"{name}, {ours} to {peer}", ours, compare(values[ours], values[peer]), unit, config
        )
        for ours in values
        for peer in values
        if SUBJECTS[ours].is_ours and not SUBJECTS[peer].is_ours
    ]


def _result(name: str, subject: str, value: float, unit: str, config: Mapping[str, Any]) -> Result:
    return {
        "name": name,
        "subject": subject,
        "value": value,
        "unit": unit,
        "config": {**config, **describe_machine()},
    }


def print_table(results: Sequence[Result]) -> None:
    """A line for each result, with the spread where there is one."""
    machine = describe_machine()
    features = " ".join(machine["cpu_features"])
    print(f"\n{machine['cpu']}, {machine['cores']} cores, {features}")
    for result in results:
        deviation = result["config"].get("standard_deviation")
        spread = "" if deviation is None else f" (standard deviation {deviation:.2f})"
        name = result["name"]
        label = name if result["unit"] in ("ratio", "points") else f"{name}, {result['subject']}"
        print(f"{label:60} {result['value']:10.2f} {result['unit']}{spread}")


def measure() -> None:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    is_quality = values.mode == "quality"
    subjects = chosen_subjects(values.subjects)
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
        squad = _read_squad(job)
        scores = {name: [_score(squad, run) for run in of_seeds] for name, of_seeds in runs.items()}
        results += score_results(scores, config=config)
    print_table(results)
    if values.json:
        write_json(values.json, results)


def chosen_subjects(text: str) -> list[Subject]:
    """The subjects of a comma-separated list; raises UserError for a name that is none."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in SUBJECTS]
    if unknown:
        raise UserError(f"--subjects: {unknown[0]!r} is none of {', '.join(SUBJECTS)}.")
    needed = "torch", "transformers"
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing and not all(SUBJECTS[name].is_ours for name in names):
        raise UserError(f"--subjects: the peer needs {missing[0]}; install the dev requirements.")
    return [SUBJECTS[name] for name in names]


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


def _read_squad(job: Job) -> SquadFile:
    return read_squad(
        job.predict_file,
        flag="predict_file",
        version_2_with_negative=job.flags["version_2_with_negative"],
        needs_answers=False,
    )


def _score(squad: SquadFile, run: Run) -> dict[str, float]:
    return evaluate(squad, read_json(run.predictions, what="predictions"))


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.squad_finetuning``."""
    flags.DEFINE_enum("mode", None, ["throughput", "quality"], "What to compare.", required=True)
    for name, text in {
        "init_checkpoint": "Directory of Hugging Face's form: config, vocabulary, weights.",
        "train_file": "SQuAD JSON to train on.",
        "predict_file": "SQuAD JSON to answer.",
        "work_dir": "Where runs are kept; a comparison started again goes on from there.",
    }.items():
        flags.DEFINE_string(name, None, text, required=True)
    flags.DEFINE_string(
        "subjects",
        "ours-auto,transformers-fp32-malloc,transformers-bf16-malloc",
        f"Comma-separated, of {', '.join(SUBJECTS)}.",
    )
    flags.DEFINE_string("seeds", "1,2,3", "Seeds of --mode=quality.")
    flags.DEFINE_integer("turns", 3, "Runs of every subject in --mode=throughput.")
    flags.DEFINE_integer("untimed_steps", 10, "Steps at the start that no rate counts.")
    flags.DEFINE_integer("timed_steps", 20, "Steps after these, in --mode=throughput.")
    flags.DEFINE_integer("max_train_questions", None, "Train on so many, spread over the file.")
    flags.DEFINE_integer("max_predict_questions", None, "Answer so many, spread over the file.")
    flags.DEFINE_integer("max_seq_length", 384, "As in run_squad.py.")
    flags.DEFINE_integer("doc_stride", 128, "Step between windows (ours), overlap (the peer's).")
    flags.DEFINE_integer("train_batch_size", 12, "As in run_squad.py.")
    flags.DEFINE_integer("predict_batch_size", 8, "As in run_squad.py.")
    flags.DEFINE_float("learning_rate", 3e-5, "As in run_squad.py.")
    flags.DEFINE_float("num_train_epochs", 2.0, "As in run_squad.py; 1 in --mode=throughput.")
    flags.DEFINE_float("warmup_proportion", 0.1, "As in run_squad.py.")
    flags.DEFINE_float("weight_decay", 0.01, "As in run_squad.py.")
    flags.DEFINE_bool("version_2_with_negative", False, "As in run_squad.py.")
    flags.DEFINE_string("json", None, "Where to write the results.")


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: measure())
