"""Runs a turn of a subject: one function of its module, in a separate process."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.subjects import Subject
from bert_tf.util import environment
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]

Found = dict[str, Any]

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "USE_TF": "0",  # transformers would import TensorFlow without using it
    "TOKENIZERS_PARALLELISM": "true",
}


def run_in_process(subject: Subject, job: Mapping[str, Any], function: str) -> Found:
    """Calls ``function(job)`` of the subject's module in a new process, for one turn.

    Adds ``settings`` (the subject's) and ``started`` (the start time of ``time.monotonic``) to the
    job, which is JSON. Returns the findings, also JSON, with the process's ``peak_memory_bytes``.
    Raises UserError if it fails; the reason is the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as directory:
        request = {**job, "settings": dict(subject.settings), "started": time.monotonic()}
        write_json(Path(directory, "job.json"), request)
        program = ["-m", "benchmarks.speed.process", subject.module, function, directory]
        done = subprocess.run(
            [subject.python or sys.executable, *program],
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
        return read_json(Path(directory, "found.json"), what=f"what {subject.name} found")


def run_script(command: Sequence[str], output: Path) -> int:
    """Runs Python with a command line and its output in a file; returns the exit status."""
    with open(output, "wb") as file:
        done = subprocess.run(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode


def processor_seconds() -> float:
    """CPU time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def script_command(script: str, flags: Mapping[str, object]) -> list[str]:
    """The command line of an entry script, without the interpreter."""
    return [str(ROOT / script), *(as_flag(name, value) for name, value in flags.items())]


def as_flag(name: str, value: object) -> str:
    """Formats a flag for a command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"


def _child(module: str, function: str, directory: str) -> None:
    """The process of one turn."""
    job = read_json(Path(directory, "job.json"), what="job")
    environment.prepare_environment(verbose=False)
    try:
        found = getattr(importlib.import_module(module), function)(job)
    except Exception as error:
        # The parent shows one line; the location is for those who run this module by hand.
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
        raise SystemExit(1) from error
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_json(Path(directory, "found.json"), {**found, "peak_memory_bytes": peak})


if __name__ == "__main__":
    _child(*sys.argv[1:])
