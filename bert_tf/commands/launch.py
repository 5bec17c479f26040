"""Runs a training script on all ranks by mpirun, and again when a rank or a host is lost.

    python -m bert_tf.commands.launch --hosts=a:4,b:4 --max_restarts=3 -- \\
        python run_pretraining.py --horovod --output_dir=... ...

A run goes on from its newest checkpoint, without the hosts that cannot be reached any more. SIGINT,
SIGTERM and SIGUSR1 make the ranks save a checkpoint and end; so does mpirun's SIGUSR1.
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

from bert_tf import console
from bert_tf.command_line import Number, flag_group, read_flag_files, run_command
from bert_tf.errors import UserError

_USAGE_ERROR = 2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# What a run that ended as it should, or should not be tried again, ends with.
_FINAL = {0, _USAGE_ERROR, *(128 + number for number in _STOP_SIGNALS)}
_SECONDS_TO_REACH_A_HOST = 30
# mpirun waits for ever for the confirmation of a host that is cut off. A rank that ends the job
# says so, and mpirun has this long from then.
_SECONDS_TO_END = 30.0
_SECONDS_FOR_LAST_WORDS = 2.0


@dataclasses.dataclass(frozen=True)
class Host:
    """A host by its name or address, and how many ranks it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        """As mpirun's -H wants it."""
        return f"{self.name}:{self.slots}"


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """What to run where, and how often to try.

    Attributes:
      program: the training script's command.
      hosts: empty for this host alone.
      num_ranks: None for as many as the hosts take.
      max_restarts: most restarts in a row that lead to no new checkpoint.
      restart_delay_seconds: between a failure and the next start.
      mpirun_flags: handed to mpirun as they are.
    """

    program: tuple[str, ...]
    hosts: tuple[Host, ...]
    num_ranks: int | None
    max_restarts: int
    restart_delay_seconds: float
    mpirun_flags: tuple[str, ...]


def parse_hosts(text: str) -> tuple[Host, ...]:
    """``a:4,b:4`` as hosts; one rank where no number is given. Raises UserError for other forms."""
    hosts = []
    for part in filter(None, text.split(",")):
        name, colon, slots = part.partition(":")
        slots = slots if colon else "1"
        if not name or not slots.isdigit() or int(slots) < 1:
            raise UserError(f"--hosts: {part!r} is not HOST or HOST:RANKS; give e.g. a:4,b:4.")
        hosts.append(Host(name, int(slots)))
    return tuple(hosts)


def mpirun_command(settings: LaunchSettings, hosts: Sequence[Host]) -> list[str]:
    """The command for ``hosts``, which may be fewer than the settings have."""
    number = settings.num_ranks
    where: list[str] = []
    if hosts:
        slots = sum(host.slots for host in hosts)
        number = slots if number is None else min(number, slots)
        where = ["-H", ",".join(map(str, hosts))]
    return [find_mpirun(), *settings.mpirun_flags, "-np", str(number), *where, *settings.program]


def find_mpirun() -> str:
    """The environment's own mpirun, or the one on PATH; raises UserError without any."""
    own = Path(sys.executable).with_name("mpirun")
    found = str(own) if own.is_file() else shutil.which("mpirun")
    if found is None:
        raise UserError("mpirun was not found; run 'make setup' without HOROVOD=0.")
    return found


def find_output_dir(program: Sequence[str]) -> Path | None:
    """The --output_dir of a training script's command or of its flag files; None without one.

    Raises UserError for a flag file that cannot be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--output_dir", "-output_dir", type=Path)
    expanded = read_flag_files(program, flags.FlagValues())
    return parser.parse_known_args(expanded)[0].output_dir


def newest_checkpoints(output_dir: Path | None) -> dict[Path, str]:
    """What the lists of checkpoints begin with, in the directory and in those of its seeds."""
    if output_dir is None:
        return {}
    lists = [output_dir / "checkpoint", *output_dir.glob("seed_*/checkpoint")]
    return {path: path.read_text().partition("\n")[0] for path in lists if path.is_file()}


class Launcher:
    """Starts mpirun, and again after failures."""

    def __init__(self, settings: LaunchSettings) -> None:
        """Finds where the program writes its checkpoints."""
        self._settings = settings
        self._output_dir = find_output_dir(settings.program)
        self._mpirun: subprocess.Popen | None = None
        self._asked_to_stop = threading.Event()

    def run(self) -> int:
        """Runs to the end; returns the exit status of the last attempt."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)
        hosts, restarts = self._settings.hosts, 0
        while True:
            before = newest_checkpoints(self._output_dir)
            status = self._attempt(mpirun_command(self._settings, hosts))
            if status in _FINAL or self._asked_to_stop.is_set():
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
            if self._asked_to_stop.wait(self._settings.restart_delay_seconds):
                return status
            hosts = self._hosts_in_reach()

    def _attempt(self, command: Sequence[str]) -> int:
        """Runs mpirun once. A process group of its own: a terminal's Ctrl-C is for us to handle."""
        self._mpirun = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=_pass_on_errors, args=[process], daemon=True)
        reader.start()
        status = process.wait()
        # What mpirun started to reach a host may live longer, and keep the pipe open.
        reader.join(_SECONDS_FOR_LAST_WORDS)
        return status if status >= 0 else 128 - status

    def _stop(self, number: int, frame: object) -> None:
        """Asks the ranks to save and end, at first; mpirun passes SIGUSR1 on, and no other one."""
        del number, frame
        if self._mpirun is not None and self._mpirun.poll() is None:
            again = self._asked_to_stop.is_set()
            self._mpirun.send_signal(signal.SIGTERM if again else signal.SIGUSR1)
        self._asked_to_stop.set()

    def _hosts_in_reach(self) -> tuple[Host, ...]:
        """The hosts on which mpirun can start a program; all, if there seems to be none."""
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
            say(f"left out, as mpirun cannot reach them: {', '.join(lost)}")
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


def _pass_on_errors(mpirun: subprocess.Popen) -> None:
    """Copies what the ranks print to stderr; from an error on, mpirun has some seconds to end.

    It is read, for mpirun to go on, even where it cannot be written any more.
    """
    kill = threading.Timer(_SECONDS_TO_END, mpirun.kill)
    kill.daemon = True
    for line in mpirun.stderr:
        console.say(line, stream=sys.stderr, end="")
        if line.startswith("error: ") and kill.ident is None:
            kill.start()
    kill.cancel()


def say(text: str) -> None:
    """Prints a line of the launcher's own."""
    console.say(f"launch: {text}", stream=sys.stderr)


@flag_group("Ranks and restarts")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("hosts", None, "HOST:RANKS,... as for mpirun -H; this host alone without.")
    flags.DEFINE_integer("np", None, "Number of ranks; as many as --hosts take, without.")
    flags.DEFINE_integer(
        "max_restarts",
        3,
        "Most restarts in a row without a new checkpoint: one that was saved since the last start "
        "sets the count back to 0. There is none after a mistake in the command (status 2).",
        lower_bound=0,
    )
    flags.DEFINE(
        Number(lower_bound=0.0),
        "restart_delay",
        5.0,
        "Seconds between a failure and the next start.",
    )
    flags.DEFINE_string("mpirun_flags", "", 'More flags of mpirun, e.g. "--bind-to none -x PATH".')


def main(arguments: Sequence[str]) -> None:
    """Runs the command after ``--``; ends with the status of its last attempt."""
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


if __name__ == "__main__":
    define_flags()
    run_command(main, takes_words=True)
