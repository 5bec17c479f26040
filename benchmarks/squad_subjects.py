"""Who takes part in the comparison of SQuAD fine-tuning, and running one of them once.

A run is a process with a directory of its own. What it gave is kept there, so that a comparison
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.transformers_squad import PREDICTIONS_NAME, RESULT_NAME
from bert_tf.errors import UserError
from bert_tf.files import read_json, sha256_of_file, write_json
from bert_tf.records.manifest import hash_of_json

ROOT = Path(__file__).resolve().parents[1]
# With these glibc keeps big blocks, and torch takes no page faults in every step. TensorFlow has
# an allocator of its own and gains nothing.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
_OUTPUT_NAME, _DONE_NAME = "output.txt", "run.json"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program with the settings that make it a contestant of its own.

    Attributes:
      name: in tables and flags.
      is_ours: run_squad.py or transformers.
      flags: beside those of the job.
      environment: variables of its process.
    """

    name: str
    is_ours: bool
    flags: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def _subjects() -> dict[str, Subject]:
    ours = [Subject(f"ours-{p}", True, (f"--precision={p}",)) for p in ("auto", "fp32", "bf16")]
    peers = []
    for precision in ("fp32", "bf16"):
        flags = (f"--precision={precision}",)
        name = f"transformers-{precision}"
        peers.append(Subject(name, False, flags))
        peers.append(Subject(f"{name}-malloc", False, flags, MALLOC))
        peers.append(
            Subject(f"{name}-malloc-dynamic", False, (*flags, "--nopad_to_max_length"), MALLOC)
        )
    return {subject.name: subject for subject in [*ours, *peers]}


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
        return hash_of_json([hashes, self.flags, subject.flags, subject.environment])


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
    if subject.is_ours:
        # The peer's AdamW corrects the bias of its moments; google's, our default, does not.
        program = ["run_squad.py", "--do_train", "--do_predict", "--adam_bias_correction"]
        program.append("--display_loss_steps=1")
    else:
        program = ["-m", "benchmarks.transformers_squad"]
    paths = {
        "init_checkpoint": job.init_checkpoint.resolve(),
        "train_file": job.train_file.resolve(),
        "predict_file": job.predict_file.resolve(),
        "output_dir": output_dir.resolve(),
    }
    return [*program, *(f"--{n}={v}" for n, v in {**paths, **job.flags}.items()), *subject.flags]


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
        seconds = _execute(subject, command(subject, job, output_dir), directory / _OUTPUT_NAME)
        write_json(done, {"key": key, "seconds": seconds})
    train_timings, predict_timings = _timings(subject, job, output_dir)
    return Run(
        output_dir / PREDICTIONS_NAME,
        train_timings,
        predict_timings,
        read_json(done, what="finished run")["seconds"],
    )


def _execute(subject: Subject, words: Sequence[str], output: Path) -> float:
    """Runs a command with its output in a file; returns its seconds."""
    print(f"$ python {' '.join(map(shlex.quote, words))}", flush=True)
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "USE_TF": "0",  # transformers would import TensorFlow, only to have it
        "TOKENIZERS_PARALLELISM": "true",
        **subject.environment,
    }
    start = time.monotonic()
    with open(output, "w", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise UserError(f"{subject.name} ended with status {done.returncode}; {output} says why.")
    return time.monotonic() - start


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
