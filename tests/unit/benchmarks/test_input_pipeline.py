from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers.programs import ROOT, environment


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
    assert (
        ours["config"].items()
        >= {
            "batch_size": 4,
            "max_seq_length": 12,
            "masking": "stored" if masked else "at training time",
            "records": 30,
        }.items()
    )
    assert f"{ours['value']:.4g} sequences/s" in done.stdout


def test_bad_input_ends_in_one_sentence(tmp_path):
    done = run(f"--input_file={tmp_path}/none.tfrecord")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --input_file: no file matches")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_rate_of_products_is_measured(record_maker, tmp_path):
    record_maker.write(tmp_path / "a.tfrecord", 30, masked=True)
    done = run(
        f"--input_file={tmp_path}/a.tfrecord",
        "--batch_size=1",
        "--seconds=0",
        f"--json={tmp_path}/results.json",
    )
    assert done.returncode == 0, done.stderr
    ours, products, ratio = json.loads((tmp_path / "results.json").read_text())
    assert products["name"] == "matrix products of BERT-base"
    assert ratio["value"] == ours["value"] / products["value"]
