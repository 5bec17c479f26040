"""The study of words of a domain, as a whole on a little text, and its table."""

import json

import pytest

from benchmarks.studies.domain_words import Row, table
from tests.helpers.programs import run
from tests.helpers.small_pretraining import stdlib_documentation

VARIANTS = ["initial", "general", "domain", "mixture", "domain-words", "mixture-words"]


def test_the_table_has_means_ranges_and_ratios():
    rows = {
        "initial": [Row(200.0, 100.0, None)] * 2,
        "domain": [Row(40.0, 110.0, None), Row(60.0, 130.0, None)],
    }
    lines = table(rows)
    assert "domain, per word" in lines[1]
    assert "50 (40 to 60) x0.25" in lines[3]
    assert "120 (110 to 130) x1.2" in lines[3]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_whole_study(tmp_path):
    text = stdlib_documentation(100_000)
    documents = text.split("\n\n")
    (tmp_path / "general.txt").write_text("\n\n".join(documents[::2]))
    (tmp_path / "domain.txt").write_text("\n\n".join(documents[1::2]))
    flags = {
        "general_text": tmp_path / "general.txt",
        "domain_text": tmp_path / "domain.txt",
        "output_dir": tmp_path / "study",
        "json": tmp_path / "study.json",
        "seeds": 1,
        "vocab_size": 400,
        "initial_updates": 2,
        "updates": 2,
        "add": 5,
        "sample": 0.2,
        "heldout_fraction": 0.1,
        "max_seq_length": 32,
        "batch_size": 4,
        "precision": "fp32",
    }
    given = [f"--{name}={value}" for name, value in flags.items()]
    done = run("-m", "benchmarks.studies.domain_words", *given, timeout=900)
    assert all(f"\n{name}" in done.stdout for name in VARIANTS)
    results = json.loads((tmp_path / "study.json").read_text())
    assert {r["name"] for r in results} == {
        f"{name}, {text}" for name in VARIANTS for text in ("domain", "general")
    }
    again = run("-m", "benchmarks.studies.domain_words", *given, timeout=900)
    assert "$ python" not in again.stdout
