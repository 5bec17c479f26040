"""Ranks that die, hang, fail or were given other things: one sentence, and a run that goes on.

Two ranks of the real program on this host. Time limits are those of a user who has no patience.
"""

import re
import shutil
import socket
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.programs import ROOT, environment, python, requires_horovod
from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    shared_data,
    write_bert_config,
)
from tests.parallel.faulty_rank import STEP

pytestmark = [requires_horovod, pytest.mark.parallel]

HOST = socket.gethostname()
FAULTY = "tests/parallel/faulty_rank.py"
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
TIMEOUT = 10  # seconds without a word, with margin for a machine that has other work
LIMIT = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shared_data(tmp_path_factory)


@pytest.fixture
def flags(data, tmp_path):
    """Six updates, a checkpoint after the third."""
    write_bert_config(tmp_path / "bert_config.json")
    return [
        *flags_of_a_short_run(data, tmp_path / "bert_config.json"),
        "--do_train",
        "--horovod",
        "--scale_steps_by_ranks=false",
        f"--rank_timeout={TIMEOUT}",
        f"--output_dir={tmp_path / 'out'}",
    ]


def finish(command, **variables):
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    done.sentences = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done


def run_faulty(tmp_path, flags, fault, rank, **variables):
    """Two ranks, one of which has a fault."""
    program = [*python(), FAULTY, fault, rank, tmp_path / "marker", *flags]
    return finish([*MPIRUN, "-np", "2", *program], **variables)


def run_different(flags, *own):
    """Two ranks, the second of which has flags of its own."""
    program = ["-np", "1", *python(), "run_pretraining.py", *flags]
    return finish([*MPIRUN, *program, ":", *program, *own])


def newest_step(tmp_path):
    """Of a checkpoint whose files are there and can be read."""
    path = tf.train.latest_checkpoint(str(tmp_path / "out"))
    return int(tf.train.load_checkpoint(path).get_tensor(tf.GraphKeys.GLOBAL_STEP))


def assert_lost(done, tmp_path, expected, *, status):
    """One sentence that names the rank and the host and says how to go on, which is true."""
    (sentence,) = done.sentences
    assert re.match(f"error: {expected}", sentence), sentence
    assert f"on host {HOST}" in sentence
    # Rank 0 alone, if it is there, knows its checkpoint.
    assert sentence.endswith(("which is intact.", "if one was saved."))
    assert done.returncode == status
    assert newest_step(tmp_path) == 3


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_a_rank_that_is_killed(tmp_path, flags, rank):
    done = run_faulty(tmp_path, flags, "killed", rank)
    assert_lost(done, tmp_path, f"the process of rank {rank} on host .* ended", status=128 + 9)
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped(tmp_path, flags, rank):
    done = run_faulty(tmp_path, flags, "stopped", rank)
    assert_lost(done, tmp_path, f"no sign of life from rank {rank} on host", status=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["hangs", "hangs in reading", "works"])
def test_a_rank_that_keeps_others_waiting(tmp_path, flags, fault):
    """Horovod's own check, here with a limit of the user's."""
    limits = {"CHECK": "2", "SHUTDOWN": "5"}
    variables = {f"HOROVOD_STALL_{name}_TIME_SECONDS": limits[name] for name in limits}
    done = run_faulty(tmp_path, flags, fault, 1, **variables)
    (sentence,) = done.sentences
    assert sentence.startswith(f"error: rank 1 on host {HOST} did not take part")
    assert "; start again" in sentence
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_with_a_bug(tmp_path, flags):
    done = run_faulty(tmp_path, flags, "fails", 1)
    assert_lost(done, tmp_path, "rank 1 on host .* failed with ZeroDivisionError: a bug", status=1)
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_all_ranks_stop_together_when_one_is_asked_to(tmp_path, flags):
    done = run_faulty(tmp_path, [*flags, "--num_train_steps=500"], "asked", 1)
    assert done.returncode == 128 + 10
    assert "stopped by SIGUSR1; " in done.stdout
    assert STEP < newest_step(tmp_path) < 500
    assert done.sentences == []


@pytest.mark.exhaustive
def test_all_ranks_save_the_batch_that_is_not_finite(tmp_path, flags):
    """The rate is far too high."""
    done = run_different([*flags, "--num_warmup_steps=0", "--learning_rate=1e20"])
    assert done.returncode == 2
    [sentence] = done.sentences
    assert "not finite in the update after step 1 (learning rate 8.33e+19): on rank 0" in sentence
    output_dir = tmp_path / "out"
    assert {path.name for path in (output_dir / "nonfinite_1").glob("*.json")} == {
        "rank_0_micro_batch_0.json",
        "rank_1_micro_batch_0.json",
    }


def test_a_rank_with_other_flags(flags):
    done = run_different(flags, "--learning_rate=0.5", "--seed=3", "--num_threads=1")
    assert done.sentences == [
        f"error: rank 1 on host {HOST} differs from rank 0 in --seed (3 instead of 12345), "
        "--learning_rate (0.5 instead of 0.001); give every rank the same."
    ]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_mistake_of_all_ranks_is_said_once(flags):
    done = run_different([*flags, "--micro_batch_size=3"])
    assert len(done.sentences) == 1
    assert done.sentences[0].startswith("error: --train_batch_size=8 and --micro_batch_size=3")
    assert done.returncode == 2


@pytest.mark.slow
def test_a_rank_with_other_data_and_vocabulary(tmp_path_factory, flags):
    other = shared_data(tmp_path_factory, 200_000)
    done = run_different(flags, f"--input_file={other / 'records' / 'train'}")
    (sentence,) = done.sentences
    assert sentence.startswith(f"error: rank 1 on host {HOST} differs from rank 0 in training data")
    assert ", vocabulary (" in sentence
    assert done.returncode == 2


@pytest.mark.exhaustive
def test_a_rank_whose_records_end_early(tmp_path, data, flags):
    """Its copy of a file is cut: it runs out of data."""
    shutil.copytree(data / "records" / "train", tmp_path / "copy")
    file = sorted((tmp_path / "copy").glob("*.tfrecord"))[-1]
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 10)
    (tmp_path / "copy" / "manifest.json").unlink()  # it would show the size that is missing
    done = run_different(flags, f"--input_file={tmp_path / 'copy'}")
    (sentence,) = done.sentences
    assert sentence.startswith(f"error: rank 1 on host {HOST}: {file} is truncated inside record ")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_killed_while_saving_a_run_is_started_again_from_the_checkpoint_before(tmp_path, flags):
    program = [sys.executable, FAULTY, "killed while saving", 0, tmp_path / "marker", *flags]
    job = [*MPIRUN, "-np", "2", *program]
    done = finish([ROOT / "recipes/restart.sh", *job], RESTART_DELAY="0.1")
    assert done.returncode == 0, done.stderr
    # The sentence is rank 1's, unless mpirun ended it before it could speak: then it is mpirun's.
    assert len(done.sentences) <= 1
    for sentence in done.sentences:
        assert "rank 0 on host" in sentence
        assert "the latest checkpoint in" in sentence
    assert done.sentences or "process rank 0" in done.stderr
    assert "restart.sh: ended with status 137; restart 1 of 3" in done.stderr
    assert f"resuming from {tmp_path / 'out' / 'model.ckpt-3'} (step 3)" in done.stdout
    assert newest_step(tmp_path) == 6
