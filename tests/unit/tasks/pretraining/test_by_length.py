"""Pre-training on batches of records of similar length."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_tf.durable.manifest import describe_file, read_manifest, write_manifest
from bert_tf.input import length_buckets
from bert_tf.input.pipeline import PretrainingRecords
from bert_tf.model.flops import training_flops
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_UNMASKED
from bert_tf.records.lengths import lengths_path
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.data import shared_lengths
from bert_tf.train.run import begin
from tests.helpers.files import content_of
from tests.helpers.jobs import begun
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.thread_ranks import run_ranks
from tests.helpers.tiny_pretraining import CONFIG as SHORTER
from tests.helpers.tiny_pretraining import P, pretraining_settings

S = 24
LENGTHS = np.array([5, 24, 8, 16, 3, 7, 15, 23, 11, 6])
STEPS = 6
CONFIG = dataclasses.replace(
    SHORTER,
    max_position_embeddings=S,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A run without dropout on ten records of 3 to 24 tokens, in two epochs of updates of four."""
    directory = tmp_path_factory.mktemp("run")
    found = pretraining_settings(directory)
    found.bert_config_file.write_text(json.dumps(CONFIG.to_dict()))
    [path] = found.data.train_files
    make_longer(path)
    data = dataclasses.replace(found.data, max_seq_length=S, length_buckets=True)
    optimization = with_values(
        found.optimization,
        micro_batch_size=2,
        global_batch_size=4,
        num_train_steps=STEPS,
        num_warmup_steps=2,
        scale_steps_by_ranks=False,
    )
    return dataclasses.replace(found, data=data, optimization=optimization)


def make_longer(path):
    """Replaces the records of a file by others of ``LENGTHS`` tokens, padded to S positions."""
    rng = np.random.default_rng(3)
    records = RecordSet([path]).read(range(len(LENGTHS)))
    with TFRecordWriter(path) as writer:
        for length, record in zip(LENGTHS, records):
            tokens = [2, *rng.integers(5, CONFIG.vocab_size, length - 2), 3]
            row = np.zeros(S, np.int64)
            row[:length] = tokens
            mask = (np.arange(S) < length).astype(np.int64)
            example = {
                **PRETRAINING_UNMASKED.decode(record),
                "input_ids": row,
                "input_mask": mask,
                "segment_ids": 0 * mask,
                "word_starts": mask,
            }
            writer.write(PRETRAINING_UNMASKED.encode(example))
    outputs = (describe_file(path, count=len(LENGTHS)),)
    manifest = dataclasses.replace(read_manifest(path.parent), outputs=outputs)
    write_manifest(path.parent, manifest)


def in_directory(settings, directory, *, stop=None, **changes):
    run = with_values(settings.run, output_dir=directory, **changes)
    optimization = with_values(settings.optimization, stop_after_steps=stop)
    return dataclasses.replace(settings, run=run, optimization=optimization)


def prepared(settings, directory):
    planned = in_directory(settings, directory, dry_run=True)
    with begin(planned.run, planned.runtime) as run:
        return pretraining.prepare_pretraining(planned, run)


def log_of(directory):
    lines = map(json.loads, (directory / "log.jsonl").read_text().splitlines())
    times = ("time", "sequences_per_second")
    return [{name: v for name, v in line.items() if name not in times} for line in lines]


def final_values(directory):
    return variables_of(directory / f"model.ckpt-{STEPS}")


@pytest.fixture(scope="module")
def whole(settings):
    """The directory of a run without a stop."""
    pretraining.run(settings)
    return settings.run.output_dir


@pytest.mark.exhaustive
def test_a_run_that_stops_goes_on_to_the_bit(settings, whole, tmp_path, capfd):
    for stop in (1, 4, None):
        pretraining.run(in_directory(settings, tmp_path / "stopped", stop=stop))
    assert_same_variables(final_values(tmp_path / "stopped"), final_values(whole))
    assert log_of(tmp_path / "stopped") == log_of(whole)
    assert "lengths of records" not in capfd.readouterr().out, "they are kept"


