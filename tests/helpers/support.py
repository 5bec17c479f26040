"""What tests of several rooms share: running the project's programs as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.native import library
from bert_tf.update.schedules import schedule_options
from tests.helpers import preloaded

ROOT = Path(__file__).resolve().parents[2]

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# What the caller says is installed: where it is missing, tests fail and are not skipped.
_NEEDED = os.environ.get("BERT_TF_TESTS_NEED", "").split()


def skip_without(part: str, reason: str) -> None:
    """Skips a test that cannot run without ``part``; fails it where that should be there."""
    if part in _NEEDED:
        pytest.fail(f"{part} should be installed: {reason}")
    pytest.skip(reason)


requires_horovod = pytest.mark.skipif(
    "horovod" not in _NEEDED
    and (importlib.util.find_spec("horovod") is None or not shutil.which("mpirun", path=_PATH)),
    reason="the distributed parts are not installed: make setup without HOROVOD=0",
)


requires_native_ops = pytest.mark.skipif(
    "native_ops" not in _NEEDED
    and not all(map(Path.is_file, map(library.library_path, library.SOURCE.parent.glob("*.cc")))),
    reason="the native operations are not built: python -m bert_tf.native.build",
)


@contextlib.contextmanager
def no_room(most_bytes: int = 0) -> Iterator[None]:
    """As on a full disk, no file of this process may grow beyond ``most_bytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    if fresh or _reads_flags_of_its_own(command):
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
    program = [sys.executable] if _reads_flags_of_its_own(command) else python()
    return _finish([*launcher, *program, *command], check, timeout)


def _reads_flags_of_its_own(command: Sequence[str]) -> bool:
    """Whether a program sets what TensorFlow reads while it is loaded, and must load it itself."""
    return any(argument.startswith("--use_xla") for argument in command)


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


# Settings by names of their own, where those in their group are too short.
_FIELDS = {
    "schedule": "name",
    "schedule_options": "options",
    "batch_ramp": "ramp",
    "loss_scale": "static",
    "initial_loss_scale": "initial",
    "min_loss_scale": "minimum",
    "loss_scale_window": "window",
    "flags": "values",
}


def with_values(settings, **values):
    """The same settings with other values, of their own or of the groups in them."""
    given = {_FIELDS.get(name, name): value for name, value in values.items()}
    own, left = {}, dict(given)
    for field in dataclasses.fields(settings):
        inner = getattr(settings, field.name)
        if field.name in left:
            own[field.name] = left.pop(field.name)
        elif dataclasses.is_dataclass(inner):
            below = {name: left.pop(name) for name in list(left) if _has(inner, name)}
            if below:
                own[field.name] = with_values(inner, **below)
    assert not left, f"no settings {sorted(left)}"
    return dataclasses.replace(settings, **own)


def _has(settings, name):
    if not dataclasses.is_dataclass(settings):
        return False
    return any(
        field.name == name or _has(getattr(settings, field.name), name)
        for field in dataclasses.fields(settings)
    )


def optimization_settings(**changes: object) -> OptimizationSettings:
    """Settings of a plain AdamW run with micro batches of four.

    ``changes`` replace some, or are options of the schedule.
    """
    options = {name: changes.pop(name) for name in schedule_options() if name in changes}
    usual = {
        "micro_batch_size": 4,
        "num_train_steps": 1,
        "num_warmup_steps": 0,
        "learning_rate": 1e-3,
        "schedule_options": options,
    }
    return with_values(OptimizationSettings(), **{**usual, **changes})


def runtime_settings(**changes: object) -> RuntimeSettings:
    """Settings of one quiet process; ``changes`` replace some."""
    return with_values(
        RuntimeSettings(), **{"rank_timeout_seconds": 0.0, "num_threads": 1, **changes}
    )


def run_settings(output_dir: Path, **changes: object) -> RunSettings:
    """Settings of a run in a directory; ``changes`` replace some."""
    return with_values(RunSettings(output_dir), **changes)


def variables_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def antiberty_chains() -> list[str]:
    """The antibody chains that the description of the package antiberty shows, heavy and light."""
    metadata = importlib.metadata.metadata("antiberty")
    # The standard library has the description as the payload; importlib_metadata, which takes
    # the place of its finder once some package imports it, has it as a header.
    description = metadata["Description"] or metadata.get_payload()
    chains = list(dict.fromkeys(re.findall(r'"([A-Z]{100,})"', description)))
    assert len(chains) >= 2
    return chains[:2]


def content_of(directory: Path) -> dict[Path, bytes]:
    """Every file below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def modes_of(directory: Path) -> dict[str, set[int]]:
    """The permissions of a directory's files, and of itself and the directories in it."""
    found: dict[str, set[int]] = {"file": set(), "directory": set()}
    for path in [directory, *directory.rglob("*")]:
        kind = "directory" if path.is_dir() else "file"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found


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
