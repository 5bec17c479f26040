"""Records of labelled sentences and their windows, compared with plain reimplementations."""

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.tagging.files import (
    Sentence,
    SentenceEncoder,
    WindowSettings,
    feature_stage,
    read_tagged,
    sequences_of,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.small_span_model import VOCABULARY

LABELS = ("A", "B", "O")
APART = WindowSettings(6, doc_stride=6)  # without overlap
FILE = "anna A\nbooks O\n\nsea, B\n? O\nby O\nthe O\ntown O\n"


@pytest.fixture(name="tokenizer_files", scope="module")
def files_of_the_vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    return TokenizerFiles(path, do_lower_case=True)


@pytest.fixture(name="file")
def sentences_of_a_file(tmp_path):
    (tmp_path / "train.txt").write_text(FILE)
    return read_tagged(tmp_path / "train.txt", flag="f", needs_labels=True)


def tokens(ids):
    return " ".join(VOCABULARY[i] for i in ids)


def test_records(tmp_path, file, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "windows": APART, "labels": LABELS}
    made = feature_stage(file, **options).build(tmp_path / "out")
    assert made.lengths.tolist() == [5, 6, 4]
    assert made.counts == {"sentences": 2, "words": 7, "sequences": 3, "cut_sentences": 1}
    first, second, third = map(made.spec.decode, RecordSet(made.files).read([0, 1, 2]))
    assert tokens(first["input_ids"]) == "[CLS] anna book ##s [SEP] [PAD]"
    assert first["word_starts"].tolist() == [0, 1, 1, 0, 0, 0]
    assert first["label_ids"].tolist() == [0, 0, 2, 0, 0, 0]
    assert tokens(second["input_ids"]) == "[CLS] sea , ? by [SEP]"
    assert second["word_starts"].tolist() == [0, 1, 0, 1, 1, 0]
    assert second["label_ids"].tolist() == [0, 1, 0, 2, 2, 0]
    assert tokens(third["input_ids"]) == "[CLS] the town [SEP] [PAD] [PAD]"
    assert third["input_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert third["segment_ids"].tolist() == [0] * 6
    assert [r["unique_ids"].tolist() for r in (first, second, third)] == [[0], [1], [2]]


def test_records_of_overlapping_windows(tmp_path, file, tokenizer_files):
    """The second window repeats "? by" as context, and the third one "the"."""
    options = {"tokenizer_files": tokenizer_files, "windows": WindowSettings(6), "labels": LABELS}
    made = feature_stage(file, **options).build(tmp_path / "out")
    assert made.counts == {"sentences": 2, "words": 7, "sequences": 3, "cut_sentences": 1}
    _, second, third = map(made.spec.decode, RecordSet(made.files).read([0, 1, 2]))
    assert tokens(second["input_ids"]) == "[CLS] sea , ? by [SEP]"
    assert second["word_starts"].tolist() == [0, 1, 0, 1, 0, 0]
    assert second["label_ids"].tolist() == [0, 1, 0, 2, 0, 0]
    assert tokens(third["input_ids"]) == "[CLS] ? by the town [SEP]"
    assert third["word_starts"].tolist() == [0, 0, 1, 1, 1, 0]
    assert third["label_ids"].tolist() == [0, 0, 2, 2, 2, 0]


def test_records_without_labels(tmp_path, file, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "windows": APART, "labels": None}
    made = feature_stage(file, **options).build(tmp_path / "out")
    record = made.spec.decode(RecordSet(made.files).read([1])[0])
    assert record["word_starts"].tolist() == [0, 1, 0, 1, 1, 0]
    assert "label_ids" not in record


def naively(sentences, tokenizer, most):
    """Each sequence as (ids, word starts, labels), by adding one word after the other.

    Without overlap.
    """
    found = []
    for sentence in sentences:
        rows = [[]]
        for word, label in zip(sentence.words, sentence.labels):
            pieces = tokenizer.encode(word)[: most - 2] or [tokenizer.unk_id]
            marked = [(pieces[0], 1, LABELS.index(label)), *((piece, 0, 0) for piece in pieces[1:])]
            if len(rows[-1]) + len(marked) > most - 2:
                rows.append([])
            rows[-1] += marked
        for row in rows:
            whole = [(tokenizer.cls_id, 0, 0), *row, (tokenizer.sep_id, 0, 0)]
            whole += [(tokenizer.pad_id, 0, 0)] * (most - len(whole))
            found.append(tuple(map(list, zip(*whole))))
    return found


# Words of one piece, of several, of none (characters that are no text), and of too many.
WORDS = st.sampled_from(["anna", "books", "sea,by", "\u200b", "Zürich", "a" * 300, "?,.?,.?,."])
SENTENCES = st.lists(
    st.lists(st.tuples(WORDS, st.sampled_from(LABELS)), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(SENTENCES, st.integers(3, 12))
def test_sequences_are_those_of_a_plain_program(tokenizer_files, sentences, most):
    sentences = [Sentence(1, *map(list, zip(*pairs))) for pairs in sentences]
    numbers = {label: number for number, label in enumerate(LABELS)}
    windows = WindowSettings(most, doc_stride=most)
    encoded = SentenceEncoder(windows, numbers).encode(sentences, tokenizer_files.load())
    names = ("input_ids", "word_starts", "label_ids")
    found = list(zip(*(encoded.features[name].tolist() for name in names)))
    expected = naively(sentences, tokenizer_files.load(), most)
    assert found == expected
    # No word is lost.
    words = sum(len(sentence.words) for sentence in sentences)
    assert sum(sum(starts) for _, starts, _ in found) == words == encoded.counts["words"]
    assert encoded.counts["sequences"] == len(found)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(SENTENCES, st.integers(3, 12), st.integers(1, 12))
def test_the_marked_words_of_all_sequences_are_the_sentence(
    tokenizer_files, sentences, most, stride
):
    """With their labels, whatever overlaps; the rest of a sequence is text around them."""
    tokenizer, windows = tokenizer_files.load(), WindowSettings(most, stride)
    sentences = [Sentence(1, *map(list, zip(*pairs))) for pairs in sentences]
    numbers = {label: number for number, label in enumerate(LABELS)}
    features = SentenceEncoder(windows, numbers).encode(sentences, tokenizer_files.load()).features
    is_start = features["word_starts"] > 0
    found = list(zip(features["input_ids"][is_start], features["label_ids"][is_start]))
    expected = [
        ((tokenizer.encode(word) or [tokenizer.unk_id])[0], LABELS.index(label))
        for sentence in sentences
        for word, label in zip(sentence.words, sentence.labels)
    ]
    assert found == expected
    for sentence in sentences:
        whole = "".join(
            f" {piece}"
            for word in sentence.words
            for piece in tokenizer.encode(word)[: most - 2] or [tokenizer.unk_id]
        )
        for ids, _ in sequences_of(sentence.words, tokenizer, windows):
            assert len(ids) <= most
            assert "".join(f" {piece}" for piece in ids[1:-1]) in whole


def test_records_are_made_again_for_other_labels(tmp_path, file, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "windows": APART, "labels": LABELS}
    directory = tmp_path / "out"
    made = feature_stage(file, **options).build(directory)
    assert feature_stage(file, **options).find(directory).digest == made.digest
    cased = dataclasses.replace(tokenizer_files, do_lower_case=False)
    others = ({"labels": ("O", "B", "A")}, {"labels": None}, {"windows": WindowSettings(7)})
    for changed in (*others, {"tokenizer_files": cased}):
        assert feature_stage(file, **{**options, **changed}).find(directory) is None


def test_only_records_without_overlap_are_those_of_earlier_versions(
    tmp_path, file, tokenizer_files
):
    """Their manifests do not know strides; windows that begin at other words are made again."""
    directory = tmp_path / "out"
    options = {"tokenizer_files": tokenizer_files, "labels": LABELS}
    made = feature_stage(file, windows=APART, **options).build(directory)
    assert read_manifest(directory).parameters.keys() == {"max_seq_length", "labels"}
    again = feature_stage(file, windows=WindowSettings(6, doc_stride=100), **options)
    assert again.find(directory).digest == made.digest
    assert feature_stage(file, windows=WindowSettings(6), **options).find(directory) is None


@pytest.mark.parametrize(
    ("given", "stride"), [((128,), 63), ((3,), 1), ((128, 40), 40), ((128, 500), 126)]
)
def test_the_stride_that_is_used(given, stride):
    settings = WindowSettings(*given)
    settings.validate()
    assert settings.stride == stride


def test_a_length_without_room_for_a_word():
    with pytest.raises(UserError, match=r"--max_seq_length=2 has no room .* give at least 3\.$"):
        WindowSettings(2).validate()