@pytest.mark.slow
def test_padding_changes_no_update(settings, whole, tmp_path, monkeypatch):
    """The same batches without a cut: losses and all gradients, by what the optimizer keeps."""
    monkeypatch.setattr(length_buckets, "padded_length", lambda _, max_length, few: max_length)
    pretraining.run(in_directory(settings, tmp_path / "padded"))
    for line, expected in zip(log_of(tmp_path / "padded"), log_of(whole)):
        assert line == pytest.approx(expected, rel=1e-5)
    padded = final_values(tmp_path / "padded")
    assert_same_variables(padded, final_values(whole), rtol=1e-4, atol=1e-7)


def test_another_cut_of_the_global_batch_has_the_same_updates(settings, whole, tmp_path):
    other = in_directory(settings, tmp_path / "other")
    optimization = with_values(other.optimization, micro_batch_size=4)
    pretraining.run(dataclasses.replace(other, optimization=optimization))
    for line, expected in zip(log_of(tmp_path / "other"), log_of(whole)):
        assert line == pytest.approx(expected, rel=1e-4)


def test_batches_are_cut_and_counted_so(settings, whole, tmp_path, capsys):
    found = prepared(settings, tmp_path / "planned")
    assert "batches of similar length have" in capsys.readouterr().out
    # Ten records begin three batches of four; there is one of each length.
    assert sorted(found.training.typical_lengths(found.run, found.plan)) == [8, 16, 24]
    by_length = [
        training_flops(CONFIG, length=length, predictions=P, next_sentence=True)
        for length in (8, 16, 24)
    ]
    compute = found.training.ledger_sections(found.run, found.plan)["compute"]
    assert compute["model_flops_per_sequence"] == pytest.approx(np.mean(by_length))
    assert compute["model_flops"] == pytest.approx(4 * STEPS * np.mean(by_length))
    ledger = json.loads((whole / "run.json").read_text())["ledger"]
    assert ledger["data"]["length_buckets"] is True
    assert ledger["compute"]["positions_per_sequence"] == 16


@pytest.mark.slow
def test_a_resumed_run_says_that_its_batches_change(settings, tmp_path, capfd):
    random = dataclasses.replace(settings.data, length_buckets=False)
    for data, stop in ((random, 1), (settings.data, 2)):
        run = in_directory(settings, tmp_path / "changed", stop=stop)
        pretraining.run(dataclasses.replace(run, data=data))
    assert "length_buckets=False -> True" in capfd.readouterr().out


def test_random_batches_are_whole(settings, tmp_path, capsys):
    data = dataclasses.replace(settings.data, length_buckets=False)
    found = prepared(dataclasses.replace(settings, data=data), tmp_path / "planned")
    assert found.training.typical_lengths(found.run, found.plan) == [S]
    assert found.data.entries["length_buckets"] is False
    assert "similar length" not in capsys.readouterr().out


@pytest.fixture(name="copied")
def copied_records(settings, tmp_path):
    """The same run on a copy of the records without lengths."""
    directory, name = tmp_path / "records", settings.data.train_files[0].name
    shutil.copytree(settings.data.train_files[0].parent, directory)
    lengths_path(directory / name).unlink(missing_ok=True)
    data = dataclasses.replace(
        settings.data, train_files=(directory / name,), train_patterns=str(directory)
    )
    return dataclasses.replace(settings, data=data)


def test_a_dry_run_keeps_no_lengths(copied, tmp_path):
    before = content_of(tmp_path / "records")
    found = prepared(copied, tmp_path / "planned")
    assert sorted(found.training.typical_lengths(found.run, found.plan)) == [8, 16, 24]
    assert content_of(tmp_path / "records") == before


def test_one_rank_counts_and_all_have_the_lengths(copied):
    [path] = copied.data.train_files
    opened = RecordSet([path])
    records = PretrainingRecords(opened, inspect_records(opened), CONFIG.vocab_size, 2)

    def of_rank(rank):
        rank.local_rank = rank.rank
        return shared_lengths(records, begun(ranks=rank, settings=copied.run))

    for lengths in run_ranks(2, of_rank):
        np.testing.assert_array_equal(lengths, LENGTHS)
    assert lengths_path(path).is_file()
