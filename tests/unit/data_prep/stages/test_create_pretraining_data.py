from __future__ import annotations

import dataclasses
import gzip
import hashlib
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.durable.manifest import read_manifest, require_listed_files
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED, decode_example
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files
from data_prep.inspection import inspect_data as inspect
from data_prep.stages import create_pretraining_data as stage
from tests.helpers.programs import ROOT, run
from tests.helpers.small_vocabulary import load_tokenizer

WORDS = [a + b for a in "abcdefgh" for b in "aeiou"]
SUFFIXES = ["##s", "##ed", "##ing", "##er"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


def make_text(num_documents, *, seed=0):
    """Documents of sentences of words with and without suffixes."""
    rng = random.Random(seed)

    def word():
        return rng.choice(WORDS) + "".join(
            rng.choice(SUFFIXES)[2:] for _ in range(rng.choice([0, 0, 1, 2]))
        )

    documents = []
    for _ in range(num_documents):
        sentences = [
            " ".join(word() for _ in range(rng.randint(3, 20))) for _ in range(rng.randint(1, 30))
        ]
        documents.append("\n".join(sentences) + "\n")
    return "\n".join(documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "vocab.txt").write_text("\n".join(SPECIAL + WORDS + SUFFIXES) + "\n")
    (directory / "a.txt").write_text(make_text(60))
    (directory / "b.txt").write_text(make_text(50, seed=1))
    return directory


def settings_for(corpus, directory, **changes):
    settings = stage.Settings(
        input_file=str(corpus / "*.txt").replace("*", "[ab]"),
        output_dir=directory and str(directory),
        tokenizer_files=TokenizerFiles(corpus / "vocab.txt"),
        max_seq_length=64,
        max_predictions_per_seq=10,
        dupe_factor=2,
        num_output_files=3,
        num_workers=1,
    )
    return dataclasses.replace(settings, **changes)


def record_files(directory):
    return sorted(directory.glob("*.tfrecord"))


def read_features(directory):
    """All records as one dict of [N, L] arrays."""
    record_set = RecordSet(record_files(directory))
    examples = [decode_example(record) for record in record_set.read(range(len(record_set)))]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def restored_ids(features):
    """input_ids with the labels put back in the masked positions."""
    ids = features["input_ids"].copy()
    for row, positions in enumerate(features["masked_lm_positions"]):
        used = features["masked_lm_weights"][row] > 0
        ids[row, positions[used]] = features["masked_lm_ids"][row, used]
    return ids


@pytest.fixture(scope="module")
def small_blocks():
    """Blocks of 8 KiB, so that a small text makes several."""
    patch = pytest.MonkeyPatch()
    patch.setattr(stage, "BLOCK_BYTES", 8192)
    patch.setattr(stage, "MAX_DOCUMENT_BYTES", 2048)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def static(corpus, tmp_path_factory, small_blocks):
    return stage.run(settings_for(corpus, tmp_path_factory.mktemp("static")))


@pytest.fixture(scope="module")
def whole_words(corpus, tmp_path_factory, small_blocks):
    directory = tmp_path_factory.mktemp("whole_words")
    return stage.run(settings_for(corpus, directory, do_whole_word_mask=True))


@pytest.fixture(scope="module")
def dynamic(corpus, tmp_path_factory, small_blocks):
    directory = tmp_path_factory.mktemp("dynamic")
    return stage.run(settings_for(corpus, directory, masking="dynamic"))


@pytest.fixture(scope="module")
def single(corpus, tmp_path_factory, small_blocks):
    directory = tmp_path_factory.mktemp("single")
    return stage.run(settings_for(corpus, directory, nsp=False, masking="dynamic"))


@pytest.fixture(scope="module")
def ordered(corpus, tmp_path_factory, small_blocks):
    """Sentence order, with n-grams of whole words."""
    settings = settings_for(
        corpus,
        tmp_path_factory.mktemp("ordered"),
        sentence_order=True,
        do_whole_word_mask=True,
        ngram=3,
    )
    return stage.run(settings)


def test_defaults_are_googles():
    """The defaults of google-research/bert @eedf571, create_pretraining_data.py."""
    defaults = {field.name: field.default for field in dataclasses.fields(stage.Settings)}
    google = {
        "do_whole_word_mask": False,
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "random_seed": 12345,
        "dupe_factor": 10,
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1,
    }
    assert {name: defaults[name] for name in google} == google
    assert (defaults["masking"], defaults["nsp"]) == ("static", True)


def test_tensorflow_reads_googles_seven_features(static):
    path = str(record_files(static)[0])
    lengths = {"max_seq_length": 64, "max_predictions_per_seq": 10}
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.data.TFRecordDataset(path).batch(10_000)
        serialized = tf.data.make_one_shot_iterator(data).get_next()
        spec = PRETRAINING_MASKED.parse_spec(lengths)
        parsed = session.run(tf.io.parse_example(serialized, spec))
    assert {name: (v.shape[1], v.dtype.name) for name, v in parsed.items()} == {
        "input_ids": (64, "int64"),
        "input_mask": (64, "int64"),
        "segment_ids": (64, "int64"),
        "masked_lm_positions": (10, "int64"),
        "masked_lm_ids": (10, "int64"),
        "masked_lm_weights": (10, "float32"),
        "next_sentence_labels": (1, "int64"),
    }
    message = tf.train.Example.FromString(RecordSet([path]).read([0])[0])
    assert set(message.features.feature) == set(parsed)


@pytest.mark.parametrize("directory", ["static", "whole_words", "ordered", "dynamic"])
def test_layout_of_pairs(directory, request):
    features = read_features(request.getfixturevalue(directory))
    ids = features["input_ids"]
    if directory != "dynamic":
        ids = restored_ids(features)
    lengths = features["input_mask"].sum(axis=1)
    columns = np.arange(64)
    np.testing.assert_array_equal(features["input_mask"], columns < lengths[:, None])
    assert (ids[:, 0] == CLS).all()
    assert ((ids == CLS).sum(axis=1) == 1).all()
    assert ((ids == SEP).sum(axis=1) == 2).all()
    assert (ids[np.arange(len(ids)), lengths - 1] == SEP).all()
    assert not ids[features["input_mask"] == 0].any()
    first_sep = (ids == SEP).argmax(axis=1)
    assert (first_sep >= 2).all()
    assert (lengths - first_sep >= 3).all()
    second = (columns > first_sep[:, None]) & (columns < lengths[:, None])
    np.testing.assert_array_equal(features["segment_ids"], second)
    assert (ids < len(SPECIAL + WORDS + SUFFIXES)).all()


@pytest.mark.parametrize("directory", ["static", "whole_words", "ordered"])
def test_masks(directory, request):
    features = read_features(request.getfixturevalue(directory))
    original = restored_ids(features)
    lengths = features["input_mask"].sum(axis=1)
    weights = features["masked_lm_weights"]
    counts = weights.sum(axis=1).astype(int)
    columns = np.arange(10)
    np.testing.assert_array_equal(weights > 0, columns < counts[:, None])
    wanted = np.clip(np.round(lengths * 0.15), 1, 10)
    if directory == "static":
        np.testing.assert_array_equal(counts, wanted)
    else:
        assert (counts <= wanted).all()
        assert counts.sum() > 0.9 * wanted.sum()
    for row, count in enumerate(counts):
        positions = features["masked_lm_positions"][row]
        assert (np.diff(positions[:count]) > 0).all()
        assert not positions[count:].any()
        assert not np.isin(original[row, positions[:count]], [CLS, SEP, PAD]).any()
    changed = features["input_ids"] != original
    masked = np.zeros_like(changed)
    rows = np.nonzero(weights)[0]
    masked[rows, features["masked_lm_positions"][weights > 0]] = True
    assert not (changed & ~masked).any()
    outcome = features["input_ids"][masked]
    assert abs((outcome == MASK).mean() - 0.8) < 5 * np.sqrt(0.16 / len(outcome))
    assert abs((outcome == original[masked]).mean() - 0.102) < 5 * np.sqrt(0.092 / len(outcome))


def chosen_and_original(directory):
    """Which tokens are predicted, bool [N, S], and the ids before masking."""
    features = read_features(directory)
    ids = restored_ids(features)
    chosen = np.zeros(ids.shape, bool)
    used = features["masked_lm_weights"] > 0
    chosen[np.nonzero(used)[0], features["masked_lm_positions"][used]] = True
    return chosen, ids


def split_words(directory):
    """How often a ``##`` piece does not share the fate of the piece before it in its segment."""
    chosen, ids = chosen_and_original(directory)
    continues = ids >= len(SPECIAL + WORDS)
    joined = continues[:, 1:] & ~np.isin(ids[:, :-1], [CLS, SEP])
    return (joined & (chosen[:, 1:] != chosen[:, :-1])).sum()


def share_of_neighbours(directory):
    """The masked words that follow a masked token."""
    chosen, ids = chosen_and_original(directory)
    begins = chosen & (ids < len(SPECIAL + WORDS))
    return (begins[:, 1:] & chosen[:, :-1]).sum() / begins.sum()


def test_whole_words_are_masked_whole(whole_words, ordered, static):
    assert split_words(whole_words) == split_words(ordered) == 0
    assert split_words(static) > 100


def test_ngrams_are_masked_together(ordered, whole_words):
    assert share_of_neighbours(ordered) > 2 * share_of_neighbours(whole_words)
    parameters = read_manifest(ordered).parameters
    assert (parameters["ngram"], parameters["favor_shorter_ngram"]) == (3, True)
    assert "ngram" not in read_manifest(whole_words).parameters


@pytest.mark.parametrize("changes", [{}, {"nsp": False, "pack_documents": True}], ids=str)
def test_spans_are_of_whole_words_in_a_segment(corpus, tmp_path, whole_words, changes):
    directory = stage.run(settings_for(corpus, tmp_path / "spans", span_masking=True, **changes))
    chosen, ids = chosen_and_original(directory)
    assert not (chosen & np.isin(ids, [CLS, SEP, PAD])).any()
    assert split_words(directory) == 0
    assert share_of_neighbours(directory) > 2 * share_of_neighbours(whole_words)
    assert read_manifest(directory).parameters["span_masking"] is True
    assert inspect.run(inspect.Settings(input_file=str(directory))) == 0


def test_pairs_of_sentence_order_are_neighbours_in_a_document(corpus, ordered):
    documents = document_texts(corpus)
    features = read_features(ordered)
    labels = features["next_sentence_labels"][:, 0]
    checked = 0
    for ids, is_swapped in zip(restored_ids(features), labels):
        seps = np.nonzero(ids == SEP)[0]
        a, b = bytes(ids[1 : seps[0]].tolist()), bytes(ids[seps[0] + 1 : seps[1]].tolist())
        first, second = (b, a) if is_swapped else (a, b)
        places = [(d.find(first), d) for d in documents if first in d]
        assert any(second in d[place + len(first) :] for place, d in places)
        checked += seps[1] < 63 and any(first + second in d for _, d in places)
    assert checked > 100  # what was not cut is side by side
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(labels))
    manifest = read_manifest(ordered)
    assert manifest.counts["swapped"] == labels.sum()
    assert manifest.counts["documents_of_one_token"] == 0
    assert (manifest.parameters["nsp"], manifest.parameters["sentence_order"]) == (True, True)
    assert inspect_records(record_files(ordered)).pair_tasks == ("sentence_order",)


