"""What the tests of run_squad.py, run_classifier.py and run_ner.py share."""

from __future__ import annotations

import json
from pathlib import Path


def flags_of_a_short_run(files: Path) -> list[str]:
    """Flags of a run from random weights on the network in ``files/start``."""
    return [
        f"--bert_config_file={files / 'start' / 'bert_config.json'}",
        f"--vocab_file={files / 'start' / 'vocab.txt'}",
        f"--features_dir={files / 'features'}",
        "--precision=fp32",
        "--display_loss_steps=1",
    ]


def results_of(directory: Path) -> dict[str, float]:
    """The results of the last evaluation."""
    return json.loads((directory / "eval_results.json").read_text())


def ledger_of(directory: Path) -> dict:
    """The ledger of a run."""
    return json.loads((directory / "run.json").read_text())["ledger"]


def assert_same_plan(expected_dir: Path, found_dir: Path) -> None:
    """Whether two runs have the same global batches and steps, on any number of ranks."""
    expected, found = ledger_of(expected_dir), ledger_of(found_dir)
    assert found["batch"]["global_batch"] == expected["batch"]["global_batch"]
    for name in ("train_steps", "warmup_steps"):
        assert found["steps"][name] == expected["steps"][name]
