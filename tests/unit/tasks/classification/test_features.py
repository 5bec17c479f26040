"""Records of sentences and pairs: contents, order, and reuse."""

import dataclasses

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.model_directory.classes import SINGLE_LABEL, Classes
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.classification.features import feature_stage, sequences_of
from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.classification.own_files import TableSettings, own_task, read_texts
from bert_tf.tasks.classification.texts import LongTexts, Row
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.small_span_model import VOCABULARY

CLASSES = Classes(SINGLE_LABEL, ("a", "b"))
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tWho wrote it?\tAnna.\n" + (
    "0\t3\t4\tThe book by the sea.\tA town\n"
)


@pytest.fixture(name="tokenizer_files")
def files_of_the_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    return TokenizerFiles(tmp_path / "vocab.txt", do_lower_case=True)


@pytest.fixture(name="mrpc")
def rows_of_mrpc(tmp_path):
    (tmp_path / "mrpc.tsv").write_text(MRPC)
    return read_glue(GLUE_TASKS["mrpc"], tmp_path / "mrpc.tsv", flag="f", needs_labels=True)


def tokens(ids):
    return " ".join(VOCABULARY[i] for i in ids)


@pytest.mark.parametrize(
    ("row", "most", "expected", "segments", "is_cut"),
    [
        (("who wrote it", None), 9, "[CLS] who wrote it [SEP]", "0 0 0 0 0", False),
        (("who wrote it", None), 5, "[CLS] who wrote it [SEP]", "0 0 0 0 0", False),
        (("who wrote it", None), 4, "[CLS] who wrote [SEP]", "0 0 0 0", True),
        (("who", "anna"), 9, "[CLS] who [SEP] anna [SEP]", "0 0 0 1 1", False),
        # The longer sentence is cut, or the second of equally long ones.
        (("who wrote it", "by anna"), 6, "[CLS] who wrote [SEP] by [SEP]", "0 0 0 0 1 1", True),
    ],
)
def test_sequences(tokenizer_files, row, most, expected, segments, is_cut):
    [(ids, found)], cut = sequences_of(Row(*row, 1.0), tokenizer_files.load(), most, LongTexts())
    assert (tokens(ids), found, cut) == (expected, [*map(int, segments.split())], is_cut)


LONG = "who wrote the book by the sea"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (LongTexts("head"), ["who wrote the book"]),
        (LongTexts("tail"), ["book by the sea"]),
        (LongTexts("head_tail"), ["who by the sea"]),
        (LongTexts("windows", 2), ["who wrote the book", "the book by the", "by the sea"]),
        (LongTexts("windows", 9), ["who wrote the book", "by the sea"]),
    ],
)
def test_long_texts(tokenizer_files, how, expected):
    found, is_cut = sequences_of(Row(LONG, None, 1.0), tokenizer_files.load(), 6, how)
    assert [tokens(ids) for ids, _ in found] == [f"[CLS] {text} [SEP]" for text in expected]
    assert is_cut


@pytest.mark.parametrize("how", ["head", "tail", "head_tail", "windows"])
def test_texts_that_fit_are_whole(tokenizer_files, how):
    row = Row("who wrote the book", None, 1.0)
    [(ids, _)], is_cut = sequences_of(row, tokenizer_files.load(), 6, LongTexts(how))
    assert (tokens(ids), is_cut) == ("[CLS] who wrote the book [SEP]", False)


def test_every_token_is_in_a_window():
    text = list(range(100))
    for room, stride in ((7, 3), (7, 7), (7, 50), (100, 1), (99, 98)):
        windows = [window for [window] in LongTexts("windows", stride).cut([text], room)]
        assert {token for window in windows for token in window} == set(text)
        assert max(map(len, windows)) <= room
        assert windows[-1][-1] == 99


def test_the_records_of_windows_are_counted(tmp_path, tokenizer_files):
    (tmp_path / "t.csv").write_text(f"text,label\nwho,a\n{LONG},b\n")
    texts = read_texts(tmp_path / "t.csv", TableSettings(), flag="f", needs_labels=True)
    file = texts.with_numbers(own_task(texts.columns, TableSettings(), CLASSES))
    options = {"tokenizer_files": tokenizer_files, "max_seq_length": 6, "training": True}
    made = feature_stage(file, long_texts=LongTexts("windows", 2), **options).build(
        tmp_path / "out"
    )
    assert made.records_per_item.tolist() == [1, 3]
    assert made.counts == {"examples": 2, "cut_examples": 1, "windows": 4}
    labels = [made.spec.decode(r)["labels"].tolist() for r in RecordSet(made.files).read(range(4))]
    assert labels == [[0.0], [1.0], [1.0], [1.0]]


@pytest.mark.parametrize("training", [True, False])
def test_records(tmp_path, mrpc, tokenizer_files, training):
    options = {"max_seq_length": 9, "training": training}
    made = feature_stage(mrpc, tokenizer_files=tokenizer_files, **options).build(tmp_path / "out")
    assert (len(made), made.max_seq_length) == (2, 9)
    assert made.lengths.tolist() == [9, 9]
    assert made.counts == {"examples": 2, "cut_examples": 1}
    first, second = map(made.spec.decode, RecordSet(made.files).read([0, 1]))
    assert tokens(first["input_ids"]) == "[CLS] who wrote it ? [SEP] anna . [SEP]"
    assert first["segment_ids"].tolist() == [0] * 6 + [1] * 3
    assert tokens(second["input_ids"]) == "[CLS] the book by the [SEP] a town [SEP]"
    assert [r["unique_ids"].tolist() for r in (first, second)] == [[0], [1]]
    if training:
        assert [r["labels"].tolist() for r in (first, second)] == [[1.0], [0.0]]
    else:
        assert "labels" not in first