def test_documents_of_one_token_have_no_order(corpus, tmp_path):
    (tmp_path / "a.txt").write_text("ba\n\nba be\n\nbe\n")
    settings = settings_for(
        corpus, tmp_path / "out", input_file=f"{tmp_path}/a.txt", sentence_order=True, dupe_factor=1
    )
    counts = read_manifest(stage.run(settings)).counts
    assert (counts["documents"], counts["documents_of_one_token"], counts["records"]) == (3, 2, 1)
    (tmp_path / "a.txt").write_text("ba\n\nbe\n")
    with pytest.raises(UserError, match="contains only documents of one token"):
        stage.run(settings)


def test_dynamic_records_mark_the_starts_of_words(dynamic):
    features = read_features(dynamic)
    assert set(features) == {feature.name for feature in PRETRAINING_UNMASKED.features}
    ids = features["input_ids"]
    assert not (ids == MASK).any()
    continues = ids >= len(SPECIAL + WORDS)
    continues[:, 1:] &= ~np.isin(ids[:, :-1], [CLS, SEP])
    expected = (features["input_mask"] == 1) & ~continues
    np.testing.assert_array_equal(features["word_starts"], expected)
    assert (features["word_starts"] == 0).sum() > features["input_mask"].sum() * 0.3


def document_texts(corpus):
    """The ids of each document, as bytes for searching."""
    tokenizer = load_tokenizer(vocab_file=corpus / "vocab.txt")
    documents = []
    for name in ("a.txt", "b.txt"):
        for document in (corpus / name).read_text().split("\n\n"):
            documents.append(bytes(tokenizer.encode(document)))
    return documents


