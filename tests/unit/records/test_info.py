from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_tf.durable.manifest import VocabularyEntry, describe_file, describe_vocabulary
from bert_tf.records.info import (
    check_records,
    inspect_records,
    one_sided_labels,
    original_ids,
    text_positions,
    unusual_shares,
)
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

GEOMETRY = {"max_seq_length": 12, "max_predictions_per_seq": 3, "vocab_size": 50}


def test_files_of_googles_script(record_maker, tmp_path):
    path = record_maker.write_like_google(tmp_path / "a.tfrecord", 20)
    info = inspect_records([path])
    assert (info.masked, info.seq_length, info.max_predictions, info.num_records) == (
        True,
        12,
        3,
        20,
    )
    assert info.spec is PRETRAINING_MASKED
    assert info.lengths == {"max_seq_length": 12, "max_predictions_per_seq": 3}
    assert info.manifest is None
    assert info.special_ids is None
    assert info.vocab_size is None
    assert info.next_sentence
    assert info.pair_tasks == ("next_sentence",)
    examples = record_maker.examples(20)
    assert info.highest_id == max(examples["input_ids"].max(), examples["masked_lm_ids"].max())
    check_records(info, **GEOMETRY)


def test_files_with_a_manifest(record_maker, tmp_path):
    paths = [record_maker.write(tmp_path / f"{n}.tfrecord", n, masked=False) for n in (3, 0, 4)]
    record_maker.write_manifest(tmp_path, parameters={"nsp": False})
    info = inspect_records(paths)
    assert (info.masked, info.seq_length, info.max_predictions, info.num_records) == (
        False,
        12,
        None,
        7,
    )
    assert info.spec is PRETRAINING_UNMASKED
    assert info.lengths == {"max_seq_length": 12}
    assert info.manifest.stage == "create_pretraining_data"
    assert info.special_ids["mask"] == 4
    assert info.vocab_size == 50
    assert not info.next_sentence
    assert info.pair_tasks == ("none",)
    check_records(info, **{**GEOMETRY, "max_predictions_per_seq": 99})
    assert inspect_records(RecordSet(paths)) == info


def test_the_tasks_of_sentence_pairs(record_maker, tmp_path):
    paths = []
    for name, parameters in {
        "next": {"nsp": True},
        "order": {"nsp": True, "sentence_order": True},
    }.items():
        paths.append(record_maker.write(tmp_path / name / "a.tfrecord", 4))
        record_maker.write_manifest(tmp_path / name, parameters=parameters)
    assert inspect_records(paths[1:]).pair_tasks == ("sentence_order",)
    assert inspect_records(paths).pair_tasks == ("next_sentence", "sentence_order")


def test_the_digest_names_the_data(record_maker, tmp_path):
    first, second = (tmp_path / name for name in ("first", "second"))
    for directory in (first, second):
        record_maker.write(directory / "a.tfrecord", 4)
        record_maker.write(directory / "b.tfrecord", 5)
    both = [first / "a.tfrecord", first / "b.tfrecord"]
    foreign = inspect_records(both).data_digest
    assert foreign == inspect_records([second / "a.tfrecord", second / "b.tfrecord"]).data_digest
    assert foreign != inspect_records(both[:1]).data_digest
    record_maker.write_manifest(first)
    described = inspect_records(both).data_digest
    assert described != foreign
    record_maker.write_manifest(first, parameters={"random_seed": 1})
    assert inspect_records(both).data_digest != described


def test_a_manifest_covers_the_files_that_it_lists(record_maker, tmp_path):
    record_maker.write(tmp_path / "a.tfrecord", 4)
    record_maker.write_manifest(tmp_path)
    other = record_maker.write(tmp_path / "other.tfrecord", 2)
    assert inspect_records([other]).manifest is None
    assert inspect_records([tmp_path / "a.tfrecord", other]).manifest is not None


def test_the_manifest_of_another_stage_is_passed_over(record_maker, tmp_path):
    path = record_maker.write(tmp_path / "a.tfrecord", 4)
    record_maker.write_manifest(tmp_path, stage="shards")
    assert inspect_records([path]).manifest is None


def test_no_records_are_refused(record_maker, tmp_path):
    path = record_maker.write(tmp_path / "empty.tfrecord", 0)
    with pytest.raises(UserError, match=r"empty\.tfrecord contains no records"):
        inspect_records([path])
    with pytest.raises(UserError, match="contains no records"):
        inspect_records([])


