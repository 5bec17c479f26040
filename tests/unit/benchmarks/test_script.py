"""What all benchmarks' programs share: checked flags, and results that survive an error."""

from __future__ import annotations

import json

import pytest
from absl import flags

from benchmarks.script import known_names, whole_numbers
from bert_tf.errors import UserError
from tests.support import run

PROGRAM = """
from benchmarks.results import result
from benchmarks.script import define_shared_flags, run_benchmark
from bert_tf.errors import UserError

def measure():
    yield result("speed", 2.0, "x", {"threads": 1})
    raise UserError("the peer failed")

run_benchmark(lambda: define_shared_flags("json", turns=3), measure)
"""


def test_what_was_measured_before_an_error_is_written(tmp_path):
    path = tmp_path / "results.json"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run(program, f"--json={path}", check=False)
    assert (done.returncode, done.stderr) == (2, "error: the peer failed\n")
    expected = {"name": "speed", "subject": "ours", "value": 2.0, "unit": "x"}
    assert json.loads(path.read_text()) == [{**expected, "config": {"threads": 1}}]


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
