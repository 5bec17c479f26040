"""SQuAD fine-tuning against transformers' question-answering example: speed and scores.

    python -m benchmarks.squad_finetuning --mode=throughput --init_checkpoint=DIR \
        --train_file=train-v1.1.json --predict_file=dev-v1.1.json --work_dir=work
    python -m benchmarks.squad_finetuning --mode=quality --seeds=1,2,3 ... --json=results.json

Every subject (``--subjects``) starts from the same weights, with a head drawn from the same
distribution (normal, 0.02), gets the same files and hyper-parameters, and is scored by the official
metric. Each run is a process with its directory in ``--work_dir``; what it found is kept there, so
that a comparison that was interrupted resumes where it stopped.

``throughput``: a few steps and a few questions spread over the files, several turns in which the
subjects alternate; sequences a second without the first steps, the median of the turns, and how
many times faster ours are. ``quality``: the whole fine-tuning with each seed; mean and standard
deviation of the scores.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, print_result, print_table, result
from benchmarks.script import REQUIRED, known_names, run_benchmark, shared_flags
from benchmarks.speed.comparison import Figures, subject_results
from benchmarks.speed.process import ROOT, Found, as_flag, in_process, run_logged
from benchmarks.speed.subjects import MALLOC, Subject, by_name
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, read_json, require_file, sha256_of_file, write_json
from bert_tf.records.manifest import hash_of_json
from bert_tf.squad.answers import PREDICTIONS_NAME
from bert_tf.squad.examples import read_squad
from bert_tf.squad.metrics import evaluate

_JOB_FLAGS = {
    name: (default, "As in run_squad.py.")
    for name, default in {
        "max_seq_length": 384,
        "doc_stride": 128,
        "max_query_length": 64,
        "train_batch_size": 12,
        "predict_batch_size": 8,
        "learning_rate": 3e-5,
        "num_train_epochs": 2.0,
        "warmup_proportion": 0.1,
        "weight_decay": 0.01,
        "version_2_with_negative": False,
    }.items()
}
_PATHS = ("init_checkpoint", "train_file", "predict_file")
_SCORES = ("exact_match", "f1")

Job = Mapping[str, Any]  # a value for each of _JOB_FLAGS and _PATHS, and ``seed``


SUBJECTS = by_name(
    *(Subject(f"ours-{p}", "run_squad", {"precision": p}) for p in ("auto", "fp32", "bf16")),
    *(
        Subject(
            f"transformers-{precision}{ending}",
            "benchmarks.transformers_squad",
            {"precision": precision, "pad_to_max_length": not ending.endswith("dynamic")},
            MALLOC if ending else {},
        )
        for precision in ("fp32", "bf16")
        for ending in ("", "-malloc", "-malloc-dynamic")
    ),
)


def command(subject: Subject, job: Job, directory: Path) -> list[str]:
    """The command of a run that writes to ``directory``, without the interpreter."""
    if not subject.is_ours:
        return in_process(subject, job, "fine_tune", directory)
    # The peer's AdamW corrects the bias of its moments; google's, our default, does not.
    fixed = {"do_train": True, "do_predict": True, "adam_bias_correction": True}
    given = {**fixed, "display_loss_steps": 1, **job, **subject.settings, "output_dir": directory}
    return ["run_squad.py", *(as_flag(name, value) for name, value in given.items())]


def run_subject(subject: Subject, job: Job, directory: Path) -> Found:
    """Runs a subject, unless it has finished the same job in this directory before.

    Returns ``answers`` by question, and ``train_timings`` and ``predict_timings``: the sequences
    and the seconds of each stretch, in order. Raises UserError when it fails.
    """
    files = [Path(job["init_checkpoint"], "config.json"), job["train_file"], job["predict_file"]]
    hyper_parameters = {name: value for name, value in job.items() if name not in _PATHS}
    how = [dict(subject.settings), dict(subject.environment)]
    # It changes with everything that a result depends on, but for the code.
    key = hash_of_json([[sha256_of_file(path) for path in files], hyper_parameters, how])
    directory, done = directory.resolve(), directory / "finished.json"
    if done.is_file() and read_json(done, what="finished run")["key"] == key:
        print(f"{subject.name}: done before, kept in {directory}", flush=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        words, output = command(subject, job, directory), directory / "output.txt"
        run_logged(subject.name, words, output, directory=ROOT, environment=subject.environment)
        write_json(done, {"key": key})
    if not subject.is_ours:
        return read_json(directory / "found.json", what="the peer's result")
    size = job["train_batch_size"]
    lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [json.loads(line)["sequences_per_second"] for line in lines]
    results = read_json(directory / "eval_results.json", what="results")
    return {
        "answers": read_json(directory / PREDICTIONS_NAME, what="predictions"),
        "train_timings": [(size, size / rate) for rate in rates],
        # Its rate is a mean without the first batch already: one stretch stands for all of them.
        "predict_timings": [(1, 1 / results["predict_sequences_per_second"])],
    }


def cut_squad(source: Path, most_questions: int, target: Path) -> Path:
    """Writes a SQuAD file with some questions of another one, spread evenly over them."""
    content = read_json(source, what="SQuAD file")
    paragraphs = [p for article in content["data"] for p in article["paragraphs"]]
    total = sum(len(paragraph["qas"]) for paragraph in paragraphs)
    kept, number = min(most_questions, total), 0
    for paragraph in paragraphs:
        numbered = list(enumerate(paragraph["qas"], number))
        number += len(numbered)
        paragraph["qas"] = [q for n, q in numbered if (n + 1) * kept // total > n * kept // total]
    for article in content["data"]:
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    content["data"] = [article for article in content["data"] if article["paragraphs"]]
    write_json(target, content)
    return target


def rate(timings: Sequence[tuple[int, float]], *, skipped: int) -> float:
    """Sequences a second without the first ``skipped`` batches; with them if there are no more."""
    timed = timings[skipped:] or timings
    return sum(sequences for sequences, _ in timed) / sum(seconds for _, seconds in timed)


def score_results(
    scores: Mapping[str, Sequence[Mapping[str, float]]], config: Mapping[str, Any]
) -> Iterator[Result]:
    """Means of the seeds of every subject, with their spread."""
    for name in _SCORES:
        for subject, of_seeds in scores.items():
            values = [score[name] for score in of_seeds]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            described = {**config, "turns": values, "standard_deviation": deviation}
            yield result(name, statistics.mean(values), "%", described, subject)


def measure() -> Iterator[Result]:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    is_quality = values.mode == "quality"
    subjects = _chosen_subjects()
    seeds = parse_seeds(values.seeds) if is_quality else list(range(1, values.turns + 1))
    work_dir = make_output_dir(values.work_dir, flag="work_dir")
    job = _job(values, work_dir)
    found: dict[str, list[Found]] = {subject.name: [] for subject in subjects}
    for seed in seeds:  # the subjects alternate, so that a machine that slows down slows all
        for subject in subjects:
            directory = work_dir / f"{values.mode}-{subject.name}-{seed}"
            found[subject.name].append(run_subject(subject, {**job, "seed": seed}, directory))
    names = {name: Path(job[name]).name for name in _PATHS}
    config = {**job, **names, "seeds": seeds}
    print(machine_line(), flush=True)
    for name, timings in (("training", "train_timings"), ("prediction", "predict_timings")):

        def figures(run: Found, name: str = name, timings: str = timings) -> Figures:
            return {name: (rate(run[timings], skipped=values.untimed_steps), "sequences/s")}

        results = subject_results(subjects, found, figures, config=config)
        print_table(results)
        yield from results
    if is_quality:
        squad = read_squad(
            job["predict_file"],
            flag="predict_file",
            version_2_with_negative=job["version_2_with_negative"],
            needs_answers=False,
        )
        scores = {n: [evaluate(squad, run["answers"]) for run in runs] for n, runs in found.items()}
        for row in score_results(scores, config):
            print_result(row, label=f"{row['name']}, {row['subject']}")
            yield row


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


def _job(values: flags.FlagValues, work_dir: Path) -> dict[str, Any]:
    """The job of all subjects, on files that are cut to what is to be measured."""
    checkpoint = Path(values.init_checkpoint).resolve()
    require_file(checkpoint / "config.json", flag="init_checkpoint")
    job = {name: values[name].value for name in _JOB_FLAGS}
    most = {"train_file": values.max_train_questions, "predict_file": values.max_predict_questions}
    if values.mode == "throughput":
        job["num_train_epochs"] = 1.0
        steps = values.untimed_steps + values.timed_steps
        sizes = {"train_file": job["train_batch_size"], "predict_file": job["predict_batch_size"]}
        most = {name: most[name] or steps * size for name, size in sizes.items()}
    job["init_checkpoint"] = str(checkpoint)
    for name, number in most.items():
        path = require_file(values[name].value, flag=name)
        if number is not None:
            path = cut_squad(path, number, work_dir / f"{path.stem}-{number}.json")
        job[name] = str(path.resolve())
    return job


FLAGS = {
    "mode": (("throughput", "quality"), "What to compare."),
    "init_checkpoint": (REQUIRED, "Directory of Hugging Face's form: config, vocabulary, weights."),
    "train_file": (REQUIRED, "SQuAD JSON to train on."),
    "predict_file": (REQUIRED, "SQuAD JSON to answer."),
    "work_dir": (REQUIRED, "Where runs are kept; a comparison started again resumes from there."),
    "subjects": (
        ["ours-auto", "transformers-fp32-malloc", "transformers-bf16-malloc"],
        f"Of {', '.join(SUBJECTS)}.",
    ),
    "seeds": ("1,2,3", "Seeds of --mode=quality."),
    "turns": (3, "Runs of every subject in --mode=throughput."),
    "untimed_steps": (10, "Steps at the start that no rate counts."),
    "timed_steps": (20, "Steps after these, in --mode=throughput, which makes one epoch."),
    "max_train_questions": (int, "Train on this many, spread over the file."),
    "max_predict_questions": (int, "Answer this many, spread over the file."),
    **_JOB_FLAGS,
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