def test_pairs_are_text_of_the_corpus(corpus, static):
    """Each segment stands in a document; a true next segment follows in the same one."""
    documents = document_texts(corpus)
    features = read_features(static)
    for ids, label in zip(restored_ids(features)[::5], features["next_sentence_labels"][::5]):
        seps = np.nonzero(ids == SEP)[0]
        a, b = bytes(ids[1 : seps[0]].tolist()), bytes(ids[seps[0] + 1 : seps[1]].tolist())
        homes = [document for document in documents if a in document]
        assert homes
        assert any(b in document for document in documents)
        if not label[0]:
            assert any(b in document[document.find(a) + len(a) :] for document in homes)


def test_about_half_of_the_partners_are_random(static):
    """More than half, as documents end with single sentences, which always get a random one."""
    labels = read_features(static)["next_sentence_labels"]
    manifest = read_manifest(static)
    assert labels.sum() == manifest.counts["random_next"]
    assert 0.5 < labels.mean() < 0.65


def test_single_segments_are_the_whole_text(corpus, single):
    features = read_features(single)
    ids = features["input_ids"]
    lengths = features["input_mask"].sum(axis=1)
    assert not features["next_sentence_labels"].any()
    assert not features["segment_ids"].any()
    assert ((ids == SEP).sum(axis=1) == 1).all()
    assert (ids[np.arange(len(ids)), lengths - 1] == SEP).all()
    total = sum(map(len, document_texts(corpus)))
    assert (lengths - 2).sum() == 2 * total  # two passes, and every token once in each
    assert "random_next" not in read_manifest(single).counts
    assert (lengths == 64).mean() > 0.4  # documents have 4 segments on average


