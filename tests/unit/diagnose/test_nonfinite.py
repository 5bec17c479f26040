"""What a run says and saves when an update is not finite: real runs of a tiny network."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.util.errors import UserError
from tests.helpers.saved_batches import read_batches
from tests.helpers.settings import with_values
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import pretraining_settings


def with_changes(settings, *, run=None, runtime=None, **optimization):
    changed = {"runtime": {"native_ops": False, **(runtime or {})}, "run": run or {}}
    parts = {name: with_values(getattr(settings, name), **c) for name, c in changed.items()}
    parts["optimization"] = with_values(settings.optimization, **optimization)
    return with_values(settings, **parts)


def failure_of(settings):
    with pytest.raises(UserError) as error:
        pretraining.run(settings)
    return str(error.value)


@pytest.fixture(name="diverged", scope="module")
def run_that_diverged(tmp_path_factory):
    """The settings of a run that failed, and its sentence."""
    settings = pretraining_settings(tmp_path_factory.mktemp("diverged"))
    settings = with_changes(settings, learning_rate=1e30, clip_norm=None, num_train_steps=5)
    return settings, failure_of(settings)


def test_a_rate_that_diverges_is_traced_to_its_batch(diverged):
    diverging, message = diverged
    assert "not finite in the update after step 1 (learning rate 8e+29): the loss" in message
    assert "the gradient of bert/embeddings/word_embeddings and of 29 variables after" in message
    directory = diverging.run.output_dir / "nonfinite_1"
    [(saved, features)] = read_batches(directory)
    assert (saved["rank"], saved["data_position"]) == (0, 1)
    assert set(saved["terms_not_finite"]) == {"masked_lm", "next_sentence"}
    # The records that it names are those of the batch, whose masks have been drawn.
    [path] = diverging.data.train_files
    records = RecordSet([path])
    numbers = [record["record"] for record in saved["records"]]
    assert {record["file"] for record in saved["records"]} == {str(path)}
    assert f"with records {', '.join(map(str, numbers))} of {path}" in message
    assert len(numbers) == len(features["input_ids"]) == 4
    assert len(records.read(numbers)) == 4


@pytest.mark.exhaustive
def test_a_run_that_is_started_again_overwrites_nothing(diverged, tmp_path):
    settings, _ = diverged
    directory = shutil.copytree(settings.run.output_dir, tmp_path / "model") / "nonfinite_1"
    diverging = with_changes(settings, run={"output_dir": directory.parent})
    failure_of(diverging)
    assert not directory.with_name("nonfinite_1_2").exists(), "the very same batch"
    description = directory / "rank_0_micro_batch_0.json"
    description.write_text(json.dumps({"step": "other"}))
    failure_of(diverging)
    assert json.loads(description.read_text()) == {"step": "other"}
    assert read_batches(directory.with_name("nonfinite_1_2"))


@pytest.mark.exhaustive
def test_a_loss_scale_that_is_too_large_is_to_blame(tmp_path):
    settings = with_changes(
        pretraining_settings(tmp_path),
        run={"max_skipped_updates": 3},
        runtime={"precision": "fp16", "allow_slow_fp16": True, "loss_scale": 2.0**32},
        num_train_steps=5,
    )
    message = failure_of(settings)
    assert "in the update after step 0, one of 3 skipped in a row" in message
    assert "in float32 all of it is finite" in message
    assert "the loss (" not in message
    [(saved, _)] = read_batches(settings.run.output_dir / "nonfinite_0")
    assert (saved["data_position"], saved["loss_scale"]) == (2, 2.0**32)
    found = variables_of(settings.run.output_dir / "model.ckpt-0")
    assert all(np.isfinite(value).all() for value in found.values())
