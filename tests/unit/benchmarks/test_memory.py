"""Peaks become lines, lines the largest batch; a batch that was tried counts more than the line."""

from __future__ import annotations

import json

import pytest

from benchmarks.largest_batch import Line, largest_fitting, least_exceeding, search
from benchmarks.memory import memory_table, ratio_results, subject_results
from benchmarks.speed.subjects import IN_MEMORY
from tests.helpers.programs import run

MIB, GIB = 1 << 20, 1 << 30


def test_the_line_and_its_largest_batch():
    line = Line.through({2: 7.0, 4: 11.0, 8: 19.0})
    assert (line.fixed, line.of_a_sequence) == (pytest.approx(3), pytest.approx(2))
    assert [line.largest_batch(limit) for limit in (2.9, 5.1, 13.0001)] == [0, 1, 5]


@pytest.mark.parametrize("bend", [0.0, 0.2, -0.1])
def test_the_search_ends_at_the_largest_batch(bend):
    """Memory is 100 and 10 a sequence, and each one takes more, or less, than those before it."""

    def measure(batch):
        tried.append(batch)
        return 100 + 10 * batch + bend / 10 * batch**2

    tried = []
    largest = max(batch for batch in range(1, 200) if measure(batch) <= 600)
    tried.clear()
    found = search(measure, {2: measure(2), 8: measure(8)}, limit=600, tries=9)
    fits, exceeds = largest_fitting(found, 600), least_exceeding(found, 600)
    assert fits <= largest < exceeds <= fits + max(1, int(0.03 * fits))
    assert len(tried) == len(set(tried)) <= 2 + 6


def test_no_tries_leave_the_line():
    peaks = {2: 20.0, 8: 50.0}
    assert search(pytest.fail, peaks, limit=100, tries=0) == peaks


def test_results_and_table():
    peaks = {
        ("ours-bf16", 512): {2: 120.0 * MIB, 4: 140.0 * MIB, 90: 1000.0 * MIB, 92: 1030.0 * MIB},
        ("google-bert", 512): {2: 140.0 * MIB, 4: 180.0 * MIB},
    }
    config = {"steps": 3, "seq_length": 512}
    results = []
    for (name, _), found in peaks.items():
        subject = IN_MEMORY[name]
        results += subject_results(subject, found, limit=1024 * MIB, config=config)
    results += ratio_results(results, list(IN_MEMORY.values()))
    values = {(r["name"], r["subject"]): r["value"] for r in results if "peak" not in r["name"]}
    assert values["largest batch", "ours-bf16"] == 90
    # 100 without sequences and 20 each: 46 of them are in the limit.
    assert values["largest batch", "google-bert"] == 46
    assert values["memory of a sequence", "google-bert"] == pytest.approx(20)
    assert values["largest batch, ours-bf16 to google-bert", "ours-bf16"] == pytest.approx(90 / 46)
    assert all({"seq_length", "steps"} <= set(r["config"]) for r in results)
    _, ours, peer = memory_table(peaks, 1024 * MIB)
    assert "90 < 92" in ours
    assert "46 (by the line)" in peer
    assert "2: 140  4: 180" in peer


@pytest.mark.slow
def test_whole_benchmark(tmp_path):
    network = {
        "vocab_size": 50,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
    }
    (tmp_path / "network.json").write_text(json.dumps(network))
    done = run(
        "-m", "benchmarks.memory", f"--bert_config_file={tmp_path}/network.json", "--threads=1",
        "--lengths=16", "--tokens=32,64", "--steps=1", "--tries=0", "--limit_gib=8",
        "--subjects=ours-fp32-recompute", f"--json={tmp_path}/memory.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "memory.json").read_text())
    assert [r["config"]["batch_size"] for r in results if r["name"] == "peak memory"] == [2, 4]
    assert results[0]["value"] > 100
    assert results[0]["config"]["settings"]["recompute"] is True
    assert "ours-fp32-recompute" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--lengths=513", "--lengths=513 is more than the network's 512 positions"),
        ("--tokens=4096", "--tokens=4096: give two numbers"),
        ("--tokens=4096,x", "--tokens=4096,x: give whole numbers from"),
        ("--subjects=ours-xla", "--subjects: 'ours-xla' is none of ours-fp32"),
    ],
)
def test_bad_flags_are_one_sentence(flag, sentence):
    done = run("-m", "benchmarks.memory", flag, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert len(done.stderr.splitlines()) == 1