def test_files_differ_by_one_record_at_most(static):
    counts = [len(RecordSet([path])) for path in record_files(static)]
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_the_manifest_describes_the_directory(corpus, static):
    manifest = read_manifest(static)
    assert manifest.stage == "create_pretraining_data"
    assert manifest.parameters["max_seq_length"] == 64
    assert manifest.parameters["max_predictions_per_seq"] == 10
    assert manifest.parameters["masking"] == "static"
    assert manifest.parameters["nsp"] is True
    assert manifest.vocabulary.size == len(SPECIAL + WORDS + SUFFIXES)
    assert dict(manifest.vocabulary.special_ids)["mask"] == MASK
    assert manifest.vocabulary.lower_case is True
    by_name = {entry.name: entry for entry in manifest.outputs}
    for path in record_files(static):
        assert by_name[path.name].count == len(RecordSet([path]))
        assert by_name[path.name].digest == hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"{path.name}.offsets" in by_name
    records = sum(len(RecordSet([path])) for path in record_files(static))
    assert manifest.counts["records"] == records
    assert manifest.counts["tokens"] == sum(map(len, document_texts(corpus)))
    text = (corpus / "a.txt").read_text() + "\n" + (corpus / "b.txt").read_text()
    assert manifest.counts["positions_used"] == read_features(static)["input_mask"].sum()
    assert manifest.counts["sentences"] == len([line for line in text.split("\n") if line])


def test_dynamic_records_do_not_depend_on_settings_of_masks(corpus, tmp_path, dynamic):
    assert "masked_lm_prob" not in read_manifest(dynamic).parameters
    before = (dynamic / "manifest.json").stat().st_mtime_ns
    stage.run(settings_for(corpus, dynamic, masking="dynamic", masked_lm_prob=0.5))
    assert (dynamic / "manifest.json").stat().st_mtime_ns == before


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_output_is_the_same_for_any_number_of_workers(corpus, tmp_path, static):
    for workers in (2, 3):
        other = stage.run(settings_for(corpus, tmp_path / str(workers), num_workers=workers))
        assert contents(other) == contents(static)


def test_compressed_files_hold_the_same_records(corpus, tmp_path, static):
    settings = settings_for(corpus, tmp_path, compression="gzip", num_workers=2)
    stage.run(settings)
    plain = record_files(static)
    files = [tmp_path / f"{path.name}.gz" for path in plain]
    assert sorted(tmp_path.glob("*.tfrecord*")) == sorted(
        [*files, *(path.with_name(f"{path.name}.offsets") for path in files)]
    )
    for path, same in zip(files, plain):
        assert gzip.decompress(path.read_bytes()) == same.read_bytes()
        assert path.stat().st_size < same.stat().st_size / 2
    manifest = read_manifest(tmp_path)
    assert manifest.parameters["compression"] == "gzip"
    assert [e.count for e in manifest.outputs] == [e.count for e in read_manifest(static).outputs]
    require_listed_files(str(tmp_path))
    inspect.run(inspect.Settings(str(tmp_path)))
    # The same directory without compression: nothing of before is left.
    stage.run(dataclasses.replace(settings, compression="none"))
    assert contents(tmp_path) == contents(static)


def test_the_output_is_the_same_however_many_instances_are_encoded_at_once(
    corpus, tmp_path, static, monkeypatch
):
    for at_once in (7, 10_000):
        monkeypatch.setattr(stage, "ENCODE_AT_ONCE", at_once)
        other = stage.run(settings_for(corpus, tmp_path / str(at_once)))
        assert contents(other) == contents(static)


