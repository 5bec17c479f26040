"""From files, texts and records to sequences: samples, pieces, words, counts."""

import io

import numpy as np
import pytest
import sentencepiece

from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.scoring.sequences import (
    encode_words,
    read_texts,
    sampled,
    sequences_of_records,
    sequences_of_texts,
)
from bert_tf.tasks.scoring.settings import TextSettings
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "-", "."]
PAD, UNK, CLS, SEP, MASK, A, B, C, DASH, DOT = range(len(ENTRIES))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return load_tokenizer(vocab_file=path)


def made_of(texts, tokenizer, length, *, seed=0, **settings):
    return sequences_of_texts(
        texts, tokenizer, TextSettings(**settings), max_seq_length=length, seed=seed
    )


@pytest.mark.parametrize(
    ("text", "ids", "words"),
    [
        (" a  bc.", [A, B, C, DOT], [0, 1, 1, 1]),
        ("a-b ☃ a", [A, DASH, B, UNK, A], [0, 0, 0, 1, 2]),
        ("\x0b", [], []),
    ],
)
def test_words_of_tokens(tokenizer, text, ids, words):
    assert encode_words(text, tokenizer) == (ids, words)


def test_words_of_sentencepiece(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"the cat number {n} sat on mat {n % 7}" for n in range(200)]),
        model_writer=model,
        vocab_size=40,
        minloglevel=2,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
    )
    (tmp_path / "spm.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(spm_model_file=tmp_path / "spm.model", do_lower_case=False)
    text = "the number cat 9 sat"
    ids, words = encode_words(text, tokenizer)
    starts = [piece.startswith("\u2581") for piece in tokenizer.convert_ids_to_tokens(ids)]
    assert words == (np.cumsum(starts) - 1).tolist()
    assert words[-1] == 4
    blank = tokenizer.convert_tokens_to_ids(["\u2581"])[0]
    ids, words = encode_words("cat \u2603", tokenizer)
    assert ids[-2:] == [blank, tokenizer.unk_id]
    assert words[-2:] == [1, 1]


def test_the_unknown_words_of_wikitext(tokenizer):
    found = encode_words("a <unk>-<unk> b", tokenizer, wikitext=True)
    assert found == ([A, UNK, DASH, UNK, B], [0, 1, 1, 1, 2])
    ids, words = encode_words("<unk>", tokenizer)
    assert (len(ids), set(words)) == (3, {0})


def test_long_texts_are_cut_evenly(tokenizer):
    found = made_of(["a b a b a b a", "b", "a a a"], tokenizer, 5)
    assert [(s.text, s.ids.tolist()) for s in found.sequences] == [
        (0, [CLS, A, B, SEP]),
        (0, [CLS, A, B, SEP]),
        (0, [CLS, A, B, A, SEP]),
        (1, [CLS, B, SEP]),
        (2, [CLS, A, A, A, SEP]),
    ]
    assert all(s.is_scored.tolist() == [*[False], *[True] * (len(s.ids) - 2), *[False]]
               for s in found.sequences)  # fmt: skip
    assert found.counts == {
        "texts_read": 3,
        "texts_scored": 3,
        "texts_skipped": {},
        "texts_cut": 1,
        "sequences": 5,
        "tokens": 11,
        "unknown_tokens": 0,
        "words": 11,
    }


def test_what_is_skipped_and_why(tokenizer):
    texts = ["", "☃ ☃", "a ☃ bc"]
    found = made_of(texts, tokenizer, 8)
    assert found.skipped == {"empty": 1, "no known token": 1}
    assert [(t.number, t.tokens, t.words) for t in found.texts] == [(2, 4, 3)]
    assert found.counts["unknown_tokens"] == 1
    without = made_of(texts, tokenizer, 8, score_unknown=False)
    assert [(t.number, t.tokens, t.words) for t in without.texts] == [(2, 3, 2)]
    [sequence] = without.sequences
    assert sequence.is_scored.tolist() == [False, True, False, True, True, False]
    assert without.digest != found.digest


def test_a_sample_does_not_depend_on_the_order(tokenizer):
    texts = [" ".join("ab"[bit == "1"] for bit in f"{number:07b}") for number in range(128)]

    def scored(texts):
        found = made_of(texts, tokenizer, 16, sample=0.25, seed=4)
        assert found.skipped["not in the sample"] + len(found.texts) == 128
        return {tuple(s.ids.tolist()) for s in found.sequences}

    assert 0 < len(scored(texts)) < 64
    assert scored(texts) == scored(texts[::-1])


def test_stored_masks_of_records_are_undone(tokenizer, tmp_path):
    path = tmp_path / "records.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write(
            PRETRAINING_MASKED.encode(
                {
                    "input_ids": np.array([CLS, A, MASK, SEP, B, A, SEP, PAD]),
                    "input_mask": np.array([1, 1, 1, 1, 1, 1, 1, 0]),
                    "segment_ids": np.array([0, 0, 0, 0, 1, 1, 1, 0]),
                    "masked_lm_positions": np.array([2, 5, 0]),
                    "masked_lm_ids": np.array([C, DOT, 0]),
                    "masked_lm_weights": np.array([1, 1, 0], np.float32),
                    "next_sentence_labels": np.array([0]),
                }
            )
        )
    records = RecordSet([path])
    info = inspect_records(records)
    found = sequences_of_records(records, info, tokenizer, TextSettings(), seed=0)
    [sequence] = found.sequences
    assert sequence.ids.tolist() == [CLS, A, C, SEP, B, DOT, SEP]
    assert sequence.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert np.flatnonzero(sequence.is_scored).tolist() == [1, 2, 4, 5]
    assert (found.tokens, found.words) == (4, None)


