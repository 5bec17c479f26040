from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.inference import batch_figures, window_lengths
from benchmarks.speed.predictions import PredictionJob, time_batches
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.programs import run
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY

QUESTIONS = ("Who?", "Who wrote the book?", "Where did she live, by the sea?")


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    return path


@pytest.fixture
def squad_file(tmp_path):
    qas = [{"id": q, "question": q, "answers": []} for q in QUESTIONS]
    content = {"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": qas}]}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", **content}))
    return path


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(CONFIG.to_dict()))
    return path


@pytest.mark.parametrize(("lengths", "rate"), [((), 4 / 0.05), ((4, 9), 4 / 0.06)])
def test_figures_of_a_turn(lengths, rate):
    """Milliseconds 0 to 100 and a long one; of real sequences the mean batch counts."""
    job = PredictionJob(CONFIG, (1, 4), 8, threads=1, warmup=1, repetitions=1, lengths=lengths)
    seconds = (np.arange(101) / 1e3).tolist()
    if lengths:
        seconds[-1] += 1.01
    found = {"batch_seconds": [[1.0], seconds]}
    values = batch_figures(job, 1, found)
    name = "prediction, batch of 4"
    assert values.pop(name) == (pytest.approx(rate), "sequences/s")
    assert values == {
        f"{name}, p50": (pytest.approx(50), "ms"),
        f"{name}, p90": (pytest.approx(90), "ms"),
        f"{name}, p99": (pytest.approx(99), "ms"),
    }


def test_batches_of_each_size_after_a_warm_up():
    job = PredictionJob(CONFIG, (1, 3), seq_length=8, threads=1, warmup=1, repetitions=2)
    seen = []
    found = time_batches(job, lambda batch: seen.append(batch))
    assert [len(batch["input_ids"]) for batch in seen] == [1, 1, 1, 3, 3, 3]
    assert [len(seconds) for seconds in found["batch_seconds"]] == [2, 2]
    assert all(batch["input_mask"].all() for batch in seen)
    assert set(seen[0]) == {"input_ids", "input_mask", "segment_ids"}


def test_batches_of_real_lengths():
    """The longest first; padded to the longest of a batch, or to all positions."""
    job = PredictionJob(CONFIG, (2,), seq_length=32, threads=1, warmup=1, repetitions=3,
                        lengths=(4, 30, 17, 9))  # fmt: skip
    by_length, padded = (job.batches(2, by_length=choice) for choice in (True, False))
    for batches, positions in ((by_length, [32, 16]), (padded, [32, 32])):
        assert [batch["input_mask"].shape for batch in batches] == [(2, p) for p in positions]
        tokens = [batch["input_mask"].sum(axis=1).tolist() for batch in batches]
        assert tokens == [[30, 17], [9, 4]]
    for short, full in zip(by_length, padded):
        kept = short["input_ids"].shape[1]
        np.testing.assert_array_equal(short["input_ids"], full["input_ids"][:, :kept])
        assert not full["input_ids"][:, kept:].any()
    seen = []
    found = time_batches(job, lambda batch: seen.append(batch), by_length=True)
    assert [batch["input_ids"].shape[1] for batch in seen] == [32, 16, 32, 16, 32, 16]
    assert len(found["batch_seconds"][0]) == 4


def test_lengths_of_windows(squad_file, vocab_file):
    tokenizer = TokenizerFiles(vocab_file, do_lower_case=True).load()
    context = len(tokenizer.encode(TEXT))
    whole = tuple(context + len(tokenizer.encode(q)) + 3 for q in QUESTIONS)
    assert window_lengths(squad_file, vocab_file, seq_length=64, most=99) == whole
    assert window_lengths(squad_file, vocab_file, seq_length=64, most=2) == whole[:2]


@pytest.mark.slow
def test_real_lengths_with_their_ratio_to_padding(config_file, squad_file, vocab_file, tmp_path):
    run(
        "-m", "benchmarks.inference", f"--bert_config_file={config_file}", "--batch_sizes=2",
        f"--squad_file={squad_file}", f"--vocab_file={vocab_file}", "--seq_length=64",
        "--repetitions=1", "--turns=1", "--retries=0", "--threads=1", "--subjects=ours,ours-padded",
        f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    ratios = [r["name"] for r in results if r["unit"] == "ratio"]
    assert ratios == ["prediction, batch of 2, ours to ours-padded"]
    assert results[0]["config"]["real_sequences"] == len(QUESTIONS)


@pytest.mark.slow
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
    assert [len(table.splitlines()) for table in done.stdout.split("\n\n")[1:]] == [1 + 2] * 2


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--seq_length=65", "--seq_length=65 is more than the network's 64 positions"),
        ("--batch_sizes=1,x", "--batch_sizes=1,x: give whole numbers"),
        ("--batch_sizes=0", "--batch_sizes=0: give whole numbers"),
        ("--squad_file=none.json", "--squad_file needs --vocab_file"),
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