@pytest.mark.parametrize("other", ["size", "count"])
def test_a_file_that_its_manifest_does_not_describe_is_refused(record_maker, tmp_path, other):
    path = record_maker.write(tmp_path / "a.tfrecord", 4)
    entries = {"outputs": (describe_file(path, count=5),)} if other == "count" else {}
    record_maker.write_manifest(tmp_path, **entries)
    if other == "size":
        record_maker.write(path, 3)
    with pytest.raises(UserError, match=r"a\.tfrecord is not the file that the manifest"):
        inspect_records([path])


def test_records_of_something_else_are_refused(tmp_path):
    path = tmp_path / "a.tfrecord"
    for content, sentence in [(b"\xff\xff", "not a tf"), (b"", "input_ids .* is missing")]:
        with TFRecordWriter(path) as writer:
            writer.write(content)
        with pytest.raises(UserError, match=rf"a\.tfrecord does not hold .*{sentence}"):
            inspect_records([path])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"masked": False}, r"a\.tfrecord contains records with stored masks, but .*b\."),
        ({"seq_length": 16}, r"a\.tfrecord have max_seq_length 12, but .*b\..* 16"),
    ],
)
def test_mixed_layouts_are_refused(record_maker, tmp_path, other, said):
    first = record_maker.write(tmp_path / "a.tfrecord", 4)
    second = record_maker.write(tmp_path / "b.tfrecord", 4, **other)
    with pytest.raises(UserError, match=said):
        inspect_records([first, second])


def test_a_record_unlike_the_first_is_named(record_maker, tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for seq_length in (12, 12, 16):
            examples = record_maker.examples(1, seq_length=seq_length)
            examples["input_mask"] = examples["input_mask"][:, :12]
            writer.write(PRETRAINING_MASKED.encode_batch(examples)[0])
    with pytest.raises(UserError, match=r"record 2 of .*a\.tfrecord differs from the others"):
        inspect_records([path])


def test_unmasked_records_need_their_manifest(record_maker, tmp_path):
    path = record_maker.write(tmp_path / "a.tfrecord", 4, masked=False)
    with pytest.raises(
        UserError, match=r"a\.tfrecord has no stored masks, and there is no .*manifest"
    ):
        inspect_records([path])


@pytest.mark.parametrize(
    ("size", "special_ids", "missing"),
    [
        (50, {}, "pad"),
        (50, {"pad": 0, "unk": 1, "cls": 2, "sep": 3}, "mask"),
        (4, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, "mask"),
        (50, {"pad": -1, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, "pad"),
    ],
)
def test_masks_to_draw_need_the_special_ids(record_maker, tmp_path, size, special_ids, missing):
    path = record_maker.write(tmp_path / "a.tfrecord", 4, masked=False)
    vocabulary = VocabularyEntry("v", size, "wordpiece", True, special_ids)
    record_maker.write_manifest(tmp_path, vocabulary=vocabulary)
    with pytest.raises(UserError, match=f"manifest.json lacks a valid id for '{missing}'"):
        inspect_records([path])


@pytest.mark.parametrize(
    "change",
    [lambda entry: {"size": entry.size - 1},
     lambda entry: {"special_ids": {**entry.special_ids, "mask": entry.special_ids["mask"] + 1}}],
)  # fmt: skip
def test_special_ids_must_be_those_of_the_vocabulary(record_maker, tmp_path, change):
    """Without a digest in the manifest, as of an earlier version, or written by hand."""
    path = record_maker.write(tmp_path / "a.tfrecord", 4)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(45))]
    (tmp_path / "vocab").write_text("".join(f"{word}\n" for word in words))
    entry = describe_vocabulary(load_tokenizer(vocab_file=tmp_path / "vocab"))
    (tmp_path / "vocab").rename(tmp_path / entry.file_name)
    record_maker.write_manifest(tmp_path, vocabulary=entry)
    assert inspect_records([path]).vocabulary.file is not None
    other = dataclasses.replace(entry, **change(entry))
    record_maker.write_manifest(tmp_path, vocabulary=other)
    with pytest.raises(UserError, match=r"manifest\.json differs in size or special ids"):
        inspect_records([path])


def test_a_manifest_of_records_names_their_vocabulary(record_maker, tmp_path):
    path = record_maker.write(tmp_path / "a.tfrecord", 4)
    record_maker.write_manifest(tmp_path, vocabulary=None)
    with pytest.raises(UserError, match=r"manifest\.json does not name the vocabulary"):
        inspect_records([path])


