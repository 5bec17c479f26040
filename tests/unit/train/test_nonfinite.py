"""What a run says and saves when an update is not finite: real runs of a tiny network."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.train.saved_batch import read_batches
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
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
    [saved] = read_batches(directory)
    assert (saved.facts["rank"], saved.batch.data_position) == (0, 1)
    assert set(saved.facts["terms_not_finite"]) == {"masked_lm", "next_sentence"}
    # The records that it names are those of the batch, whose masks have been drawn.
    [path] = diverging.data.train_files
    records = RecordSet([path])
    numbers = [record["record"] for record in saved.facts["records"]]
    assert {record["file"] for record in saved.facts["records"]} == {str(path)}
    assert f"with records {', '.join(map(str, numbers))} of {path}" in message
    assert len(numbers) == len(saved.batch.features["input_ids"]) == 4
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
    with pytest.raises(UserError, match="does not describe a batch"):
        read_batches(directory)


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
    [saved] = read_batches(settings.run.output_dir / "nonfinite_0")
    assert (saved.batch.data_position, saved.batch.loss_scale) == (2, 2.0**32)
    found = variables_of(settings.run.output_dir / "model.ckpt-0")
    assert all(np.isfinite(value).all() for value in found.values())


@pytest.fixture(name="scaled_too_much", scope="module")
def run_with_a_loss_scale_that_is_too_large(tmp_path_factory):
    settings = with_changes(
        pretraining_settings(tmp_path_factory.mktemp("scaled")),
        run={"max_skipped_updates": 1},
        runtime={"precision": "fp16", "allow_slow_fp16": True, "loss_scale": 2.0**32},
        num_train_steps=5,
    )
    failure_of(settings)
    return settings


def replayed(settings, path, **changes):
    run = {"dry_run": True, "replay_batch": path, **changes}
    return dataclasses.replace(settings, run=with_values(settings.run, **run))


@pytest.mark.slow
def test_a_saved_batch_is_computed_again(scaled_too_much, capsys):
    output_dir = scaled_too_much.run.output_dir
    before = content_of(output_dir)
    [saved] = read_batches(output_dir / "nonfinite_0")
    capsys.readouterr()
    pretraining.run(replayed(scaled_too_much, output_dir / "nonfinite_0", seed=77))
    assert content_of(output_dir) == before
    shown = capsys.readouterr().out
    assert "4 records of the update after step 0, loss scale 4.29497e+09, with the weig" in shown
    in_half, in_float = (
        next(line for line in shown.splitlines() if line.startswith(f"in {precision}: "))
        for precision in ("fp16", "fp32")
    )
    # The losses of the run, whose seed gave the dropout, although another one was given.
    for term, loss in saved.facts["losses"].items():
        assert f"{term}_loss {loss:.6g}" in in_half
    assert "not finite: bert/embeddings/word_embeddings, " in in_half
    assert "largest norms: " in in_float
    assert "nan" not in in_float


@pytest.mark.slow
def test_a_batch_of_another_task_is_not_computed(scaled_too_much):
    path = scaled_too_much.run.output_dir / "nonfinite_0" / "rank_0_micro_batch_0.npz"
    other = dataclasses.replace(replayed(scaled_too_much, path), next_sentence=False)
    other = dataclasses.replace(
        other, run=dataclasses.replace(other.run, output_dir=path.parent.parent.parent / "new")
    )
    with pytest.raises(UserError, match="was not saved by a run of this task"):
        pretraining.run(other)
    with pytest.raises(UserError, match="contains no batch"):
        pretraining.run(replayed(scaled_too_much, path.parent.parent))
