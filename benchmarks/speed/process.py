"""A turn of a subject: one function of its module, in a separate process."""

from __future__ import annotations

import importlib
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.subjects import Subject
from bert_tf import environment
from bert_tf.errors import UserError, first_line
from bert_tf.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]

Found = dict[str, Any]

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "USE_TF": "0",  # transformers would import TensorFlow, only to have it
    "TOKENIZERS_PARALLELISM": "true",
}


def in_process(
    subject: Subject, job: Mapping[str, Any], function: str, directory: Path
) -> list[str]:
    """The command, without the interpreter, that calls ``function(job)`` of the subject's module.

    The job is written to ``job.json`` of the directory, with the subject's settings and the time of
    the start (of ``time.monotonic``) as ``settings`` and ``started``. What the function returns, as
    JSON, goes to ``found.json`` there.
    """
    request = {**job, "settings": dict(subject.settings), "started": time.monotonic()}
    write_json(directory / "job.json", request)
    return ["-m", "benchmarks.speed.process", subject.module, function, str(directory)]


def run_in_process(subject: Subject, job: Mapping[str, Any], function: str) -> Found:
    """One turn: calls ``function(job)`` of the subject's module in a new process.

    Returns what was found, with the process's ``peak_memory_bytes``. Raises UserError where it
    failed; the reason is the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        words = in_process(subject, job, function, directory)
        done = subprocess.run(
            [subject.python or sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **_QUIET, **subject.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise UserError(lines[-1])
        return read_json(directory / "found.json", what=f"what {subject.name} found")


def run_logged(
    name: str,
    words: Sequence[str],
    output: Path,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a Python program, prints its command, and keeps what it prints.

    Args:
      name: of what is run.
      words: the command without the interpreter.
      output: the file for what it prints.
      directory: where it runs; here if not given.
      environment: further variables of the process.

    Raises:
      UserError: it failed.
    """
    print(f"$ python {' '.join(map(shlex.quote, words))} > {output}", flush=True)
    with open(output, "wb") as file:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=directory,
            env={**os.environ, **_QUIET, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise UserError(
            f"{name} ended with status {done.returncode}; {output} says why. Start again to resume."
        )


def as_flag(name: str, value: object) -> str:
    """A flag on a command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"


def _child(module: str, function: str, directory: str) -> None:
    """The process of one turn."""
    job = read_json(Path(directory, "job.json"), what="job")
    environment.prepare_environment(verbose=False, use_xla=job["settings"].get("xla", False))
    try:
        found = getattr(importlib.import_module(module), function)(job)
    except Exception as error:
        # The parent shows one line; where it broke is for who runs this module by hand.
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
        raise SystemExit(1) from error
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_json(Path(directory, "found.json"), {**found, "peak_memory_bytes": peak})


if __name__ == "__main__":
    _child(*sys.argv[1:])