def test_the_order_of_a_block_is_the_one_it_always_had(tmp_path):
    """Literal: records that are made again from the same text are the same."""
    words = [f"w{number:02}" for number in range(16)]
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL + words) + "\n")
    (tmp_path / "a.txt").write_text("\n".join(f"{word} {word}\n" for word in words))
    settings = settings_for(
        tmp_path,
        tmp_path / "records",
        input_file=str(tmp_path / "a.txt"),
        nsp=False,
        masking="dynamic",
        short_seq_prob=0.0,
        dupe_factor=1,
        num_output_files=1,
    )
    found = read_features(stage.run(settings))["input_ids"][:, 1] - len(SPECIAL)
    assert sorted(found) == list(range(16))
    assert found.tolist() == [12, 10, 4, 9, 13, 3, 14, 7, 15, 1, 0, 5, 11, 8, 2, 6]


def test_packed_records_go_on_with_the_next_document(tmp_path):
    words = [f"w{number:02}" for number in range(16)]
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL + words) + "\n")
    (tmp_path / "a.txt").write_text("\n".join(f"{word} {word}\n" for word in words))
    settings = settings_for(
        tmp_path,
        tmp_path / "records",
        input_file=str(tmp_path / "a.txt"),
        nsp=False,
        pack_documents=True,
        masking="dynamic",
        max_seq_length=13,
        dupe_factor=1,
    )
    directory = stage.run(settings)
    found = read_features(directory)
    lengths = found["input_mask"].sum(axis=1)
    texts = [ids[:length].tolist() for ids, length in zip(found["input_ids"], lengths)]
    sep, first = SPECIAL.index("[SEP]"), len(SPECIAL)
    texts.sort(key=lambda ids: [max(ids), -len(ids)])
    assert texts[0][1:] == [first, first, sep, first + 1, first + 1, sep, first + 2, first + 2, sep,
                            first + 3, first + 3, sep]  # fmt: skip
    assert sorted(map(len, texts)) == [5, 13, 13, 13, 13]
    assert sum(ids.count(first + 7) for ids in texts) == 2
    manifest = read_manifest(directory)
    assert manifest.counts["documents"] == 16
    assert manifest.counts["tokens"] == 32  # separators are none of the text's
    assert manifest.parameters["pack_documents"] is True


def test_other_seeds_and_passes_give_other_records(corpus, tmp_path, static):
    other = stage.run(settings_for(corpus, tmp_path / "seed", random_seed=1))
    assert contents(other) != contents(static)
    once = stage.run(settings_for(corpus, tmp_path / "once", dupe_factor=1))
    ratio = read_manifest(static).counts["records"] / read_manifest(once).counts["records"]
    assert 1.9 < ratio < 2.1
    records = {
        record
        for path in record_files(static)
        for record in RecordSet([path]).read(range(len(RecordSet([path]))))
    }
    assert len(records) == read_manifest(static).counts["records"]  # no two alike


def test_a_second_run_is_skipped_and_a_changed_one_is_not(corpus, tmp_path, capfd):
    directory = stage.run(settings_for(corpus, tmp_path / "out"))
    before = contents(directory)
    capfd.readouterr()
    stage.run(settings_for(corpus, directory, num_workers=2))
    assert "up to date, skipped" in capfd.readouterr().err
    stage.run(settings_for(corpus, directory, num_output_files=2))
    assert len(record_files(directory)) == 2
    assert contents(directory) != before


def test_output_file_takes_a_list_like_googles(corpus, tmp_path):
    names = f"{tmp_path}/x.tfrecord,{tmp_path}/y.tfrecord"
    settings = settings_for(corpus, None, output_file=names, dupe_factor=1)
    assert stage.run(settings) == tmp_path
    assert {"x.tfrecord", "y.tfrecord", "manifest.json"} <= set(contents(tmp_path))
    stage.run(dataclasses.replace(settings, max_seq_length=32))  # the same files may be made again
    with pytest.raises(UserError, match=r"x\.tfrecord was made in one call with y\.tfrecord"):
        stage.run(dataclasses.replace(settings, output_file=f"{tmp_path}/x.tfrecord"))
    assert "y.tfrecord" in contents(tmp_path)


def test_shards_of_the_same_name_in_several_directories(corpus, tmp_path, capsys):
    """Text from two directories, and records from two: each file counts, and counts once."""
    for name in "ab":
        (tmp_path / name).mkdir()
        shutil.copyfile(corpus / f"{name}.txt", tmp_path / name / "shard.txt")
    given = f"{tmp_path}/a/shard.txt,{tmp_path}/b,{tmp_path}/?/shard.txt"
    settings = settings_for(corpus, tmp_path / "both", input_file=given, num_output_files=1)
    directory = stage.run(settings)
    both = read_manifest(directory)
    assert [entry.name for entry in both.inputs] == ["shard.txt"] * 2
    assert both.counts["tokens"] == sum(map(len, document_texts(corpus)))
    stage.run(settings)
    assert "up to date, skipped" in capsys.readouterr().err
    single = stage.run(dataclasses.replace(settings, input_file=f"{tmp_path}/a",
                                           output_dir=f"{tmp_path}/one"))  # fmt: skip
    name = record_files(directory)[0].name
    patterns = f"{single},{directory}/{name},{directory}/records*d"
    require_listed_files(patterns)
    files = expand_record_files(patterns, flag="input_file")
    assert files == [directory / name, single / name]
    assert inspect_records(files).num_records == both.counts["records"] + len(
        RecordSet([single / name])
    )
    inspect.run(inspect.Settings(patterns))
    assert "both: 1 files" in capsys.readouterr().err


