"""Runs a command on all ranks; restarts it if a rank or host is lost.

    python -m bert_tf.commands.launch --hosts=a:4,b:4 --max_restarts=3 -- \\
        python run_pretraining.py --horovod --output_dir=... ...

A restarted run resumes from its latest checkpoint, without hosts that can no longer be reached.
SIGINT, SIGTERM, SIGHUP and SIGUSR1 make the ranks save a checkpoint and exit; so does a SIGUSR1 to
mpirun.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import Number, flag_group, read_flag_files, run_command
from bert_tf.util import console
from bert_tf.util.errors import UserError

_USAGE_ERROR = 2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# Exit statuses after which a run is not restarted.
_FINAL = {0, _USAGE_ERROR, *(128 + number for number in _STOP_SIGNALS)}
_SECONDS_TO_REACH_A_HOST = 30
# mpirun waits forever for a reply from a host that is cut off. It is killed this long after the
# error message of a rank that ends the job.
_SECONDS_TO_END = 30.0
_SECONDS_FOR_LAST_WORDS = 2.0


@dataclasses.dataclass(frozen=True)
class Host:
    """A host name or address, and the number of ranks to start there."""

    name: str
    slots: int

    def __str__(self) -> str:
        """The form for mpirun's -H."""
        return f"{self.name}:{self.slots}"


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """Which command to run, on which hosts, and how often to restart it.

    Attributes:
      program: the training script's command.
      hosts: empty for this host only.
      num_ranks: None for as many as the hosts have slots.
      max_restarts: maximum number of consecutive restarts without a new checkpoint.
      restart_delay_seconds: delay between a failure and the next start.
      mpirun_flags: passed on to mpirun unchanged.
    """

    program: tuple[str, ...]
    hosts: tuple[Host, ...]
    num_ranks: int | None
    max_restarts: int
    restart_delay_seconds: float
    mpirun_flags: tuple[str, ...]


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parses ``a:4,b:4``, with one rank per host by default; raises UserError for other forms."""
    hosts = []
    for part in filter(None, text.split(",")):
        name, colon, slots = part.partition(":")
        slots = slots if colon else "1"
        if not name or not slots.isdigit() or int(slots) < 1:
            raise UserError(f"--hosts: {part!r} is not HOST or HOST:RANKS; give e.g. a:4,b:4.")
        hosts.append(Host(name, int(slots)))
    return tuple(hosts)


def mpirun_command(settings: LaunchSettings, hosts: Sequence[Host]) -> list[str]:
    """The mpirun command for ``hosts``, which may be fewer than in the settings."""
    number = settings.num_ranks
    where: list[str] = []
    if hosts:
        slots = sum(host.slots for host in hosts)
        number = slots if number is None else min(number, slots)
        where = ["-H", ",".join(map(str, hosts))]
    return [find_mpirun(), *settings.mpirun_flags, "-np", str(number), *where, *settings.program]


def find_mpirun() -> str:
    """The environment's mpirun, or else the one on PATH; raises UserError if there is none."""
    in_environment = Path(sys.executable).with_name("mpirun")
    found = str(in_environment) if in_environment.is_file() else shutil.which("mpirun")
    if found is None:
        raise UserError("mpirun was not found; run 'make setup' without HOROVOD=0.")
    return found


