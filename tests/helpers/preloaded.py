"""Programs that are forked from a process which has loaded TensorFlow already.

Loading it takes longer than what most tests run. A forked program has what a started one has: a
process, an environment, streams and an exit status of its own, and ``tensorflow`` is not in its
``sys.modules`` before it imports it. What it shares with its siblings is how strings are hashed.

As a program itself, ``preloaded.py SOCKET COMMAND...`` has the process that listens at a socket run
``python COMMAND...`` in its place: that is how mpirun starts ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.machinery
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence

# An interpreter and TensorFlow read these once. A program that is to have others is forked from a
# process of its own.
_READ_ONCE = ("PYTHON", "LC_", "LANG", "LD_", "TF_", "OMP_", "XLA_")

_LONGEST_REQUEST = 1 << 18
_LONGEST_REPLY = 64
_BUFFERING = (-1, -1, 1)  # of the standard streams, of which errors leave a program line by line
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def run(
    command: Sequence[str],
    *,
    cwd: os.PathLike,
    env: Mapping[str, str],
    timeout: float,
    text: str = "",
) -> subprocess.CompletedProcess:
    """As ``subprocess.run([sys.executable, *command], capture_output=True, text=True, ...)``.

    ``text`` is its standard input.
    """
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        streams = [file.fileno() for file in (given, out, err)]
        with _request(
            address(env), command, cwd=os.fspath(cwd), env=env, streams=streams
        ) as connection:
            connection.settimeout(timeout)
            try:
                connection.recv(_LONGEST_REPLY)  # the number of the process
                status = connection.recv(_LONGEST_REPLY)
            except socket.timeout as error:
                raise subprocess.TimeoutExpired(command, timeout) from error
        outputs = [_content(stream) for stream in (out, err)]
    return subprocess.CompletedProcess(command, int(status), *outputs)


def address(env: Mapping[str, str]) -> str:
    """The socket of the process that programs with this environment are forked from."""
    return _server(tuple(sorted((n, v) for n, v in env.items() if n.startswith(_READ_ONCE))))


@functools.cache
def _server(read_once: tuple[tuple[str, str], ...]) -> str:
    directory = tempfile.mkdtemp(prefix="bert_tf_preloaded_")
    path = os.path.join(directory, "socket")
    variables = {n: v for n, v in os.environ.items() if not n.startswith(_READ_ONCE)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno())],
            env={**variables, **dict(read_once)},
            stdin=subprocess.PIPE,  # it ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )

    def end() -> None:
        process.stdin.close()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return path


def _request(
    path: str,
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    streams: Sequence[int],
) -> socket.socket:
    """The connection on which a program's number and then its status arrive."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    request = json.dumps({"command": command, "cwd": cwd, "env": dict(env)}).encode()
    socket.send_fds(connection, [request], streams)
    return connection


def _content(stream) -> str:
    stream.seek(0)
    return stream.read().decode()


def _stand_in(path: str, command: Sequence[str]) -> None:
    """Is to whoever started this process what the program of ``command`` would be."""
    # The program may have begun, and be sent signals, before they can be forwarded.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    connection = _request(path, command, cwd=os.getcwd(), env=os.environ, streams=[0, 1, 2])
    program = int(connection.recv(_LONGEST_REPLY))

    def forward(number: int, _: types.FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended, its status is on the way
            os.kill(program, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    status = int(connection.recv(_LONGEST_REPLY))
    if status < 0:
        with contextlib.suppress(OSError):  # nobody can handle SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


class _Kept:
    """Gives ``import tensorflow`` the package that is loaded already."""

    def __init__(self, package) -> None:
        self._package, self._spec = package, package.__spec__

    def find_spec(self, name, path=None, target=None):
        if name == self._package.__name__:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return self._package

    def exec_module(self, module) -> None:
        module.__spec__ = self._spec


def _serve(listening: socket.socket) -> None:
    """Forks a program for each request, until the standard input ends."""
    import tensorflow

    sys.meta_path.insert(0, _Kept(sys.modules.pop(tensorflow.__name__)))
    gc.collect()
    gc.freeze()
    while True:
        ready, *_ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listening.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            connection.close()
            continue
        listening.close()
        message, streams, *_ = socket.recv_fds(connection, _LONGEST_REQUEST, 3)
        program = os.fork()
        if program:
            _report(program, connection)
        connection.close()
        _become(streams, **json.loads(message))
        return


def _report(program: int, connection: socket.socket) -> None:
    """Tells a program's number and, when it has ended, its status; kills it if nobody waits."""
    ended, ready = os.pidfd_open(program), []
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(str(program).encode())
        ready, *_ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(program, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(str(status).encode())
    os._exit(0)


def _become(
    streams: Sequence[int], command: Sequence[str], cwd: str, env: Mapping[str, str]
) -> None:
    """Goes on in this process as ``python command`` does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(streams[number], number)
        os.close(streams[number])
        own = getattr(sys, name)
        kept = {"encoding": own.encoding, "errors": own.errors, "newline": "\n", "closefd": False}
        stream = os.fdopen(number, "w" if number else "r", buffering=_BUFFERING[number], **kept)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    # It stays: threads and workers look their classes up in it until the end.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    program, *arguments = command
    if program == "-c":
        code, *arguments = arguments
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        code = compile(code, "<string>", "exec")
    elif program == "-m":
        name, *arguments = arguments
        sys.path[0] = cwd
        main.__spec__ = importlib.util.find_spec(name)
        main.__package__, main.__file__ = main.__spec__.parent, main.__spec__.origin
        sys.argv = [main.__file__, *arguments]
        code = main.__spec__.loader.get_code(name)
    else:
        sys.argv, sys.path[0] = [program, *arguments], os.path.dirname(os.path.abspath(program))
        main.__file__ = program
        with open(program, encoding="utf-8") as file:
            code = compile(file.read(), program, "exec")
    exec(code, vars(main))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _stand_in(sys.argv[1], sys.argv[2:])
    _serve(socket.socket(fileno=int(sys.argv[1])))
