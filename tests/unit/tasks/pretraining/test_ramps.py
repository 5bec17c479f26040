"""Runs whose batches and sequences grow, against plain runs of each stage."""

import dataclasses
import json

import numpy as np
import pytest

from bert_tf.config.ramps import LengthRampSettings, RampSettings
from bert_tf.diagnose.memory import estimate_memory
from bert_tf.durable.manifest import describe_file, read_manifest, write_manifest
from bert_tf.input.order import sequence_indices
from bert_tf.records.layouts import PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.train.run import begin
from bert_tf.util.errors import UserError
from tests.helpers.saved_batches import read_batches
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.tiny_pretraining import P, S, pretraining_settings

SHORT = 8
STEPS = 6
TIMES = ("time", "sequences_per_second")


def ramp(*stages):
    return RampSettings("batch_ramp", "test", stages)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A run with dropout, whose updates grow from 2 to 6 sequences and from 8 to 12 positions."""
    found = pretraining_settings(tmp_path_factory.mktemp("run"))
    return with_optimization(
        found,
        micro_batch_size=2,
        global_batch_size=6,
        num_train_steps=STEPS,
        num_warmup_steps=2,
        scale_steps_by_ranks=False,
    )


def with_optimization(settings, **changes):
    return dataclasses.replace(settings, optimization=with_values(settings.optimization, **changes))


def ramped(settings):
    return with_optimization(
        settings,
        batch_ramp=ramp((2, 0), (4, 2), (6, 4)),
        length_ramp=LengthRampSettings("length_ramp", "test", ((SHORT, 0), (S, 3)), full=S),
    )


def in_directory(settings, directory, **changes):
    run = with_values(settings.run, output_dir=directory, **changes)
    return dataclasses.replace(settings, run=run)


def with_short_records(settings, directory):
    """The same run on records without their last tokens, with fewer predictions in them."""
    directory.mkdir()
    [source] = settings.data.train_files
    records, path = RecordSet([source]), directory / source.name
    with TFRecordWriter(path) as writer:
        for number in range(len(records)):
            example = PRETRAINING_UNMASKED.decode(records.read([number])[0])
            for name in ("input_ids", "input_mask", "segment_ids", "word_starts"):
                example[name] = np.append(example[name][: SHORT - 1], example[name][-1])
            writer.write(PRETRAINING_UNMASKED.encode(example))
    manifest = dataclasses.replace(
        read_manifest(source.parent), outputs=(describe_file(path, count=len(records)),)
    )
    write_manifest(directory, manifest)
    data = with_values(
        settings.data,
        train_files=(path,),
        train_patterns=str(directory),
        max_seq_length=SHORT,
        max_predictions_per_seq=P * SHORT // S,
    )
    return dataclasses.replace(settings, data=data)


def final_values(directory):
    return variables_of(directory / f"model.ckpt-{STEPS}")


@pytest.fixture(scope="module")
def whole(settings):
    """The last variables, and the log, of a ramped run without a stop."""
    pretraining.run(ramped(settings))
    return final_values(settings.run.output_dir), log_of(settings.run.output_dir)


def log_of(directory):
    lines = map(json.loads, (directory / "log.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


@pytest.mark.slow
def test_a_ramped_run_equals_plain_runs_of_its_stages(settings, whole, tmp_path):
    short = with_short_records(settings, tmp_path / "short")
    for stage, size, stop in ((short, 2, 2), (short, 4, 3), (settings, 4, 4), (settings, 6, STEPS)):
        plain = with_optimization(stage, global_batch_size=size, stop_after_steps=stop)
        pretraining.run(in_directory(plain, tmp_path / "plain"))
    values, log = whole
    assert_same_variables(values, final_values(tmp_path / "plain"), rtol=2e-6, atol=1e-8)
    assert values["training/consumed_sequences"] == 2 * 2 + 2 * 4 + 2 * 6
    sizes = [(2, 8), (2, 8), (4, 8), (4, 12), (6, 12), (6, 12)]
    for line, expected, size in zip(log, log_of(tmp_path / "plain"), sizes):
        ramps = dict(zip(("global_batch", "sequence_length"), size))
        assert line == pytest.approx({**expected, **ramps}, rel=1e-5)


@pytest.mark.exhaustive
def test_a_ramp_continues_after_a_stop_in_a_stage(settings, whole, tmp_path, capfd):
    stopped = in_directory(ramped(settings), tmp_path / "stopped")
    for stop in (1, 3, STEPS):
        pretraining.run(with_optimization(stopped, stop_after_steps=stop))
    values, log = whole
    assert_same_variables(final_values(tmp_path / "stopped"), values)
    assert log_of(tmp_path / "stopped") == log
    assert "batch_ramp 2:0" not in capfd.readouterr().out


@pytest.mark.exhaustive
def test_a_bad_update_of_a_ramp_is_traced(settings, tmp_path):
    diverging = with_optimization(
        in_directory(ramped(settings), tmp_path / "diverging"),
        learning_rate=1e30,
        clip_norm=None,
        num_warmup_steps=0,
        batch_ramp=ramp((2, 0), (4, 1), (6, 2)),
    )
    with pytest.raises(UserError, match=r"in the update after step 1 .*: the loss"):
        pretraining.run(diverging)
    directory = tmp_path / "diverging" / "nonfinite_1"
    saved = read_batches(directory)
    assert [batch["first_example"] for batch, _ in saved] == [0, 2]
    found = [record["record"] for batch, _ in saved for record in batch["records"]]
    assert found == sequence_indices(2, 4, num_records=10, seed=settings.run.seed).tolist()
    assert {features["input_ids"].shape for _, features in saved} == {(2, SHORT)}


def test_the_memory_is_that_of_the_largest_updates(settings, tmp_path):
    found = []
    for run in (settings, ramped(settings)):
        planned = in_directory(run, tmp_path / "planned", dry_run=True)
        with begin(planned.run, planned.runtime) as begun:
            found.append(estimate_memory(pretraining.prepare_pretraining(planned, begun)))
    assert found[0] == found[1]