def test_mixed_vocabularies_are_refused(record_maker, tmp_path):
    paths = []
    for name in ("a", "b"):
        paths.append(record_maker.write(tmp_path / name / "x.tfrecord", 4))
        vocabulary = VocabularyEntry(name, 50, "wordpiece", True, {})
        record_maker.write_manifest(tmp_path / name, vocabulary=vocabulary)
    with pytest.raises(UserError, match="different vocabularies"):
        inspect_records(paths)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_seq_length": 16}, r"--max_seq_length=16, but the records in .*a\.tfrecord have 12"),
        ({"max_predictions_per_seq": 4}, r"--max_predictions_per_seq=4, but .*a\.tfrecord have 3"),
        ({"vocab_size": 49}, r"vocab_size is 49, but .*a\.tfrecord were made with .* of 50"),
    ],
)
def test_flags_that_do_not_fit_are_refused(record_maker, tmp_path, change, sentence):
    path = record_maker.write(tmp_path / "a.tfrecord", 4)
    record_maker.write_manifest(tmp_path)
    info = inspect_records([path])
    check_records(info, **GEOMETRY)
    with pytest.raises(UserError, match=sentence):
        check_records(info, **{**GEOMETRY, **change})


def test_ids_outside_of_the_model_are_found_without_a_manifest(record_maker, tmp_path):
    info = inspect_records([record_maker.write_like_google(tmp_path / "a.tfrecord", 20)])
    check_records(info, **{**GEOMETRY, "vocab_size": info.highest_id + 1})
    with pytest.raises(UserError, match=f"contain the id {info.highest_id}"):
        check_records(info, **{**GEOMETRY, "vocab_size": info.highest_id})


# [CLS] 7 8 [SEP], of which 7 and 8 are masked; one record has padding in place of the last two.
BATCH = {
    "input_ids": np.array([[2, 4, 4, 3], [2, 9, 0, 0]]),
    "input_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "masked_lm_positions": np.array([[1, 2], [0, 0]]),
    "masked_lm_ids": np.array([[7, 8], [0, 0]]),
    "masked_lm_weights": np.array([[1.0, 1.0], [0.0, 0.0]], np.float32),
}


def test_ids_before_masking():
    assert original_ids(BATCH).tolist() == [[2, 7, 8, 3], [2, 9, 0, 0]]
    assert BATCH["input_ids"].tolist() == [[2, 4, 4, 3], [2, 9, 0, 0]]
    unmasked = {name: BATCH[name] for name in ("input_ids", "input_mask")}
    assert original_ids(unmasked).tolist() == BATCH["input_ids"].tolist()


def test_text_is_without_special_tokens_whose_ids_are_known():
    ids, mask = original_ids(BATCH), BATCH["input_mask"]
    known = text_positions(ids, mask, {"pad": 0, "cls": 2, "sep": 3, "unk": 9})
    assert known.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert text_positions(ids, mask, {}).tolist() == (mask != 0).tolist()


@pytest.mark.parametrize(
    ("padding", "unknown", "words"),
    [
        (0.5, 0.05, []),
        (0.51, 0.0, ["51.0% of all positions are padding"]),
        (0.6, 0.2, ["60.0% of all positions", "20.0% of the tokens are unknown"]),
    ],
)
def test_unusual_shares(padding, unknown, words):
    found = list(unusual_shares(padding=padding, unknown=unknown))
    assert len(found) == len(words)
    assert all(part in sentence for part, sentence in zip(words, found))


@pytest.mark.parametrize(("label_1", "total"), [(0, 0), (5, 100), (50, 100), (95, 100), (1, 2)])
def test_two_labels_can_be_learned(label_1, total):
    assert one_sided_labels(label_1, total) is None


@pytest.mark.parametrize(
    ("label_1", "total", "sentence"),
    [
        (40, 40, "all sentence pairs have label 1,"),
        (0, 40, "all sentence pairs have label 0,"),
        (96, 100, "96.0% of the sentence pairs have label 1,"),
        (4, 100, "96.0% of the sentence pairs have label 0,"),
    ],
)
def test_one_label_has_a_cure(label_1, total, sentence):
    found = one_sided_labels(label_1, total)
    assert found.startswith(sentence)
    assert "several sentences in a document" in found
    assert "--nsp=false" in found