def read(path, content, **settings):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_texts([path], TextSettings(**settings), flag="input_file")


def test_a_line_or_a_document_is_a_text(tmp_path):
    content = "\ufeffone\ntwo\r\n\n \nthree\u2028four"
    path = tmp_path / "texts.txt"
    assert read(path, content) == ["one", "two", "three\u2028four"]
    assert read(path, content, text_unit="document") == ["one two", "three\u2028four"]


def test_columns_of_tables(tmp_path):
    tsv = 'id\ttext\n1\tsaid "so"\n2\t\n'
    assert read(tmp_path / "a.tsv", tsv, text_column="text") == ['said "so"', ""]
    assert read(tmp_path / "a.tsv", tsv, text_column="2") == ["text", 'said "so"', ""]
    csv = 'id,text\n1,"a, ""b""\nc"\n\n2,d\n'
    assert read(tmp_path / "a.csv", csv, text_column="text") == ['a, "b"\nc', "d"]


def test_markers_of_wikitext(tmp_path):
    content = "60 @,@ 000 ( 0 @.@ 7 ) old @-@ <unk> a@b"
    path = tmp_path / "texts.txt"
    assert read(path, content) == [content]
    assert read(path, content, wikitext=True) == ["60,000 ( 0.7 ) old-<unk> a@b"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "sentence"),
    [
        ("a.txt", b"one\ntwo \xff\n", {}, r"line 2 of \S+ is not UTF-8; convert the file\."),
        ("a.txt", "", {}, "is empty"),
        ("a.txt", " \n\n", {}, "contains no text; give a file with text"),
        (
            "a.tsv",
            "id\ttext\n",
            {"text_column": "body"},
            "--text_column=body: .* but id, text; give",
        ),
        ("a.tsv", "a\tb\nc\n", {"text_column": "2"}, "line 2 of .* has 1 columns, and no column 2"),
        ("a.tsv", "a\tb\n", {"text_column": "0"}, "columns are counted from 1"),
        ("a.csv", 'text\n"a" b\n', {"text_column": "text"}, "line 2 of .* is not CSV"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / name, content, **settings)


def test_a_sample_has_the_requested_size_whatever_the_seed():
    contents = [str(number).encode() for number in range(500)]
    for seed in range(20):
        assert sampled(contents, fraction=0.1, seed=seed).sum() == 50
    assert sampled(contents, fraction=0.0001, seed=0).sum() == 1
    assert sampled(contents, fraction=1.0, seed=0).all()
    assert sampled([], fraction=0.5, seed=0).shape == (0,)


def test_a_sample_depends_on_each_text_and_the_seed_alone():
    contents = [str(number).encode() for number in range(4000)]

    def taken(contents, fraction, seed):
        is_taken = sampled(contents, fraction=fraction, seed=seed)
        return {content for content, taken in zip(contents, is_taken) if taken}

    small, large = (taken(contents, fraction, 1) for fraction in (0.1, 0.3))
    assert small < large
    assert taken(contents[::-1], 0.1, 1) == small
    assert len(small & taken(contents, 0.1, 2)) == pytest.approx(40, abs=30)