def test_records_do_not_depend_on_workers(tmp_path, mrpc, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "max_seq_length": 9, "training": True}
    stages = [feature_stage(mrpc, num_workers=n, **options) for n in (1, 2)]
    small = {"items_per_batch": 1, "total_per_worker": 1}
    made = [
        dataclasses.replace(stage, **small).build(tmp_path / str(n))
        for n, stage in enumerate(stages)
    ]
    assert made[0].digest == made[1].digest
    records = map(made[1].spec.decode, RecordSet(made[1].files).read([0, 1]))
    assert [record["unique_ids"].tolist() for record in records] == [[0], [1]]


def test_records_are_written_once(tmp_path, mrpc, tokenizer_files, capsys):
    options = {"tokenizer_files": tokenizer_files, "max_seq_length": 9, "training": True}
    records, directory = feature_stage(mrpc, **options), tmp_path / "out"
    assert records.find(directory) is None
    made = records.build(directory)
    assert "skipped" not in capsys.readouterr().err
    again = feature_stage(mrpc, **options).build(directory)
    assert "is up to date, skipped" in capsys.readouterr().err
    found = records.find(directory)
    assert made.digest == again.digest == found.digest == records.open(directory).digest
    cased = dataclasses.replace(tokenizer_files, do_lower_case=False)
    for changed in ({"max_seq_length": 10}, {"training": False}, {"tokenizer_files": cased}):
        assert feature_stage(mrpc, **{**options, **changed}).find(directory) is None
    mrpc.path.write_text(MRPC.replace("Anna", "Who"))
    assert records.find(directory) is None


def test_lengths_without_room_for_the_sentences(tmp_path, mrpc, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "training": True}
    assert feature_stage(mrpc, max_seq_length=5, **options).build(tmp_path).lengths.tolist() == [
        5,
        5,
    ]
    with pytest.raises(UserError, match=r"--max_seq_length=4 .* MRPC's sentences; give at least 5"):
        feature_stage(mrpc, max_seq_length=4, **options).build(tmp_path)


def test_a_directory_of_another_stage(tmp_path, mrpc, tokenizer_files):
    options = {"tokenizer_files": tokenizer_files, "max_seq_length": 9, "training": True}
    records = feature_stage(mrpc, **options)
    with pytest.raises(UserError, match=r"manifest\.json does not exist"):
        records.open(tmp_path)
    dataclasses.replace(records, name="other").build(tmp_path)
    with pytest.raises(UserError, match="holds the output of other, not of glue_features"):
        records.open(tmp_path)


UNKNOWN = "who wrote 영화가"
KNOWN = "who wrote the book by the sea"


def classified(path, texts, tokenizer_files, directory, **options):
    path.write_text(
        "text,label\n" + "".join(f"{text},{'ab'[n % 2]}\n" for n, text in enumerate(texts))
    )
    found = read_texts(path, TableSettings(), flag="f", needs_labels=True)
    file = found.with_numbers(own_task(found.columns, TableSettings(), CLASSES))
    common = {"tokenizer_files": tokenizer_files, "max_seq_length": 8, "training": True}
    return dataclasses.replace(feature_stage(file, **common), **options).build(directory)


def test_unknown_words_are_said_whenever_the_records_are_used(tmp_path, tokenizer_files, capsys):
    texts = [KNOWN] * 20 + [UNKNOWN] * 5 + ["石"]
    expected = (
        "3.8% of the 156 tokens are unknown to the vocabulary ([UNK]), most often '영화가' (5)"
    )
    for directory, workers in ((tmp_path / "1", 1), (tmp_path / "2", 2), (tmp_path / "2", 1)):
        options = {"num_workers": workers, "total_per_worker": 1, "items_per_batch": 3}
        classified(tmp_path / "a.csv", texts, tokenizer_files, directory, **options)
        assert f"warning: {tmp_path / 'a.csv'}: {expected}, '石' (1)" in capsys.readouterr().out
    one, two = (read_manifest(tmp_path / name) for name in "12")
    assert one.remark.startswith(expected)
    assert one == two
    assert one.digest == dataclasses.replace(one, remark="").digest


def test_known_words_leave_the_manifest_as_it_was(tmp_path, tokenizer_files, capsys):
    classified(tmp_path / "a.csv", [KNOWN] * 20, tokenizer_files, tmp_path / "1")
    assert "warning" not in capsys.readouterr().out
    assert "remark" not in (tmp_path / "1/manifest.json").read_text()


def test_texts_that_are_mostly_unknown_are_refused(tmp_path, tokenizer_files):
    with pytest.raises(UserError, match=r"a\.csv: 66\.7% of the 60 tokens .*'영화가' \(20\)"):
        classified(tmp_path / "a.csv", ["book 영화가 石"] * 20, tokenizer_files, tmp_path / "1")
    assert not (tmp_path / "1/manifest.json").exists()
