"""The bytes of the output: numbers as Python's json module writes them, and arrays."""

import json

import numpy as np
import pytest

from bert_tf.tasks.vectors.forms import as_arrays, rows_as_json
from bert_tf.tasks.vectors.texts import TokenSequence
from bert_tf.util.errors import UserError

EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-6, -1e-6, 4.9e-7, 5e-7, 1.5e-6, 9.9e-5, 1e-4, 0.1234565,
    999.9999, 999.99999, -999.5, 12.000001, 3.1e-38, 100.0, 0.100001,
]  # fmt: skip


def naive(values):
    return [json.dumps([round(float(x), 6) for x in row])[1:-1].encode() for row in values]


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1, 30, 400, 1e5, 1e30])
def test_equal_to_json(scale):
    values = np.random.RandomState(0).randn(40, 50).astype(np.float32) * np.float32(scale)
    values[0, : len(EDGES)] = EDGES
    assert rows_as_json(values) == naive(values)


def test_halves_are_rounded_as_python_rounds_them():
    """A float32 that lies exactly between two numbers of six digits: k / 2**7 has seven."""
    values = (np.arange(-2000, 2000, dtype=np.float32) / 128).reshape(40, 100)
    assert rows_as_json(values) == naive(values)


def test_no_rows():
    assert rows_as_json(np.zeros((0, 5), np.float32)) == []


def test_numbers_beyond_half_precision():
    sequences = [TokenSequence(np.array([2, 5, 3], np.int32), 3, is_cut=False)]
    vectors = [np.full((1, 4), 70000, np.float32)]
    with pytest.raises(UserError, match="--output_dtype=float16 cannot hold a component of 7e"):
        as_arrays(0, sequences, vectors, dtype="float16")
