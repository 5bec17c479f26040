"""Runs that are killed anywhere end as if they had not been: weights, logs, ``best/`` and files.

A kill comes at a change of the output directory, in Python's or in TensorFlow's code, or at a
random time, and every third run is killed once more when it resumes. The number of runs is that of
the environment variable KILLS; beyond a few there are timed kills and runs of two ranks too.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.sealed_json import SEAL
from tests.support import ROOT, environment, requires_horovod

KILLS = int(os.environ.get("KILLS", "2"))

# The loss falls and rises, so that the best checkpoint is neither the first nor the last, and early
# stopping ends the run.
FLAGS = [
    "--do_train",
    "--do_eval",
    "--deterministic",
    "--num_train_steps=18",
    "--num_warmup_steps=15",
    "--learning_rate=0.02",
    "--eval_every_steps=3",
    "--max_eval_steps=1",
    "--early_stopping_evaluations=2",
    "--display_loss_steps=2",
    "--keep_checkpoint_max=2",
]
# Two phases, the second of which takes over the optimizer's state of the first, where updates grow
# after the second and the third one.
PHASES = (
    ["--num_train_steps=4", "--num_warmup_steps=2", "--save_checkpoints_steps=2",
     "--train_batch_size=2", "--global_batch_size=8", "--batch_ramp=4:0,8:2",
     "--length_ramp=16:0,32:3"],
    ["--num_train_steps=7", "--num_warmup_steps=2", "--resume_from=previous"],
)  # fmt: skip
# What a run measures of itself, and a digest of it.
TIMES = ("time", "sequences_per_second", SEAL)


class Runs:
    """Starts of one command, some of which are killed."""

    def __init__(self, flags, killer, directory):
        self.flags, self.killer, self.directory = flags, killer, directory
        self.references = {}

    def start(self, ranks, output_dir, kill_at=None, seconds=None):
        """Status and output; ``kill_at`` is a change of ``output_dir``, ``seconds`` a time."""
        command = [sys.executable, "run_pretraining.py", *self.flags]
        command.append(f"--output_dir={output_dir}")
        if ranks > 1:
            # Half a micro batch each: as many steps, in other sums.
            command += ["--horovod", "--scale_steps_by_ranks=false", "--train_batch_size=4"]
            command = ["mpirun", "-np", str(ranks), "--oversubscribe", *command]
        counted = {"LD_PRELOAD": str(self.killer), "KILL_UNDER": str(output_dir)}
        if kill_at is not None:
            counted["KILL_AT"] = str(kill_at)
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment(), **counted},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return process.returncode, output

    def reference(self, ranks):
        """(state, number of changes, seconds) of a run that nobody kills."""
        if ranks not in self.references:
            output_dir = self.directory / f"reference_{ranks}"
            began = time.monotonic()
            status, output = self.start(ranks, output_dir)
            assert status == 0, output
            changes = max(map(int, re.findall(r"changes: (\d+)", output)))
            self.references[ranks] = (state_of(output_dir), changes, time.monotonic() - began)
        return self.references[ranks]


@pytest.fixture(scope="module")
def runs(flags, killer, tmp_path_factory):
    return Runs([*flags, *FLAGS], killer, tmp_path_factory.mktemp("kills"))


@pytest.fixture(scope="module")
def plans(flags, killer, tmp_path_factory):
    """Like ``runs``, in phases."""
    directory = tmp_path_factory.mktemp("plans")
    files = [directory / f"{number}.flags" for number in range(len(PHASES))]
    for path, lines in zip(files, PHASES):
        path.write_text("\n".join(lines))
    given = ["--do_train", "--deterministic", f"--phases={','.join(map(str, files))}"]
    return Runs([*flags, *given], killer, directory)


def state_of(output_dir):
    """All that a run leaves behind, without times."""
    logs = {
        str(path.relative_to(output_dir)): [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in output_dir.rglob("*.jsonl")
    }
    return {
        "files": sorted(
            str(path.relative_to(output_dir))
            for path in output_dir.rglob("*")
            if not path.name.startswith("events.")
        ),
        "logs": {
            name: [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
            for name, lines in logs.items()
        },
        "results": [path.read_text() for path in sorted(output_dir.rglob("eval_results.*"))],
        "list": [path.read_text() for path in sorted(output_dir.rglob("checkpoint"))],
        "weights": [variables_of(path) for path in sorted(output_dir.rglob("*.index"))],
    }


def variables_of(index):
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
def test_the_reference_is_worth_comparing_with(runs):
    state, changes, _ = runs.reference(1)
    losses = [line["loss"] for line in state["logs"]["eval_log.jsonl"]]
    assert 0 < losses.index(min(losses)) < len(losses) - 1
    assert state["logs"]["log.jsonl"][-1]["step"] < 18, "it stopped early"
    assert changes > 100


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_anywhere_it_ends_the_same(runs, tmp_path, number):
    assert_ends_the_same(runs, tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_a_plan_killed_anywhere_ends_the_same(plans, tmp_path, number):
    state, *_ = plans.reference(1)
    assert {"plan.json", "phase_1/run.json", "phase_2/model.ckpt-7.index"} <= set(state["files"])
    assert_ends_the_same(plans, tmp_path, number)


def assert_ends_the_same(runs, tmp_path, number):
    """Kills a run, twice for some numbers, and compares what is left at its end."""
    rng = random.Random(number)
    ranks = 2 if number % 5 == 4 else 1
    if ranks > 1 and requires_horovod.args[0]:
        pytest.skip(requires_horovod.kwargs["reason"])
    expected, changes, seconds = runs.reference(ranks)
    output_dir = tmp_path / "model"
    for _ in range(2 if number % 3 == 0 else 1):
        timed = number % 4 == 3
        where = {"seconds": rng.uniform(0.2, 1) * seconds} if timed else {
            "kill_at": rng.randrange(changes)
        }  # fmt: skip
        print(number, ranks, where, runs.start(ranks, output_dir, **where))
    status, output = runs.start(ranks, output_dir)
    assert status == 0, output
    found = state_of(output_dir)
    for part in ("logs", "results", "list", "files"):
        assert found[part] == expected[part], output
    assert len(found["weights"]) == len(expected["weights"])
    for values, others in zip(found["weights"], expected["weights"]):
        assert values.keys() == others.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(value, others[name], err_msg=name)
