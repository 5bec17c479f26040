from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.squad_latency import Plan, Shape, make_batch, measure, summarise
from tests.small_span_model import CONFIG
from tests.support import run


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(CONFIG.to_dict()))
    return path


def test_results_are_printed_and_written(config_file, tmp_path):
    done = run(
        "-m", "benchmarks.squad_latency", f"--bert_config_file={config_file}", "--batch_sizes=1,2",
        "--seq_lengths=16", "--precisions=fp32", "--repetitions=2", "--warmup=1",
        "--peer=transformers", f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == 2 * 2 * 5  # batch sizes, subjects, figures
    assert {result["subject"] for result in results} == {"ours", "transformers"}
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    assert all(result["value"] > 0 for result in results)
    p50, *_, throughput = results[:5]
    assert (p50["name"], p50["unit"]) == ("latency p50", "ms")
    assert (throughput["name"], throughput["unit"]) == ("throughput", "sequences/s")
    expected = {"batch_size": 1, "seq_length": 16, "precision": "fp32", "measured_batches": 4}
    assert expected.items() <= p50["config"].items()
    assert {"cpu", "cpu_features", "cores", "hidden_size"} <= set(p50["config"])
    assert len(done.stdout.splitlines()) == 1 + 4


def test_percentiles():
    seconds = np.arange(101) / 1000
    results = summarise(seconds, Shape(4, 8, "fp32"), subject="ours", config={})
    assert [r["value"] for r in results] == pytest.approx([50, 90, 95, 99, 4 / 0.05])


def test_sides_take_turns_and_warm_up_is_not_counted():
    calls = []
    subjects = {name: (lambda _, name=name: calls.append(name)) for name in ("a", "b")}
    taken = measure(subjects, {}, Plan(rounds=2, repetitions=3, warmup=1))
    assert "".join(calls) == "aaaabbbbaaaabbbb"
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 6, "b": 6}


def test_batches_are_full():
    batch = make_batch(Shape(3, 12, "fp32"), vocab_size=7)
    assert all(values.shape == (3, 12) for values in batch.values())
    assert batch["input_mask"].all()
    assert batch["input_ids"].max() < 7
    assert set(batch["segment_ids"].ravel()) == {0, 1}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--seq_lengths=65"], "--seq_lengths: 65"),
        (["--batch_sizes=1,x"], "--batch_sizes=1,x"),
        (["--batch_sizes=0"], "--batch_sizes=0"),
        (["--bert_config_file="], "--bert_config_file"),
    ],
)
def test_bad_input_is_one_sentence(config_file, flags, sentence):
    command = ["-m", "benchmarks.squad_latency", f"--bert_config_file={config_file}", *flags]
    done = run(*command, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
