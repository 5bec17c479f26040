"""What the inspection of data directories finds, and that it finds nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_tf.errors import UserError
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED, SQUAD_TRAINING
from bert_tf.records.manifest import (
    Manifest,
    VocabularyEntry,
    describe_file,
    read_manifest,
    write_manifest,
)
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter, frame_records
from data_prep import inspect

S, P, V = 8, 2, 30


def examples(count):
    """Records with the features of all layouts."""
    return {
        "input_ids": np.full((count, S), V - 1),
        "input_mask": np.ones((count, S), np.int64),
        "segment_ids": np.zeros((count, S), np.int64),
        "word_starts": np.ones((count, S), np.int64),
        "masked_lm_positions": np.full((count, P), S - 1),
        "masked_lm_ids": np.full((count, P), 5),
        "masked_lm_weights": np.ones((count, P), np.float32),
        "next_sentence_labels": np.ones((count, 1), np.int64),
        "unique_ids": np.arange(count)[:, None],
        "start_positions": np.zeros((count, 1), np.int64),
        "end_positions": np.ones((count, 1), np.int64),
        "is_impossible": np.zeros((count, 1), np.int64),
    }


def write(path, *, count=300, spec=PRETRAINING_MASKED, **changes):
    """``changes``: a value in the first place of a feature of the last record but one."""
    values = examples(count)
    for name, value in changes.items():
        values[name][-2, 0] = value
    with TFRecordWriter(path) as writer:
        for record in spec.encode_batch({f.name: values[f.name] for f in spec.features}):
            writer.write(record)
    return path


def write_directory(path, *, stage="create_pretraining_data", **options):
    """Two record files, their offsets and the manifest."""
    path.mkdir()
    counts = {f"{name}.tfrecord": count for name, count in (("a", 300), ("b", 3))}
    for name, count in counts.items():
        write(path / name, count=count, **options)
    entries = [describe_file(file, count=counts.get(file.name)) for file in sorted(path.iterdir())]
    vocabulary = VocabularyEntry("ab", V, "wordpiece", True, {})
    write_manifest(path, Manifest(stage, {}, (), tuple(entries), {}, vocabulary))
    return path


def test_compressed_records_are_read(tmp_path, capsys):
    path = tmp_path / "a.tfrecord.gz"
    values = {f.name: examples(300)[f.name] for f in PRETRAINING_MASKED.features}
    with TFRecordWriter(path, compression="gzip") as writer:
        records = PRETRAINING_MASKED.encode_batch(values)
        writer.write_framed(frame_records(records, compression="gzip"))
    run(tmp_path)
    assert f"{tmp_path}: 1 files, 300 records" in capsys.readouterr().err
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="1 problems in 1 files"):
        run(tmp_path)
    assert f"of {path} is damaged (" in capsys.readouterr().err


def run(patterns):
    inspect.run(inspect.Settings(str(patterns)))


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        (PRETRAINING_MASKED, "create_pretraining_data"),
        (PRETRAINING_UNMASKED, "create_pretraining_data"),
        (SQUAD_TRAINING, "squad_features"),
    ],
)
def test_a_directory_without_problems(tmp_path, capsys, spec, stage):
    directory = write_directory(tmp_path / "data", spec=spec, stage=stage)
    run(directory)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        f"{directory}: 4 files, 303 records; {stage}, checked against its manifest.json; 0 problems"
    )


def test_text_is_compared_and_is_no_record(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text")
    write_manifest(tmp_path, Manifest("shards", {}, (), (describe_file(tmp_path / "a.txt"),)))
    run(tmp_path)
    assert "1 files, 0 records; shards, checked" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("test")
    with pytest.raises(UserError, match="1 problems in 1 files"):
        run(tmp_path)


def edit_record(directory):
    """Another content of the same length, with right checksums."""
    records = RecordSet([directory / "b.tfrecord"])
    [first, second, third] = records.read(range(3))
    changed = second.replace(bytes([V - 1]) * S, bytes([V - 2]) * S)
    assert changed != second
    with TFRecordWriter(directory / "b.tfrecord") as writer:
        for record in (first, changed, third):
            writer.write(record)


def edit_offsets(directory):
    """Where opening the file does not look: it would make the offsets anew."""
    path = directory / "a.tfrecord.offsets"
    content = bytearray(path.read_bytes())
    content[8 + 8 * 9] ^= 1
    path.write_bytes(content)


def edit_count(directory):
    manifest = read_manifest(directory)
    entries = [
        dataclasses.replace(entry, count=4) if entry.name == "b.tfrecord" else entry
        for entry in manifest.outputs
    ]
    write_manifest(directory, dataclasses.replace(manifest, outputs=tuple(entries)))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (edit_record, "b.tfrecord is not the file that manifest.json describes"),
        (edit_offsets, "a.tfrecord.offsets is not the file that manifest.json describes"),
        (edit_count, "b.tfrecord has 3 records, manifest.json lists 4"),
        (lambda directory: (directory / "b.tfrecord").unlink(), "b.tfrecord is missing"),
        (lambda directory: write(directory / "c", count=2), "c is not listed in manifest.json"),
    ],
    ids=["record", "offsets", "count", "missing", "unlisted"],
)
def test_what_differs_from_the_manifest(tmp_path, capsys, edit, problem):
    directory = write_directory(tmp_path / "data")
    edit(directory)
    with pytest.raises(UserError, match=r"--input_file=.*: found [12] problems in"):
        run(directory)
    assert f"{directory}/{problem}\n" in capsys.readouterr().err


def test_some_of_the_files_can_be_inspected(tmp_path, capsys):
    directory = write_directory(tmp_path / "data")
    (directory / "b.tfrecord").unlink()
    run(f"{directory}/a.*")
    assert f"{directory}: 2 files, 300 records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input_ids": V}, f"its input_ids contains {V}, but ids in the model's vocabulary are 0"),
        ({"masked_lm_positions": S}, f"its masked_lm_positions contains {S}, but positions"),
        ({"segment_ids": 2}, "its segment_ids contains 2, but"),
        ({"masked_lm_weights": np.nan}, "its masked_lm_weights contains nan, but"),
    ],
    ids=["id", "position", "segment", "weight"],
)
def test_records_out_of_range(tmp_path, capsys, change, problem):
    directory = write_directory(tmp_path / "data", **change)
    with pytest.raises(UserError, match="2 problems in 4 files"):
        run(directory)
    said = capsys.readouterr().err
    assert f"record 298 of {directory}/a.tfrecord cannot be used: {problem}" in said
    assert f"record 1 of {directory}/b.tfrecord cannot be used: {problem}" in said


def test_files_without_a_manifest(tmp_path, capsys):
    good = write(tmp_path / "good")
    run(good)
    assert "1 files, 300 records; no manifest.json; 0 problems" in capsys.readouterr().err
    write(tmp_path / "negative", input_ids=-1)
    content = good.read_bytes()
    (tmp_path / "damaged").write_bytes(content[:-9] + b"x" + content[-8:])
    with TFRecordWriter(tmp_path / "mixed") as writer:
        for record in (*RecordSet([good]).read([0]), b""):
            writer.write(record)
    with pytest.raises(UserError, match="3 problems in 4 files"):
        run(tmp_path)
    said = capsys.readouterr().err
    assert (
        f"record 298 of {tmp_path}/negative cannot be used: its input_ids contains -1, but" in said
    )
    assert f"record 299 of {tmp_path}/damaged is damaged" in said
    assert f"record 1 of {tmp_path}/mixed is not a record for pre-training or SQuAD" in said
