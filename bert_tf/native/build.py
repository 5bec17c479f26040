"""Compiles the native CPU operations for the installed TensorFlow.

    python -m bert_tf.native.build

Every source in this package is compiled to a separate library, several in parallel. The compiler is
$CXX, by default g++. The libraries are written next to the sources, or to the user's cache
($XDG_CACHE_HOME or ~/.cache) if the package's directory is not writable.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from bert_tf.cli.flags import run_command
from bert_tf.native.library import COMPILER_FLAGS, SOURCE, MissingLibrary, library_path, load
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.progress import format_duration
from bert_tf.util.temporary import make_private

_SECONDS_BETWEEN_LINES = 10.0
# The compilers that run now, to be ended with the program.
_running: set[subprocess.Popen[str]] = set()
_ended = threading.Event()  # by a signal


def build(compiler: Sequence[str], source: Path = SOURCE) -> Path:
    """Compiles ``source``, unless the library exists, and returns the library's path.

    ``compiler`` is a command with its arguments. The library appears under its name once it is
    complete, and is loaded once as a check. Raises UserError if there is no compiler, it fails, or
    the directory cannot be written.
    """
    path = library_path(source)
    if path.is_file():
        return path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.parent != source.parent:
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            make_private(path.parent)
        temporary.touch()
        _compile(compiler, source, temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"the native operations cannot be written to {path.parent} ({error.strerror}); set "
            "XDG_CACHE_HOME to a directory that can be, or do without: training uses TensorFlow's."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    try:
        load(source)
    except MissingLibrary as error:
        path.unlink()
        raise UserError(
            f"{error}; give the compiler that TensorFlow was built with in CXX."
        ) from error
    return path


def _compile(compiler: Sequence[str], source: Path, output: Path) -> None:
    import tensorflow.compat.v1 as tf

    command = [
        *compiler,
        *COMPILER_FLAGS,
        *tf.sysconfig.get_compile_flags(),
        str(source),
        "-o",
        str(output),
        *tf.sysconfig.get_link_flags(),
    ]
    try:
        # In a session of its own, so that it can be ended with the programs that it starts.
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            f"no C++ compiler ({compiler[0]}) could be started ({error.strerror}); install g++ or "
            "name another in CXX."
        ) from error
    with process:
        _running.add(process)
        if _ended.is_set():  # by a signal that came too early to find this compiler
            _end_compilers()
        _, said = process.communicate()
        _running.discard(process)
    if process.returncode:
        lines = said.splitlines() or ["no message"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise UserError(
            f"{' '.join(compiler)} cannot compile {source.name} ({reason}); name another compiler "
            "in CXX, or do without: training uses TensorFlow's own operations."
        )


def given_compiler() -> list[str]:
    """The compiler's command in CXX, or g++."""
    return shlex.split(os.environ.get("CXX") or "g++")


def _build_all() -> None:
    compiler = given_compiler()
    sources = sorted(SOURCE.parent.glob("*.cc"))
    start = time.monotonic()
    print(f"compiling {', '.join(source.name for source in sources)} (minutes)", flush=True)
    with ThreadPoolExecutor(environment.available_cores()) as pool:
        waiting = {pool.submit(build, compiler, source) for source in sources}
        while waiting:
            done, waiting = wait(waiting, _SECONDS_BETWEEN_LINES, FIRST_COMPLETED)
            spent = format_duration(time.monotonic() - start)
            for future in done:
                print(f"built {future.result()} after {spent}", flush=True)
            if not done:
                print(f"compiling {len(waiting)} of {len(sources)}, {spent}", flush=True)


def _end(number: int, _: object) -> None:
    """Ends the compilers; their threads then remove what is not complete."""
    _ended.set()
    _end_compilers()
    sys.exit(128 + number)


def _end_compilers() -> None:
    for process in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def main(_: object) -> None:
    """Builds all libraries."""
    environment.prepare_environment(verbose=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    _build_all()


run = functools.partial(run_command, main)

if __name__ == "__main__":
    run()