def find_output_dir(program: Sequence[str]) -> Path | None:
    """The --output_dir in a training script's command or its flag files; None if not given.

    Raises UserError if a flag file cannot be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--output_dir", "-output_dir", type=Path)
    expanded = read_flag_files(program, flags.FlagValues())
    return parser.parse_known_args(expanded)[0].output_dir


def newest_checkpoints(output_dir: Path | None) -> dict[Path, str]:
    """First lines of the checkpoint lists in a directory, and of those of its seeds and phases."""
    if output_dir is None:
        return {}
    lists = [output_dir / "checkpoint", *output_dir.glob("seed_*/checkpoint")]
    lists += output_dir.glob("phase_*/checkpoint")
    return {path: path.read_text().partition("\n")[0] for path in lists if path.is_file()}


class Launcher:
    """Starts mpirun, and restarts it after failures."""

    def __init__(self, settings: LaunchSettings) -> None:
        """Finds out where the program writes its checkpoints."""
        self._settings = settings
        self._output_dir = find_output_dir(settings.program)
        self._mpirun: subprocess.Popen | None = None
        self._stop_requested = threading.Event()

    def run(self) -> int:
        """Runs until the command is done; returns the exit status of the last attempt."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(signal.SIGHUP, self._stop)
        hosts, restarts = self._settings.hosts, 0
        while True:
            before = newest_checkpoints(self._output_dir)
            status = self._attempt(mpirun_command(self._settings, hosts))
            if status in _FINAL or self._stop_requested.is_set():
                return status
            if newest_checkpoints(self._output_dir) != before:
                restarts = 0
            if restarts >= self._settings.max_restarts:
                say(
                    f"ended with status {status}; not started again after {restarts} restarts "
                    "without a new checkpoint (--max_restarts)"
                )
                return status
            restarts += 1
            say(
                f"ended with status {status}; restart {restarts} of {self._settings.max_restarts}"
                f" in {self._settings.restart_delay_seconds:g} seconds"
            )
            if self._stop_requested.wait(self._settings.restart_delay_seconds):
                return status
            hosts = self._hosts_in_reach()

    def _attempt(self, command: Sequence[str]) -> int:
        """Runs mpirun once, in a process group of its own, since Ctrl-C is handled here."""
        self._mpirun = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=pass_on_errors, args=[process], daemon=True)
        reader.start()
        status = process.wait()
        # Processes that mpirun started to reach a host can outlive it and keep the pipe open.
        reader.join(_SECONDS_FOR_LAST_WORDS)
        return status if status >= 0 else 128 - status

    def _stop(self, number: int, frame: object) -> None:
        """Makes the ranks save and exit: mpirun forwards only SIGUSR1. A second signal ends it."""
        del number, frame
        if self._mpirun is not None and self._mpirun.poll() is None:
            again = self._stop_requested.is_set()
            self._mpirun.send_signal(signal.SIGTERM if again else signal.SIGUSR1)
        self._stop_requested.set()

    def _hosts_in_reach(self) -> tuple[Host, ...]:
        """The hosts on which mpirun can start a program; all hosts if none can be reached."""
        hosts = self._settings.hosts
        if not hosts:
            return hosts
        with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
            reached = list(pool.map(self._is_in_reach, hosts))
        if not any(reached):
            say("no host could be reached; trying all of them again")
            return hosts
        lost = [str(host) for host, is_in_reach in zip(hosts, reached) if not is_in_reach]
        if lost:
            say(f"dropped because mpirun cannot reach them: {', '.join(lost)}")
        return tuple(host for host, is_in_reach in zip(hosts, reached) if is_in_reach)

    def _is_in_reach(self, host: Host) -> bool:
        command = [find_mpirun(), *self._settings.mpirun_flags, "-np", "1", "-H", host.name, "true"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS_TO_REACH_A_HOST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def pass_on_errors(mpirun: subprocess.Popen, seconds_to_end: float = _SECONDS_TO_END) -> None:
    """Copies the ranks' stderr; after an error line, mpirun has ``seconds_to_end`` to exit.

    Keeps reading even if the copy can no longer be written, so that mpirun does not block.
    """
    kill = threading.Timer(seconds_to_end, mpirun.kill)
    kill.daemon = True
    for line in mpirun.stderr or ():
        console.say(line, stream=sys.stderr, end="")
        if line.startswith("error: ") and kill.ident is None:
            kill.start()
    kill.cancel()


def say(text: str) -> None:
    """Prints a line that begins with the launcher's name."""
    console.say(f"launch: {text}", stream=sys.stderr)


@flag_group("Ranks and restarts")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("hosts", None, "HOST:RANKS,... as for mpirun -H (default: this host only).")
    flags.DEFINE_integer("np", None, "Number of ranks (default: as many as --hosts have slots).")
    flags.DEFINE_integer(
        "max_restarts",
        3,
        "Maximum number of consecutive restarts without a new checkpoint. A mistake in the command "
        "(status 2) is never followed by a restart.",
        lower_bound=0,
    )
    flags.DEFINE(
        Number(lower_bound=0.0),
        "restart_delay",
        5.0,
        "Seconds between a failure and the next start.",
    )
    flags.DEFINE_string(
        "mpirun_flags", "", 'Additional flags for mpirun, e.g. "--bind-to none -x PATH".'
    )


def main(arguments: Sequence[str]) -> None:
    """Runs the command after ``--``; exits with the status of its last attempt."""
    sys.exit(_run(arguments[1:]))


def _run(program: Sequence[str]) -> int:
    values = flags.FLAGS
    if not program:
        raise UserError(
            "nothing to run; give the command after --: ... -- python run_pretraining.py --horovod."
        )
    hosts = parse_hosts(values.hosts or "")
    if values.np is None and not hosts:
        raise UserError("give --np, the number of ranks, or --hosts.")
    if values.np is not None and values.np < 1:
        raise UserError(f"--np={values.np} must be at least 1.")
    settings = LaunchSettings(
        program=tuple(program),
        hosts=hosts,
        num_ranks=values.np,
        max_restarts=values.max_restarts,
        restart_delay_seconds=values.restart_delay,
        mpirun_flags=tuple(shlex.split(values.mpirun_flags)),
    )
    return Launcher(settings).run()


def run() -> None:
    """Runs the command, from parsing its flags to its exit status."""
    define_flags()
    run_command(main, takes_words=True)


if __name__ == "__main__":
    run()
