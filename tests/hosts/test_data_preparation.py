"""Records made by workers on two hosts that share no files, while a worker and a host are lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.files import content_of
from tests.helpers.programs import ROOT, environment
from tests.hosts.program_output import LIMIT, Output
from tools.hosts import Hosts

pytestmark = pytest.mark.parallel

ADDRESS = "tcp://host0:8786"
PROGRAM = [sys.executable, "tests/hosts/stage_program.py", "data_prep.create_pretraining_data"]
DASK = [sys.executable, "-m", "dask"]
# 16 KiB of text each; at most 12 are under way.
NUM_BLOCKS = 40
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


class Cluster:
    """A scheduler on the first of two hosts, and two workers on each."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.scheduler = self._start([1, 0], "scheduler", "--port=8786", "--dashboard-address=:0")
        self.scheduler.wait_for("Scheduler at: ")
        worker = ("worker", ADDRESS, "--nworkers=2", "--nthreads=1", "--no-dashboard")
        self.workers = [
            self._start(ranks, *worker, "--local-directory=/dev/shm/dask")
            for ranks in ([1, 0], [0, 1])
        ]
        for workers in self.workers:
            workers.wait_for("Registered to: ", 2)

    def _start(self, ranks, *command):
        process = self.hosts.start(
            [*DASK, *command],
            ranks_per_host=ranks,
            environment=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return Output(process)

    def kill_worker(self):
        """Kills a process of a worker on the first host; another one follows it."""
        of_workers = [
            pid
            for pid in self.hosts.processes(0)
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(of_workers[0], signal.SIGKILL)
        self.workers[0].wait_for("was killed by signal 9")

    def kill_host(self):
        """Kills all processes of the second host."""
        before = len(self.scheduler.matching("Remove worker"))
        self.hosts.kill(1)
        self.scheduler.wait_for("Remove worker", before + 2)


@pytest.fixture
def cluster(tmp_path):
    """Hosts of which only the first has the directory of the test."""
    here, elsewhere = tmp_path / "files", tmp_path / "none"
    for directory in (here, elsewhere):
        directory.mkdir()
    with Hosts(2, private={here: [here, elsewhere]}) as hosts:
        yield Cluster(hosts)
    assert not list(elsewhere.iterdir())


@pytest.fixture
def make_records(data, tmp_path, cluster):
    """Flags of a call that makes records of a text that only the first host has."""
    files = tmp_path / "files"
    text = b"".join(path.read_bytes() for path in sorted((data / "shards").glob("train-*.txt")))
    while len(text) < NUM_BLOCKS << 14:
        text += text
    (files / "text.txt").write_bytes(text)
    shutil.copy(data / "vocabulary" / "vocab.txt", files)

    def flags(name, *others):
        return [
            f"--input_file={files / 'text.txt'}",
            f"--vocab_file={files / 'vocab.txt'}",
            f"--output_dir={files / name}",
            "--dupe_factor=2",
            *others,
        ]

    return flags


def start(cluster, flags, *stops):
    """The client on the first host."""
    env = {**environment(), "STOPS": " ".join(map(str, stops))}
    command = [*PROGRAM, *flags, f"--scheduler={ADDRESS}"]
    whole = cluster.hosts.command(command, ranks_per_host=[1, 0], environment=env)
    process = subprocess.Popen(whole, stdin=subprocess.PIPE, **PIPES)
    return process, Output(process)


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def content(files, name):
    return {path.name: text for path, text in content_of(files / name).items()}


@pytest.mark.exhaustive
def test_lost_workers_hosts_and_clients_change_nothing(cluster, make_records, tmp_path):
    files = tmp_path / "files"
    alone = [*PROGRAM, *make_records("alone", "--num_workers=1")]
    done = subprocess.run(alone, cwd=ROOT, env=environment(), check=True, **PIPES)
    number = len(re.findall("^block ", done.stdout, re.MULTILINE))
    assert number >= NUM_BLOCKS
    expected = content(files, "alone")

    process, output = start(cluster, make_records("shared"), 14, 20)
    output.wait_for("^block 14 ")
    assert output.matching(rf"4 workers at {ADDRESS}, dashboard http://")
    cluster.kill_worker()
    go_on(process)
    output.wait_for("^block 20 ")
    cluster.kill_host()
    go_on(process)
    assert process.wait(LIMIT) == 0, output.lines
    assert content(files, "shared") == expected

    process, output = start(cluster, make_records("killed"), 15)
    output.wait_for("^block 15 ")
    (line,) = output.matching("^block 15 ")
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    assert process.wait(LIMIT) != 0
    process, output = start(cluster, make_records("killed"))
    assert process.wait(LIMIT) == 0, output.lines
    output.wait_for(r"resumed at 0\.\d of 0\.\d MB")
    assert content(files, "killed") == expected
