"""What all benchmarks' programs share: checked flags, and results that survive an error."""

from __future__ import annotations

import json

import pytest
from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.script import REQUIRED, define_flags, known_names, shared_flags, whole_numbers
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
    path = tmp_path / "results.json"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run(program, f"--json={path}", check=False)
    assert (done.returncode, done.stderr) == (2, "error: the peer failed\n")
    (found,) = json.loads(path.read_text())
    assert {"threads", "cpu", "cpu_features", "cores"} == set(found.pop("config"))
    assert found == {"name": "speed", "subject": "ours", "value": 2.0, "unit": "x"}


def test_flags_of_a_table():
    values = flags.FlagValues()
    table = {
        "whole": (3, "a", 2), "broken": (0.5, "b"), "names": (["x"], "c"),
        "word": (("u", "v"), "d"), "is_on": (True, "e"), "none": (int, "f"),
        "file": (REQUIRED, "g"),
    }  # fmt: skip
    define_flags(table, values)
    values(["program", "--file=f", "--none=7", "--nois_on", "--word=v"])
    found = values.flag_values_dict()
    assert found == {
        "whole": 3, "broken": 0.5, "names": ["x"], "word": "v", "is_on": False, "none": 7,
        "file": "f",
    }  # fmt: skip
    with pytest.raises(flags.IllegalFlagValueError):
        values(["program", "--file=f", "--whole=1"])
    assert shared_flags("json", turns=9)["turns"][0] == 9


def values_of(*texts):
    values = flags.FlagValues()
    flags.DEFINE_list("sizes", list(texts), "", flag_values=values)
    values(["program"])
    return values


def test_numbers_of_a_list():
    assert whole_numbers("sizes", values=values_of("3", "1")) == [3, 1]
    assert whole_numbers("sizes", may_be_empty=True, values=values_of()) == []
    for texts, least in ((("2", "x"), 1), (("0",), 1), (("4",), 5), ((), 1)):
        expected = f"--sizes={','.join(texts)}: give whole numbers from {least} on"
        with pytest.raises(UserError, match=expected):
            whole_numbers("sizes", least=least, values=values_of(*texts))


def test_names_of_a_list():
    assert known_names("sizes", ("a", "b"), values_of("b", "a", "b")) == ["b", "a"]
    with pytest.raises(UserError, match="--sizes: 'c' is none of a, b"):
        known_names("sizes", ("a", "b"), values_of("a", "c"))


def test_machine(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A CPU 9\nflags\t\t: fpu avx2 avx512_bf16 sse\n" * 2)
    described = describe_machine(cpuinfo)
    assert (described["cpu"], described["cpu_features"]) == ("A CPU 9", ["avx2", "avx512_bf16"])
    assert described["cores"] >= 1
    assert describe_machine(tmp_path / "none")["cpu_features"] == []
