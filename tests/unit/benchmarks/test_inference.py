from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.inference import prediction_results, prediction_table
from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.subjects import PREDICTING
from tests.small_span_model import CONFIG
from tests.support import run


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(CONFIG.to_dict()))
    return path


def test_results_of_all_turns():
    """Milliseconds 0 to 100 in two turns, and a peer of twice the median."""
    halves = (np.arange(51) / 1e3).tolist(), (np.arange(51, 101) / 1e3).tolist()
    found = {
        "ours": [{"batch_seconds": [half], "foreign_share": 0.0} for half in halves],
        "google-bert": [{"batch_seconds": [[0.1]], "foreign_share": None}],
    }
    results = prediction_results(list(PREDICTING.values()), found, [4], {"cores": 2})
    values = {(r["name"], r["subject"]): (r["value"], r["unit"]) for r in results}
    assert values == {
        ("latency p50", "ours"): (pytest.approx(50), "ms"),
        ("latency p90", "ours"): (pytest.approx(90), "ms"),
        ("latency p99", "ours"): (pytest.approx(99), "ms"),
        ("prediction", "ours"): (pytest.approx(4 / 0.05), "sequences/s"),
        **{(f"latency p{p}", "google-bert"): (pytest.approx(100), "ms") for p in (50, 90, 99)},
        ("prediction", "google-bert"): (pytest.approx(40), "sequences/s"),
        ("prediction, ours to google-bert", "ours"): (pytest.approx(2), "ratio"),
    }
    assert {"batch_size": 4, "batches": 101, "cores": 2}.items() <= results[0]["config"].items()
    _, ours, peer = prediction_table(results)
    assert ours.split() == ["ours", "4", "50.0", "90.0", "99.0", "80.00"]
    assert peer.split()[:2] == ["google-bert", "4"]


def test_batches_of_each_size_after_a_warm_up():
    job = PredictionJob(CONFIG, (1, 3), seq_length=8, threads=1, warmup=1, repetitions=2)
    seen = []
    found = time_batches(job, lambda batch: seen.append(batch))
    assert [len(batch["input_ids"]) for batch in seen] == [1, 1, 1, 3, 3, 3]
    assert [len(seconds) for seconds in found["batch_seconds"]] == [2, 2]
    assert all(batch["input_mask"].all() for batch in seen)
    assert set(seen[0]) == {"input_ids", "input_mask", "segment_ids"}


def test_whole_benchmark(config_file, tmp_path):
    done = run(
        "-m", "benchmarks.inference", f"--bert_config_file={config_file}", "--batch_sizes=1,2",
        "--seq_length=16", "--repetitions=2", "--warmup=1", "--turns=1", "--retries=0",
        "--threads=1", "--subjects=ours-fp32,transformers-fp32", f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    assert len(results) == 2 * (2 * 4 + 1)
    assert all(r["value"] > 0 for r in results)
    assert results[0]["config"]["precision"] == "fp32"
    assert {"cpu", "cpu_features", "cores"} <= set(results[0]["config"])
    assert len(done.stdout.split("\n\n")[1].splitlines()) == 1 + 4


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--seq_length=65", "--seq_length=65 is more than the network's 64 positions"),
        ("--batch_sizes=1,x", "--batch_sizes=1,x: give whole numbers"),
        ("--batch_sizes=0", "--batch_sizes=0: give whole numbers"),
        ("--bert_config_file=none", "--bert_config_file: none does not exist"),
        ("--subjects=limit-fp32", "--subjects: 'limit-fp32' is none of ours,"),
    ],
)
def test_bad_input_is_one_sentence(config_file, flag, sentence):
    command = [f"--bert_config_file={config_file}", "--seq_length=16", flag]
    done = run("-m", "benchmarks.inference", *command, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
