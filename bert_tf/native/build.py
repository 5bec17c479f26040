"""Compiles the native CPU operations for the installed TensorFlow.

    python -m bert_tf.native.build

Every source in this package is compiled to a separate library, several in parallel. The compiler is
$CXX, by default g++. The libraries are written next to the sources, or to the user's cache
($XDG_CACHE_HOME or ~/.cache) if the package's directory is not writable.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert_tf.cli.flags import run_command
from bert_tf.native.library import COMPILER_FLAGS, SOURCE, MissingLibrary, library_path, load
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.temporary import make_private


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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"no C++ compiler ({compiler[0]}) could be started ({error.strerror}); install g++ or "
            "name another in CXX."
        ) from error
    if done.returncode:
        lines = done.stderr.splitlines() or ["no message"]
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
    with ThreadPoolExecutor(environment.available_cores()) as pool:
        for path in pool.map(lambda source: build(compiler, source), sources):
            print(f"built {path}")


def main(_: object) -> None:
    """Builds all libraries."""
    environment.prepare_environment(verbose=False)
    _build_all()


def run() -> None:
    """The command, from its flags to its exit status."""
    run_command(main)


if __name__ == "__main__":
    run()
