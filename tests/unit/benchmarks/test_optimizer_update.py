"""Both forms of an update side by side, at the smallest size."""

import json

import pytest

from benchmarks.optimizer_update import summarise
from bert_tf.native.library import library_path
from tests.support import run


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "network.json"
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    path.write_text(json.dumps({**sizes, "intermediate_size": 8, "max_position_embeddings": 16}))
    return path


def test_medians_and_ratios_within_a_turn():
    taken = {"native": [1.0, 2.0, 4.0], "tensorflow": [3.0, 4.0, 4.0]}
    rows = summarise(taken, "lamb", {"threads": 1})
    assert [(row["name"], row["subject"], row["value"], row["unit"]) for row in rows] == [
        ("update_lamb", "native", 2.0, "s"),
        ("update_lamb", "tensorflow", 4.0, "s"),
        ("update_lamb_speedup", "native", 2.0, "x"),
    ]


@pytest.mark.skipif(not library_path().is_file(), reason="the native operations are not built")
def test_figures_of_both_optimizers(network, tmp_path):
    out = tmp_path / "out.json"
    flags = [f"--bert_config_file={network}", "--turns=1", "--updates=1", f"--json={out}"]
    run("-m", "benchmarks.optimizer_update", "--num_threads=1", *flags)
    rows = json.loads(out.read_text())
    assert [row["name"] for row in rows] == [
        *["update_adamw"] * 2,
        "update_adamw_speedup",
        *["update_lamb"] * 2,
        "update_lamb_speedup",
    ]
    assert all(row["value"] > 0 and row["config"]["threads"] == 1 for row in rows)


def test_another_optimizer_is_one_sentence(network):
    flags = [f"--bert_config_file={network}", "--optimizers=adamw,sgd"]
    done = run("-m", "benchmarks.optimizer_update", *flags, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: --optimizers: sgd is not one of adamw, lamb.\n"