def test_packed_and_other_documents_in_one_directory_are_noted(corpus, tmp_path, capsys):
    packed = dataclasses.replace(
        settings_for(corpus, None),
        output_file=f"{tmp_path}/packed.tfrecord",
        nsp=False,
        pack_documents=True,
    )
    stage.run(packed)
    assert "warning" not in capsys.readouterr().err
    stage.run(
        dataclasses.replace(packed, output_file=f"{tmp_path}/other.tfrecord", pack_documents=False)
    )
    assert (
        f"warning: {tmp_path}/packed.tfrecord was made with pack_documents True, other.tfrecord "
        "without" in capsys.readouterr().err
    )


def test_a_call_for_each_file_fills_one_directory(corpus, tmp_path):
    """As google's README and NVIDIA's scripts have it: a process for each shard, here at once."""
    flags = [f"--vocab_file={corpus}/vocab.txt", "--max_seq_length=64", "--dupe_factor=1"]
    command = [sys.executable, "-m", "data_prep.create_pretraining_data", *flags]
    processes = [
        subprocess.Popen(
            [
                *command,
                f"--input_file={corpus}/{name}.txt",
                f"--output_file={tmp_path}/out/tf_{name}.tfrecord",
            ],
            cwd=ROOT,
        )
        for name in "ab"
    ]
    assert [process.wait() for process in processes] == [0, 0]
    settings = settings_for(
        corpus,
        None,
        input_file=f"{corpus}/a.txt",
        output_file=f"{tmp_path}/out/tf_c.tfrecord",
        dupe_factor=1,
        max_predictions_per_seq=20,
        random_seed=7,
    )
    stage.run(settings)
    directory = tmp_path / "out"
    names = [f"tf_{name}.tfrecord" for name in "abc"]
    assert [path.name for path in record_files(directory)] == names
    manifest = read_manifest(directory)
    assert manifest.counts["records"] == len(RecordSet(record_files(directory)))
    [copy] = directory.glob("*.vocab")  # all calls have it in common
    assert copy.read_bytes() == (corpus / "vocab.txt").read_bytes()
    assert [e.name for e in manifest.outputs].count(copy.name) == 1
    assert manifest.parameters["max_seq_length"] == 64
    assert "random_seed" not in manifest.parameters
    for patterns, number in ((f"{directory}", 3), (f"{directory}/tf_[ab]*", 2)):
        require_listed_files(patterns)
        info = inspect_records(expand_record_files(patterns, flag="input_file"))
        assert info.manifest == manifest
        assert info.num_records == len(RecordSet(record_files(directory)[:number]))
    assert inspect_records([directory / names[1]]).manifest == manifest
    inspect.run(inspect.Settings(input_file=str(directory)))

    for changes in ({"max_seq_length": 32}, {"max_predictions_per_seq": 5}, {"nsp": False}):
        [name] = changes
        with pytest.raises(UserError, match=rf"--output_file: .*tf_a\.tfrecord .* with {name} "):
            stage.run(
                dataclasses.replace(settings, output_file=f"{directory}/tf_d.tfrecord", **changes)
            )
    ordered = dataclasses.replace(
        settings, output_file=f"{directory}/tf_d.tfrecord", sentence_order=True
    )
    with pytest.raises(
        UserError, match=r"tf_a\.tfrecord was made without sentence_order, not True"
    ):
        stage.run(ordered)
    with pytest.raises(UserError, match=r"--output_dir: .*contains tf_a\.tfrecord from a run with"):
        stage.run(settings_for(corpus, directory))
    assert read_manifest(directory) == manifest


