"""The settings beside auto, and how near auto comes to the best of them."""

import json

import pytest

from benchmarks.fastest_setting import AUTO, every_setting
from benchmarks.results import median_ratio, spread_result
from tests.helpers.programs import run


def test_rates_are_compared_turn_by_turn():
    """A turn in which all are three times slower changes nothing."""
    auto, slower, faster = (
        spread_result("rate", turns, "x", {})
        for turns in ([6.0, 2.0, 6.0], [3.0, 1.0, 3.0], [6.6, 2.2, 1.0])
    )
    assert median_ratio(auto, auto) == 1.0
    assert median_ratio(auto, slower) == 2.0
    assert median_ratio(auto, faster) == pytest.approx(1 / 1.1)


def test_every_setting_is_one_that_a_user_can_give():
    settings = every_setting(8)
    assert [subject.name for subject in settings[:2]] == [AUTO, "fp32, native, threads 8"]
    assert len({str(s.settings) for s in settings}) == len(settings) == 1 + 2 * 2 * 2
    assert {subject.settings["threads"] for subject in settings[1:]} == {8, 4}
    assert len(every_setting(1)) == 1 + 2 * 2


@pytest.mark.slow
def test_whole_benchmark(tmp_path):
    network = {
        "vocab_size": 50,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
    }
    (tmp_path / "network.json").write_text(json.dumps(network))
    done = run(
        "-m", "benchmarks.fastest_setting", f"--bert_config_file={tmp_path}/network.json",
        "--batch_size=2", "--seq_length=8", "--predictions=2", "--layers=1", "--turns=2",
        "--threads=1", f"--json={tmp_path}/fastest.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "fastest.json").read_text())
    rates = {r["subject"]: r["config"]["turns"] for r in results if r["unit"] == "sequences/s"}
    assert list(rates) == [subject.name for subject in every_setting(1)]
    assert all(len(turns) == 2 for turns in rates.values())
    assert results[0]["config"]["network"]["num_hidden_layers"] == 1
    ratios = {r["name"]: r["value"] for r in results if r["unit"] == "ratio"}
    assert ratios["auto to auto"] == 1.0
    assert len(ratios) == len(rates)
    assert "auto took" in done.stdout
