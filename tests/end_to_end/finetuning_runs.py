"""What the tests of run_squad.py, run_classifier.py and run_ner.py share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.helpers.programs import run
from tests.helpers.tensors import variables_of


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


def assert_resumes_to_the_same_bits(
    script: str, flags: list[str], whole: Path, directory: Path, *, more_files: Sequence[str] = ()
) -> None:
    """Whether a run ends in the same bits if it is resumed from its last checkpoint but one.

    ``whole`` is the output of a run with ``flags`` and --deterministic. ``more_files`` are needed
    besides the checkpoint.
    """
    *_, step, last = sorted(
        int(path.stem.rpartition("-")[2]) for path in whole.glob("model.ckpt-*.index")
    )
    assert 0 < step < last
    for path in (*whole.glob(f"model.ckpt-{step}.*"), *(whole / name for name in more_files)):
        shutil.copy(path, directory)
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    done = run(script, *flags, "--do_train", "--deterministic", f"--output_dir={directory}")
    assert f"(step {step})" in done.stdout
    expected, found = (variables_of(path / f"model.ckpt-{last}") for path in (whole, directory))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
