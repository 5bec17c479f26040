"""Runs the programs of the project as a user would. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.helpers import preloaded

ROOT = Path(__file__).resolve().parents[2]

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# What the caller says is installed: where it is missing, tests fail and are not skipped.
NEEDED = os.environ.get("BERT_TF_TESTS_NEED", "").split()


def skip_without(part: str, reason: str) -> None:
    """Skips a test that cannot run without ``part``; fails it where that should be there."""
    if part in NEEDED:
        pytest.fail(f"{part} should be installed: {reason}")
    pytest.skip(reason)


requires_horovod = pytest.mark.skipif(
    "horovod" not in NEEDED
    and (importlib.util.find_spec("horovod") is None or not shutil.which("mpirun", path=_PATH)),
    reason="the distributed parts are not installed: make setup without HOROVOD=0",
)


def environment() -> dict[str, str]:
    """The environment of a program: this interpreter's directory first, the project importable."""
    return {
        **os.environ,
        "PATH": _PATH,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Open MPI refuses to run as root unless told twice; containers often are root.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def python(env: Mapping[str, str] | None = None) -> list[str]:
    """What starts a program as the interpreter does, with TensorFlow loaded.

    Its process has another parent than whoever started it, and ends with it. ``env`` is what it is
    started with, if not :func:`environment`.
    """
    address = preloaded.address(env or environment())
    return [sys.executable, "-IS", preloaded.__file__, address]


def run(
    *command: object,
    check: bool = True,
    timeout: int = 300,
    text: str = "",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    fresh: bool = False,
    python: str = sys.executable,
) -> subprocess.CompletedProcess:
    """Runs ``python command`` in the project's directory and returns its output.

    ``text`` is its standard input, ``env`` what it has instead of :func:`environment`; ``fresh``
    starts ``python`` anew, in the project's directory and with its environment alone.
    """
    command = list(map(str, command))
    env = env or environment()
    if fresh:
        return _finish([python, *command], check, timeout)
    done = preloaded.run(command, cwd=cwd, env=env, timeout=timeout, text=text)
    return _checked(done, check)


def mpirun(
    ranks: int, *command: object, check: bool = True, timeout: int = 300
) -> subprocess.CompletedProcess:
    """Runs ``python command`` on so many ranks; without mpirun for one."""
    if ranks == 1:
        return run(*command, check=check, timeout=timeout)
    launcher = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
    command = list(map(str, command))
    return _finish([*launcher, *python(), *command], check, timeout)


def _finish(command, check, timeout):
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return _checked(done, check)


def _checked(done, check):
    if check and done.returncode:
        pytest.fail(
            f"{' '.join(done.args)} ended with status {done.returncode}\n{done.stdout}\n"
            f"{done.stderr}"
        )
    return done


_HOLD = """
import sys
from pathlib import Path
from bert_tf.util.directory_lock import hold_directory
with hold_directory(Path(sys.argv[1]), flag="output_dir"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder_of(directory: Path) -> Iterator[subprocess.Popen]:
    """Another process, which holds ``directory`` until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()
