"""The worker pool: order, bounds, errors, killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_tf.durable.executor import Processes
from bert_tf.util.errors import UserError

ROOT = Path(__file__).parents[2]


def make_square():
    return _square


def _square(value):
    return value * value


def make_failing():
    return _fail_at_three


def _fail_at_three(value):
    if value == 3:
        raise ValueError("three is too many")
    return value


def make_user_error():
    return _raise_user_error


def _raise_user_error(value):
    raise UserError(f"--flag={value}: give another.")


def make_killed():
    return _die_at_one


def _die_at_one(value):
    if value == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def make_array():
    return _array


def _array(value):
    return {"value": value, "array": np.full((300, 1000), value), "odd": np.full(7, value, np.int8)}


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_results_are_in_the_order_of_the_items(num_workers):
    results = Processes(num_workers).map(make_square, range(50), what="test")
    assert list(results) == [value * value for value in range(50)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_no_more_items_are_under_way_than_stated(num_workers):
    taken = []

    def items():
        for value in range(60):
            taken.append(value)
            yield value

    results = Processes(num_workers).map(make_square, items(), what="test")
    for received, _ in enumerate(results, start=1):
        assert len(taken) - received <= 2 * num_workers + 1
    assert len(taken) == 60


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("items", [[], [7]])
def test_few_items(num_workers, items):
    results = Processes(num_workers).map(make_square, items, what="test")
    assert list(results) == [item * item for item in items]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_exception_of_a_worker_is_one_sentence(num_workers):
    results = Processes(num_workers).map(make_failing, range(9), what="counting")
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match=r"^counting: failed with ValueError: three is too many$"):
        next(results)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_user_error_of_a_worker_is_passed_on(num_workers):
    with pytest.raises(UserError, match=r"^--flag=5: give another.$"):
        list(Processes(num_workers).map(make_user_error, [5], what="test"))


def test_killed_worker_is_one_sentence():
    with pytest.raises(UserError, match=r"^counting: a worker process died .*--num_workers"):
        list(Processes(2).map(make_killed, range(9), what="counting"))


@pytest.mark.parametrize("is_kept", [True, False])
def test_large_arrays_arrive_whole(is_kept):
    kept = []
    for value, result in enumerate(Processes(2).map(make_array, range(40), what="test")):
        assert (result["array"] == value).all()
        result["odd"] += 1  # a result belongs to whoever has it
        if is_kept:
            kept.append(result)
    for value, result in enumerate(kept):
        assert result["value"] == value
        assert (result["array"] == value).all()
        assert (result["odd"] == value + 1).all()


def test_items_that_fail_are_reported():
    def items():
        yield 1
        raise UserError("--input_file: gone.")

    with pytest.raises(UserError, match="--input_file: gone"):
        list(Processes(2).map(make_square, items(), what="test"))


def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import itertools, os, signal, sys\n"
        "sys.path[:0] = sys.argv[1:]\n"
        "import test_executor as t\n"
        "if __name__ == '__main__':\n"
        "    results = t.Processes(2).map(t.make_square, itertools.count(), what='x')\n"
        "    print(next(results), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, str(script), str(ROOT), str(Path(__file__).parent)]
    # The workers hold the pipe as well: the output ends when the last of them has ended.
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.stdout == b"0\n"
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("given", "at_most", "expected"), [(3, None, 3), (1, None, 1), (3, 2, 2), (3, 0, 1), (2, 5, 2)]
)
def test_number_of_workers(given, at_most, expected):
    assert Processes.of(given, at_most).num_workers == expected


def test_all_cores_by_default():
    assert Processes.of(0).num_workers == len(os.sched_getaffinity(0))
    with pytest.raises(UserError, match="--num_workers=-1"):
        Processes.of(-1)
