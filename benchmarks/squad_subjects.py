"""Who takes part in the comparison of SQuAD fine-tuning, and running one of them once.

A run is a process with a directory of its own. What it gave is kept there, so that a comparison
that was interrupted resumes where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.process import ROOT, as_flag, run_logged
from benchmarks.speed.subjects import MALLOC, Subject
from benchmarks.transformers_squad import PREDICTIONS_NAME, RESULT_NAME
from bert_tf.files import read_json, sha256_of_file, write_json
from bert_tf.records.manifest import hash_of_json

_OUTPUT_NAME, _DONE_NAME = "output.txt", "run.json"
_OURS, _PEER = "run_squad", "benchmarks.transformers_squad"


def _subjects() -> dict[str, Subject]:
    """Programs whose settings are flags of theirs."""
    subjects = [Subject(f"ours-{p}", _OURS, {"precision": p}) for p in ("auto", "fp32", "bf16")]
    for precision in ("fp32", "bf16"):
        name, settings = f"transformers-{precision}", {"precision": precision}
        cut = {**settings, "pad_to_max_length": False}
        subjects.append(Subject(name, _PEER, settings))
        subjects.append(Subject(f"{name}-malloc", _PEER, settings, MALLOC))
        subjects.append(Subject(f"{name}-malloc-dynamic", _PEER, cut, MALLOC))
    return {subject.name: subject for subject in subjects}


SUBJECTS = _subjects()


@dataclasses.dataclass(frozen=True)
class Job:
    """What every subject is to do: weights, data and hyper-parameters.

    Attributes:
      init_checkpoint: directory of Hugging Face's form, which both sides read.
      train_file, predict_file: SQuAD files.
      flags: name to value, the same for both sides.
    """

    init_checkpoint: Path
    train_file: Path
    predict_file: Path
    flags: dict[str, Any]

    def key(self, subject: Subject) -> str:
        """Changes with everything that a result depends on, but for the code."""
        files = (self.init_checkpoint / "config.json", self.train_file, self.predict_file)
        hashes = [sha256_of_file(path) for path in files]
        return hash_of_json([hashes, self.flags, _flags(subject.settings), subject.environment])


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run gave.

    Attributes:
      predictions: file of answers.
      train_timings: (sequences, seconds) of each stretch of the training, in order.
      predict_timings: the same for the prediction.
      seconds: of the whole process, with its start.
    """

    predictions: Path
    train_timings: list[tuple[int, float]]
    predict_timings: list[tuple[int, float]]
    seconds: float


def command(subject: Subject, job: Job, output_dir: Path) -> list[str]:
    """The command of a run, without the interpreter."""
    program = ["-m", subject.module]
    if subject.is_ours:
        # The peer's AdamW corrects the bias of its moments; google's, our default, does not.
        program = ["run_squad.py", "--do_train", "--do_predict", "--adam_bias_correction"]
        program.append("--display_loss_steps=1")
    paths = {
        "init_checkpoint": job.init_checkpoint.resolve(),
        "train_file": job.train_file.resolve(),
        "predict_file": job.predict_file.resolve(),
        "output_dir": output_dir.resolve(),
    }
    given = [f"--{name}={value}" for name, value in {**paths, **job.flags}.items()]
    return [*program, *given, *_flags(subject.settings)]


def _flags(settings: Mapping[str, Any]) -> list[str]:
    return [as_flag(name, value) for name, value in settings.items()]


def run_subject(subject: Subject, job: Job, directory: Path) -> Run:
    """Runs a subject, unless it has finished the same job in this directory before.

    Raises UserError when it fails.
    """
    output_dir = directory / "output"
    done, key = directory / _DONE_NAME, job.key(subject)
    if done.is_file() and read_json(done, what="finished run")["key"] == key:
        print(f"{subject.name}: done before, kept in {directory}", flush=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
        output_dir.mkdir(parents=True)
        words, output = command(subject, job, output_dir), directory / _OUTPUT_NAME
        variables = subject.environment
        seconds = run_logged(subject.name, words, output, directory=ROOT, environment=variables)
        write_json(done, {"key": key, "seconds": seconds})
    train_timings, predict_timings = _timings(subject, job, output_dir)
    return Run(
        output_dir / PREDICTIONS_NAME,
        train_timings,
        predict_timings,
        read_json(done, what="finished run")["seconds"],
    )


def _timings(
    subject: Subject, job: Job, output_dir: Path
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Training's and prediction's stretches from what the program has written."""
    if not subject.is_ours:
        result = read_json(output_dir / RESULT_NAME, what="the peer's result")
        return result["train_timings"], result["predict_timings"]
    lines = (output_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    batch_size = job.flags["train_batch_size"]
    rates = [json.loads(line)["sequences_per_second"] for line in lines]
    results = read_json(output_dir / "eval_results.json", what="results")
    # Its rate is a mean without the first batch already: one stretch stands for all of them.
    predict_rate = results["predict_sequences_per_second"]
    return [(batch_size, batch_size / rate) for rate in rates], [(1, 1 / predict_rate)]
