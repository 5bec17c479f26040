"""What all programs share: results that survive an error, turns in processes."""

from __future__ import annotations

import json
import os
import time

import pytest

from benchmarks.results import print_table
from benchmarks.speed.comparison import subject_results
from benchmarks.speed.load import ForeignLoad, busy_seconds
from benchmarks.speed.process import run_in_process
from benchmarks.speed.subjects import PADDED, SUBJECTS, Subject, default_subjects, with_other_python
from benchmarks.speed.turns import rotated, take_turns
from bert_tf.util.errors import UserError
from tests.helpers.programs import run

PROGRAM = """
from benchmarks.results import result
from benchmarks.script import run_benchmark, shared_flags
from bert_tf.util.errors import UserError

def measure():
    yield result("speed", 2.0, "x", {"threads": 1})
    raise UserError("the peer failed")

run_benchmark(shared_flags("json", turns=3), measure)
"""


def test_what_was_measured_before_an_error_is_written(tmp_path):
    path, program = tmp_path / "results.json", tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run(program, f"--json={path}", check=False)
    assert (done.returncode, done.stderr) == (2, "error: the peer failed\n")
    (found,) = json.loads(path.read_text())
    assert {"threads", "cpu", "cpu_features", "cores"} == set(found.pop("config"))
    assert found == {"name": "speed", "subject": "ours", "value": 2.0, "unit": "x"}


def turn(seconds, foreign=0.0, **more):
    return {"seconds": seconds, "foreign_share": foreign, "memory": 3.0, **more}


FOUND = {
    "ours": [turn(0.5, precision="bf16"), turn(1.0, precision="bf16"), turn(0.25)],
    "google-bert": [turn(1.0), turn(4.0), turn(1.0, foreign=0.5)],
    "limit-bf16": [turn(0.25), turn(0.25), turn(0.25)],
}
PRESENT = [SUBJECTS[name] for name in ("ours", "google-bert", "limit-bf16", "ours-fp32")]


def figures(found):
    return {"step": (4 / found["seconds"], "sequences/s"), "peak memory": (found["memory"], "MiB")}


def test_results_are_medians_and_ratios_turn_by_turn(capsys):
    results = subject_results(PRESENT, FOUND, figures, config={"a": 1})
    assert {(r["name"], r["subject"]): (r["value"], r["unit"]) for r in results} == {
        ("step", "ours"): (8.0, "sequences/s"),
        ("step", "google-bert"): (4.0, "sequences/s"),
        ("step", "limit-bf16"): (16.0, "sequences/s"),
        **{("peak memory", name): (3.0, "MiB") for name in FOUND},
        ("step, ours to google-bert", "ours"): (4.0, "ratio"),  # of 2, 4 and 4
        ("step, ours to limit-bf16", "ours"): (0.5, "ratio"),
    }
    by_subject = {r["subject"]: r["config"] for r in results if r["unit"] == "sequences/s"}
    assert by_subject["ours"]["precision"] == "bf16"
    assert by_subject["google-bert"]["others_share_of_machine"] == [0.0, 0.0, 0.5]
    print_table(results, most_foreign=0.06)
    _, _, ours, google, _ = capsys.readouterr().out.splitlines()
    assert ours.split() == ["ours", "8", "4", "to", "16", "1", "3"]
    assert google.split() == ["google-bert", "*", "4", "1", "to", "4", "4", "3"]


A, B, C = (Subject(name, "module") for name in "abc")


def test_turns_rotate_and_the_least_disturbed_of_repeated_ones_counts(capsys):
    orders = ["".join(s.name for s in rotated([A, B, C], turn)) for turn in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]
    shares = iter([0.5, 0.1, 0.3, None, 0.01])
    taken = take_turns(
        [A, B, C], lambda _: {"foreign_share": next(shares)}, turns=1, most_foreign=0.06, retries=2
    )
    assert [taken.found[name][0]["foreign_share"] for name in "abc"] == [0.1, None, 0.01]
    assert capsys.readouterr().err.count("other processes took") == 3


def test_a_subject_that_fails_is_left_out_and_said():
    def measure(subject):
        if subject is B:
            raise UserError("no compiler.")
        return {"foreign_share": 0.0}

    taken = take_turns([A, B], measure, turns=3)
    assert [(name, len(turns)) for name, turns in taken.found.items()] == [("a", 3)]
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


def test_the_time_of_the_own_processors_is_added_up(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    stat = tmp_path / "stat"
    others = ["cpu 1 1 1 1 1 1 1 1 0 0", "cpu9999 1 1 1 1 1 1 1 1 0 0", "intr 7 8"]
    # user, nice, system, idle, waiting for disks, two kinds of interrupts, stolen, guests
    stat.write_text("\n".join([*others, *(f"cpu{n} 100 20 3 5000 6000 1 1 75 9 9" for n in own)]))
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(str(stat)) == 200 * len(own) / ticks
    for text in ("\n".join(others), "?", "cpu0 1\n"):
        stat.write_text(text)
        assert busy_seconds(str(stat)) is None
    assert busy_seconds(str(tmp_path / "none")) is None
    before = busy_seconds()
    assert before > 0
    assert busy_seconds() >= before


CHILD = """
import os
def found(job): return {"sum": job["number"] + job["settings"]["more"], "of": os.environ["OF"]}
def broken(job): raise ValueError("first line\\nsecond line")
"""


def test_a_turn_is_a_process(tmp_path, monkeypatch):
    (tmp_path / "a_child_of_a_turn.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Subject("a", "a_child_of_a_turn", {"more": 2}, {"OF": "environment"})
    found = run_in_process(child, {"number": 1}, "found")
    assert (found["sum"], found["of"]) == (3, "environment")
    assert 1 << 20 < found["peak_memory_bytes"] < 1 << 33
    with pytest.raises(UserError, match=r"^ValueError: first line$"):
        run_in_process(child, {}, "broken")


def test_who_takes_part_and_who_is_compared():
    ours, xla, peer = (SUBJECTS[name] for name in ("ours", "ours-xla", "transformers-fp32"))
    everybody = with_other_python([ours, xla, peer], "/python")
    assert [subject.python for subject in everybody] == [None, None, None, "/python", "/python"]
    compared = {(a.name, b.name) for a in everybody for b in everybody if a.is_compared_with(b)}
    assert compared == {(one, peer.name) for one in ("ours", "ours-xla")} | {
        (one, f"{one}-other-python") for one in ("ours", "ours-xla")
    }
    assert ours.is_compared_with(PADDED)
    assert not PADDED.is_compared_with(ours)
    able = default_subjects(SUBJECTS, cpu_features=["avx512f"], has_google_bert=False)
    here = {subject.name for subject in able}
    assert {"ours", "ours-fp32", "transformers-fp32-malloc", "limit-fp32"} <= here
    assert not {"ours-bf16", "limit-bf16", "transformers-bf16", "google-bert"} & here
