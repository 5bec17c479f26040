"""Stages of the data preparation, killed at each of their changes of the disk, and continued."""

import json
import subprocess
import sys

import pytest

from tests.helpers.programs import ROOT, environment


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "stage", ["create_pretraining_data", "sentences", "filter_language", "clean", "extract"]
)
def test_killed_anywhere_the_next_call_ends_with_the_same_files(killer, tmp_path, stage):
    done = subprocess.run(
        [sys.executable, "tests/end_to_end/killed_stage_program.py", stage, str(tmp_path)],
        cwd=ROOT,
        env={**environment(), "LD_PRELOAD": str(killer)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["different"] == []
    assert found["outputs"] > 2, "files and a manifest"
    assert found["kills"] > 40
    assert found["resumed"] > found["kills"] / 2