@pytest.mark.parametrize("scheme", ["do_whole_word_mask", "span_masking"])
def test_a_sentencepiece_model_takes_the_vocabularys_place(corpus, tmp_path, scheme):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus / "a.txt"),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=60,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    model = str(tmp_path / "spm.model")
    directory = stage.run(
        settings_for(
            corpus,
            tmp_path / "out",
            tokenizer_files=TokenizerFiles(spm_model_file=tmp_path / "spm.model"),
            dupe_factor=1,
            **{scheme: True},
        )
    )
    assert read_manifest(directory).vocabulary.kind == "sentencepiece"
    tokenizer = load_tokenizer(spm_model_file=model)
    features = read_features(directory)
    ids = restored_ids(features)
    lines = {line.strip() for line in (corpus / "a.txt").read_text().split("\n")}
    lines |= {line.strip() for line in (corpus / "b.txt").read_text().split("\n")}
    text = " ".join(lines)
    for row in ids[:20]:
        words = tokenizer.decode([int(i) for i in row if i > 4]).split()
        assert words[1] in text
    starts = np.array(tokenizer.word_starts(range(60)))
    chosen, _ = chosen_and_original(directory)
    joined = ~starts[ids[:, 1:]] & ~np.isin(ids[:, :-1], [tokenizer.cls_id, tokenizer.sep_id])
    joined &= features["input_mask"][:, 1:] == 1
    assert joined.sum() > 100
    assert not (joined & (chosen[:, 1:] != chosen[:, :-1])).any()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_seq_length": 4}, "--max_seq_length=4 must be at least 5"),
        ({"dupe_factor": 0}, "--dupe_factor=0 must be at least 1"),
        ({"num_output_files": 0}, "--num_output_files=0 must be at least 1"),
        ({"short_seq_prob": 1.5}, "--short_seq_prob=1.5 must be in"),
        ({"masked_lm_prob": 0.0}, "--masked_lm_prob=0 must be in"),
        ({"max_predictions_per_seq": 65}, "--max_predictions_per_seq=65: give 1"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq=0 must be at least 1"),
        ({"masking": "none"}, "--masking=none is not one of"),
        ({"masking": "dynamic", "do_whole_word_mask": True}, "contradict each other"),
        ({"ngram": 0}, "--ngram=0 must be at least 1"),
        ({"masking": "dynamic", "ngram": 2}, "--ngram and --masking=dynamic contradict each other"),
        ({"masking": "dynamic", "span_masking": True}, "--span_masking and --masking=dynamic"),
        ({"ngram": 2, "span_masking": True}, "--span_masking draws the lengths of spans by itself"),
        ({"sentence_order": True, "nsp": False}, "--sentence_order and --nsp=false contradict"),
        ({"pack_documents": True}, "--pack_documents and --nsp contradict each other"),
        ({"output_dir": None}, "--output_dir and --output_file; none was given"),
        ({"output_file": "x"}, "--output_dir and --output_file; both were given"),
        ({"output_dir": None, "output_file": "a/x,b/y"}, "different names in one directory"),
        ({"output_dir": None, "output_file": "a/x,a/x"}, "different names in one directory"),
        (
            {"tokenizer_files": TokenizerFiles(Path("x"), Path("x"))},
            "--vocab_file and --spm_model_file; both were given",
        ),
        (
            {"tokenizer_files": TokenizerFiles(Path("missing.txt"))},
            r"--vocab_file: missing\.txt does not exist",
        ),
        ({"input_file": "missing.txt"}, r"--input_file: no file matches 'missing\.txt'"),
        ({"num_workers": -1}, "--num_workers=-1"),
    ],
)
def test_bad_settings_are_refused(corpus, tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        stage.run(settings_for(corpus, tmp_path / "out", **changes))
    assert not list(tmp_path.glob("out/*.tfrecord*"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b" \n\n\t\n", "contains only white space"),
        (b"fine\nbr\xffoken\n", r"line 2 of .*bad\.txt is not UTF-8"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_refused(corpus, tmp_path, content, sentence, workers):
    (tmp_path / "bad.txt").write_bytes(content)
    settings = settings_for(
        corpus, tmp_path / "out", input_file=str(tmp_path / "bad.txt"), num_workers=workers
    )
    with pytest.raises(UserError, match=sentence):
        stage.run(settings)
    assert not list((tmp_path / "out").glob("*.tfrecord*"))


@pytest.mark.parametrize("nsp", [True, False])
def test_documents_of_one_sentence_give_pairs_of_one_label(corpus, tmp_path, capsys, nsp):
    (tmp_path / "text.txt").write_text("ba be .\n\n" * 50)
    text = str(tmp_path / "text.txt")
    stage.run(settings_for(corpus, tmp_path / "out", input_file=text, num_output_files=1, nsp=nsp))
    said = capsys.readouterr().err
    assert ("warning: all sentence pairs have label 1, so" in said) == nsp


def test_an_unknown_word_of_wikitext_is_the_unknown_token(corpus, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("= ba =\nba <unk> be <unk> .\n\nbis <unk>\n")
    vocabulary = (corpus / "vocab.txt").read_text() + "<\n>\nunk\n.\n=\n"
    (tmp_path / "vocab.txt").write_text(vocabulary)
    tokens = {}
    for markup in ("wikitext", "plain"):
        settings = settings_for(
            corpus,
            tmp_path / markup,
            input_file=str(tmp_path / "text.txt"),
            tokenizer_files=TokenizerFiles(tmp_path / "vocab.txt"),
            num_output_files=1,
            masking="dynamic",
            nsp=False,
            dupe_factor=1,
            markup=markup,
        )
        stage.run(settings)
        said = capsys.readouterr().err
        assert ("3 words are <unk>" in said) == (markup == "plain")
        manifest = read_manifest(tmp_path / markup)
        assert manifest.counts["unknown_words"] == 3
        assert ("markup" in manifest.parameters) == (markup == "wikitext")
        ids = read_features(tmp_path / markup)["input_ids"]
        tokenizer = load_tokenizer(vocab_file=tmp_path / "vocab.txt")
        tokens[markup] = {" ".join(tokenizer.convert_ids_to_tokens(row[row != PAD])) for row in ids}
    assert tokens["wikitext"] == {
        "[CLS] = ba = ba [UNK] be [UNK] . [SEP]",
        "[CLS] bi ##s [UNK] [SEP]",
    }
    assert "[CLS] bi ##s < unk > [SEP]" in tokens["plain"]


@pytest.mark.parametrize("name", ["..", ".hidden", "manifest.json"])
def test_names_that_cannot_be_record_files_are_refused(corpus, tmp_path, name):
    settings = stage.Settings(
        input_file=f"{corpus}/a.txt",
        output_file=f"{tmp_path}/out/{name}",
        tokenizer_files=TokenizerFiles(corpus / "vocab.txt"),
    )
    with pytest.raises(UserError, match=rf"--output_file=.*'{name}' cannot be the name"):
        stage.run(settings)
    assert not (tmp_path / "out").exists()


def test_googles_command_line_works(corpus, tmp_path):
    output = tmp_path / "x.tfrecord"
    flags = [
        f"--input_file={corpus}/a.txt",
        f"--output_file={output}",
        f"--vocab_file={corpus}/vocab.txt",
        "--do_lower_case=True",
        "--do_whole_word_mask=True",
        "--max_seq_length=32",
        "--max_predictions_per_seq=5",
        "--masked_lm_prob=0.2",
        "--random_seed=7",
        "--dupe_factor=1",
        "--short_seq_prob=0.2",
    ]
    command = ["-m", "data_prep.create_pretraining_data", *flags]
    run(*command)
    parameters = read_manifest(tmp_path).parameters
    expected = {
        "do_whole_word_mask": True,
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "masked_lm_prob": 0.2,
        "random_seed": 7,
        "dupe_factor": 1,
        "short_seq_prob": 0.2,
    }
    assert {name: parameters[name] for name in expected} == expected
    assert PRETRAINING_MASKED.decode(RecordSet([output]).read([0])[0])["input_ids"].shape == (32,)
    failed = run(*command, "--masked_lm_prob=2", check=False)
    assert failed.returncode == 2
    assert failed.stderr == "error: --masked_lm_prob=2 must be in (0, 1].\n"


def test_the_share_of_unknown_tokens_is_said(corpus, tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text((corpus / "vocab.txt").read_text())
    (tmp_path / "a.txt").write_text(make_text(60) + "영화가 아주\n" * 300)
    (tmp_path / "b.txt").write_text(make_text(50, seed=1))
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    stage.run(settings_for(corpus, plain))
    assert "unknown" not in capsys.readouterr().out
    stage.run(settings_for(tmp_path, whole))
    stage.run(settings_for(tmp_path, whole))
    found = [line for line in capsys.readouterr().out.splitlines() if "unknown" in line]
    assert len(found) == 2
    remark = read_manifest(whole).remark
    assert "'영화가' (" in remark
    tokens = read_manifest(whole).counts["tokens"]
    assert remark.startswith(f"{600 / tokens:.1%} of the {tokens:,} tokens are unknown")
    assert "unknown_tokens" not in read_manifest(whole).counts


def test_text_of_another_language_is_refused(corpus, tmp_path):
    (tmp_path / "vocab.txt").write_text((corpus / "vocab.txt").read_text())
    (tmp_path / "a.txt").write_text("영화가 아주\n" * 300)
    with pytest.raises(UserError, match=r"100\.0% of the 600 tokens are unknown .*language"):
        stage.run(settings_for(tmp_path, tmp_path / "records"))
    assert not (tmp_path / "records/manifest.json").exists()
