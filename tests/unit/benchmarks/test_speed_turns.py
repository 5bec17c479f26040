from __future__ import annotations

import dataclasses
import os
import sys
import time

import pytest

from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import run_in_process
from benchmarks.speed.subjects import PADDED, SUBJECTS, Subject, default_subjects, with_other_python
from benchmarks.speed.turns import rotated, take_turns
from bert_tf.util.errors import UserError

A, B, C = (Subject(name, "module") for name in "abc")


def test_another_subject_begins_in_each_turn():
    orders = ["".join(s.name for s in rotated([A, B, C], turn)) for turn in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_the_least_disturbed_of_repeated_turns_counts(capsys):
    shares = iter([0.5, 0.1, 0.3, None, 0.01])

    def measure(subject):
        return {"foreign_share": next(shares), "subject": subject.name}

    taken = take_turns([A, B, C], measure, turns=1, most_foreign=0.06, retries=2)
    assert [taken.found[name][0]["foreign_share"] for name in "abc"] == [0.1, None, 0.01]
    printed = capsys.readouterr().err
    assert printed.count("other processes took") == 3
    assert "a: other processes took 50% of the machine" in printed


def test_a_subject_that_fails_is_left_out_and_said():
    measured = []

    def measure(subject):
        measured.append(subject.name)
        if subject is B:
            raise UserError("no compiler.")
        return {"foreign_share": 0.0}

    taken = take_turns([A, B], measure, turns=3)
    assert measured == ["a", "b", "a", "a"]
    assert list(taken.found) == ["a"]
    assert len(taken.found["a"]) == 3
    with pytest.raises(UserError, match=r"^b failed and is left out: no compiler\.$"):
        taken.raise_failures()


def test_load_of_others(tmp_path, monkeypatch):
    stat, clock = tmp_path / "stat", {"wall": 100.0, "own": 3.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clock["wall"])
    # Of this process and, in the third and fourth place, of those that it started.
    monkeypatch.setattr(os, "times", lambda: (1.0, 1.0, clock["own"] - 3.0, 1.0, 77.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    second = os.sysconf("SC_CLK_TCK")

    def write(user, idle, waiting, stolen):
        columns = [user, 0, 0, idle, waiting, 0, 0, stolen, 99, 99]
        lines = [f"cpu{core} {' '.join(['0'] * 10)}" for core in range(3)]
        lines += [f"cpu{core} {' '.join(str(int(c * second)) for c in columns)}" for core in (3, 4)]
        stat.write_text("\n".join(["cpu 0", *lines]) + "\n")

    write(user=50, idle=10, waiting=10, stolen=0)
    load = ForeignLoad(stat)
    clock.update(wall=110.0, own=23.0)
    write(user=80, idle=17, waiting=11, stolen=2)  # 30 s of work and 2 s stolen; 20 s are our own
    assert load.share() == pytest.approx(12 / 40)
    clock.update(own=200.0)
    assert load.share() == 0.0
    assert ForeignLoad(tmp_path / "none").share() is None


CHILD = """
import os
def found(job): return {"sum": job["number"] + job["settings"]["more"], "of": os.environ["OF"]}
def broken(job): raise ValueError("first line\\nsecond line")
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "a_child_of_a_turn.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Subject("a", "a_child_of_a_turn", {"more": 2}, {"OF": "environment"})


def test_a_turn_is_a_process(child):
    found = run_in_process(child, {"number": 1}, "found")
    assert (found["sum"], found["of"]) == (3, "environment")
    assert 1 << 20 < found["peak_memory_bytes"] < 1 << 33


def test_a_process_that_fails_says_why_in_one_line(child):
    with pytest.raises(UserError, match=r"^ValueError: first line$"):
        run_in_process(child, {}, "broken")


def test_a_turn_may_have_an_interpreter_of_its_own(child, tmp_path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho asked > {tmp_path}/asked\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    found = run_in_process(dataclasses.replace(child, python=str(other)), {"number": 1}, "found")
    assert found["sum"] == 3
    assert (tmp_path / "asked").exists()


def test_another_interpreter_is_for_ours():
    ours, xla, peer = (SUBJECTS[name] for name in ("ours", "ours-xla", "transformers-fp32"))
    everybody = with_other_python([ours, xla, peer], "/python")
    assert [subject.python for subject in everybody] == [None, None, None, "/python", "/python"]
    assert [(a.name, b.name) for a in everybody for b in everybody if a.is_compared_with(b)] == [
        ("ours", "transformers-fp32"),
        ("ours", "ours-other-python"),
        ("ours-xla", "transformers-fp32"),
        ("ours-xla", "ours-xla-other-python"),
    ]


def names(subjects):
    return {subject.name for subject in subjects}


def test_default_subjects_are_those_that_can_run():
    everybody = names(default_subjects(SUBJECTS, cpu_features=["amx_bf16"], has_google_bert=True))
    assert everybody == set(SUBJECTS)
    here = names(default_subjects(SUBJECTS, cpu_features=["avx512f"], has_google_bert=False))
    assert {"ours", "ours-fp32", "transformers-fp32-malloc", "limit-fp32"} <= here
    assert not {"ours-bf16", "limit-bf16", "transformers-bf16", "google-bert"} & here


def test_ours_is_compared_with_itself_padded():
    ours, peer = SUBJECTS["ours"], SUBJECTS["transformers-fp32"]
    assert ours.is_compared_with(PADDED)
    assert not PADDED.is_compared_with(ours)
    assert not PADDED.is_compared_with(peer)
