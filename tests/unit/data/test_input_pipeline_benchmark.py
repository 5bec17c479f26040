from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import input_pipeline
from tests.support import ROOT, environment


def run(*flags):
    command = [sys.executable, "-m", "benchmarks.input_pipeline", *map(str, flags)]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("masked", [True, False])
def test_results_are_printed_and_written(record_maker, tmp_path, masked):
    record_maker.write(tmp_path / "a.tfrecord", 30, masked=masked)
    record_maker.write_manifest(tmp_path)
    done = run(
        f"--input_file={tmp_path}",
        "--batch_size=4",
        "--seconds=0.1",
        "--training_sequences_per_second=2",
        f"--json={tmp_path}/results.json",
    )
    assert done.returncode == 0, done.stderr
    ours, training, ratio = json.loads((tmp_path / "results.json").read_text())
    assert [set(result) for result in (ours, training, ratio)] == [
        {"name", "subject", "value", "unit", "config"}
    ] * 3
    assert (training["value"], training["unit"]) == (2, "sequences/s")
    assert ours["value"] > 0
    assert ratio["value"] == ours["value"] / 2
    assert ours["config"] == {
        "batch_size": 4,
        "max_seq_length": 12,
        "masking": "stored" if masked else "at training time",
        "records": 30,
    }
    assert f"input pipeline: {ours['value']:,.1f} sequences/s" in done.stdout


def test_bad_input_ends_in_one_sentence(tmp_path):
    done = run(f"--input_file={tmp_path}/none.tfrecord")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --input_file: no file matches")
    assert done.stderr.count("\n") == 1


def test_products_of_a_step():
    """A forward pass takes 2 operations for each weight and token, and the attention products."""
    batch, length, predictions = 16, 128, 20
    shapes = list(
        input_pipeline._product_shapes(input_pipeline.BertBase(), batch, length, predictions)
    )
    operations = sum(2 * n * rows * inner * columns for n, rows, inner, columns in shapes)
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)
    attention = 12 * 2 * 2 * 768 * length * batch * length
    head = 2 * batch * predictions * (768**2 + 768 * 30522)
    assert operations == 2 * weights * batch * length + attention + head


def test_the_rate_of_products_is_measured():
    tiny = input_pipeline.BertBase(hidden=8, layers=2, heads=2, intermediate=16, vocab=30)
    rate = input_pipeline.product_rate(tiny, batch_size=2, seq_length=4, predictions=1, seconds=0.0)
    assert rate > 0
