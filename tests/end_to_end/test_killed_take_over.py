"""A run killed at any moment of copying the checkpoint of --resume_from copies it again."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES
from tests.helpers.programs import ROOT, environment
from tests.helpers.tensors import variables_of

COUNTS = {tf.GraphKeys.GLOBAL_STEP: 7, SKIPPED_UPDATES: 1, CONSUMED_SEQUENCES: 64}


@pytest.mark.exhaustive
def test_killed_at_any_change_it_is_copied_again(killer, tmp_path):
    counts = {name: np.asarray(count, np.int64) for name, count in COUNTS.items()}
    arrays = {"weight": np.arange(1000, dtype=np.float32), **counts}
    source, directory = tmp_path / "model.ckpt-7", tmp_path / "copies"
    write_checkpoint(str(source), arrays)
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.take_over_program", source, directory],
        cwd=ROOT,
        env={**environment(), "LD_PRELOAD": str(killer), "KILL_UNDER": str(directory)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    copies = sorted(directory.iterdir(), key=lambda path: int(path.name))
    assert len(copies) > 8
    *_, whole = copies
    for copy in copies:
        assert {path.name for path in copy.iterdir()} == {path.name for path in whole.iterdir()}
        assert (copy / "checkpoint").read_bytes() == (whole / "checkpoint").read_bytes()
        found = variables_of(copy / "model.ckpt-7")
        assert found.keys() == arrays.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{copy.name}: {name}")
