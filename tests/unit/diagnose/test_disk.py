"""What checkpoints take, by hand, and what is said where the disk is too small."""

import dataclasses
import shutil
import types

import pytest

from bert_tf.diagnose.disk import CheckpointSizes, checkpoint_sizes, disk_warning
from bert_tf.model.variables import VariableSpec
from bert_tf.train.start_point import StartPoint
from tests.helpers.jobs import begun, job_of, steps_of
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import pretraining_settings

GIB = 1 << 30


# 1000 weights, and 70 that are only read.
SPECS = [VariableSpec("w", (10, 100)), VariableSpec("teacher/w", (70,), trainable=False)]


def job_from(settings, start, last):
    task = types.SimpleNamespace(specs=lambda: SPECS)
    run = begun(settings=settings, start=StartPoint("model.ckpt", start, start, 0))
    return job_of(task, run=run, steps=steps_of(last))


@pytest.mark.parametrize(
    ("start", "last", "written"), [(0, 10, 5), (0, 9, 4), (3, 9, 2), (4, 10, 3), (10, 10, 0)]
)
def test_weights_and_two_moments_for_each(tmp_path, start, last, written):
    """Of step 0, of every third one and of the last."""
    settings = dataclasses.replace(
        pretraining_settings(tmp_path).run, save_checkpoints_steps=3, keep_checkpoint_max=2
    )
    found = checkpoint_sizes(job_from(settings, start, last))
    assert found == CheckpointSizes(one=12_000, best=0, keep=2, written=written)
    evaluated = with_values(settings, do_eval=True)
    assert checkpoint_sizes(job_from(evaluated, 0, 1)).best == 4000


@pytest.mark.parametrize(("keep", "peak", "kept"), [(2, 5, 3), (9, 6, 5)])
def test_peak_disk_space(keep, peak, kept):
    sizes = CheckpointSizes(one=GIB, best=GIB, keep=keep, written=4)
    assert (sizes.peak, sizes.ledger_section()["gib_of_all_kept"]) == (peak * GIB, kept)
    section = sizes.ledger_section()
    assert section["gib_each"] == section["gib_of_best"] == 1


@pytest.mark.parametrize(("free", "warns"), [(5.0, False), (4.5, False), (3.0, True)])
def test_a_disk_that_is_too_small(tmp_path, monkeypatch, free, warns):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: types.SimpleNamespace(free=int(free * GIB))
    )
    sizes = CheckpointSizes(one=GIB, best=0, keep=4, written=9)
    directory = tmp_path / "model"
    if free == 4.5:
        directory.mkdir()
        with open(directory / "model.ckpt-1.data-00000-of-00001", "wb") as file:
            file.truncate(GIB)  # takes no room, and counts as what is replaced
    warning = disk_warning(sizes, directory)
    assert (warning is not None) == warns
    if warns:
        assert f"5 GiB in {directory} (1 GiB each), but only 3 GiB is free" in warning
