"""Records to other programs' formats and back, read by TensorFlow, pyarrow and json."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED, decode_example
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.conversion import convert_records, record_inputs
from data_prep.conversion.convert_records import Settings
from data_prep.inspection import inspect_data as inspect
from data_prep.stages import create_pretraining_data
from tests.helpers.archives import parquet_of
from tests.helpers.record_maker import RecordMaker

WORDS = [a + b for a in ("ba", "do", "ke", "mi", "zu") for b in ("lu", "ra", "ne", "st")]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "ba", "##n", "##i"]
SENTENCES = [
    " ".join(WORDS[n * k % 20] + "ni" * (k == n % 7) for k in range(3, 9)) for n in range(60)
]
TEXT = "\n".join(s + ("\n" if n % 5 == 4 else "") for n, s in enumerate(SENTENCES)) + "\n"


def convert(source, output, target, **options):
    return convert_records.run(Settings(str(source), str(output), target, num_workers=1, **options))


def records_in(directory):
    files = sorted(directory.glob("*.tfrecord"))
    record_set = RecordSet(files)
    return record_set.read(range(len(record_set)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Records of a text, with stored masks and without."""
    root = tmp_path_factory.mktemp("made")
    (root / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (root / "text.txt").write_text(TEXT)
    for masking in ("static", "dynamic"):
        create_pretraining_data.run(
            create_pretraining_data.Settings(
                input_file=str(root / "text.txt"),
                output_dir=str(root / masking),
                tokenizer_files=TokenizerFiles(vocab_file=root / "vocab.txt").with_casing(None),
                num_output_files=2,
                dupe_factor=1,
                max_seq_length=24,
                max_predictions_per_seq=4,
                masking=masking,
                num_workers=1,
            )
        )
    return root


@pytest.mark.parametrize("target", ["google", "tf2"])
def test_tensorflow_reads_what_google_reads(made, tmp_path, target):
    out = convert(made / "static", tmp_path / "out", target)
    ids, segments = {
        "google": ("input_ids", "segment_ids"),
        "tf2": ("input_word_ids", "input_type_ids"),
    }[target]
    spec = {name: tf.io.FixedLenFeature([24], tf.int64) for name in (ids, "input_mask", segments)}
    for name in ("masked_lm_positions", "masked_lm_ids"):
        spec[name] = tf.io.FixedLenFeature([4], tf.int64)
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([4], tf.float32)
    spec["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
    expected = [PRETRAINING_MASKED.decode(record) for record in records_in(made / "static")]
    with tf.Graph().as_default(), tf.Session() as session:
        files = [str(path) for path in sorted(out.glob("*.tfrecord"))]
        dataset = tf.data.TFRecordDataset(files).batch(10_000)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        found = session.run(tf.io.parse_example(batch, spec))
    for name, values in found.items():
        name = {ids: "input_ids", segments: "segment_ids"}.get(name, name)
        np.testing.assert_array_equal(values, [example[name] for example in expected])
    info = inspect_records(files)
    assert info.vocabulary.entry == read_manifest(made / "static").vocabulary
    assert [entry.count for entry in read_manifest(out).outputs if entry.count] == [
        entry.count for entry in read_manifest(made / "static").outputs if entry.count
    ]
    inspect.run(inspect.Settings(str(out)))


def test_pyarrow_and_json_read_the_same(made, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = [PRETRAINING_MASKED.decode(record) for record in records_in(made / "static")]
    expected = [{name: v.tolist() for name, v in example.items()} for example in expected]
    for example in expected:
        [example["next_sentence_labels"]] = example["next_sentence_labels"]
    convert(made / "static", tmp_path / "p", "parquet")
    convert(made / "static", tmp_path / "j", "jsonl")
    files = sorted((tmp_path / "p").glob("*.parquet"))
    assert [row for path in files for row in parquet.read_table(path).to_pylist()] == expected
    lines = "".join(path.read_text() for path in sorted((tmp_path / "j").glob("*.jsonl")))
    assert [json.loads(line) for line in lines.splitlines()] == expected


@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("target", ["records", "jsonl", "parquet", "tf2"])
def test_there_and_back(made, tmp_path, masking, target):
    if target == "parquet":
        pytest.importorskip("pyarrow")
    if (target, masking) == ("tf2", "dynamic"):
        with pytest.raises(UserError, match=r"such records have masks.*give --masking=static"):
            convert(made / masking, tmp_path / "there", target)
        return
    convert(made / masking, tmp_path / "there", target)
    back = convert(tmp_path / "there", tmp_path / "back", "records")
    assert records_in(back) == records_in(made / masking)
    info = inspect_records(sorted(back.glob("*.tfrecord")))
    assert info.vocabulary.file.read_bytes() == (made / "vocab.txt").read_bytes()
    assert info.manifest.parameters["short_seq_prob"] == 0.1
    assert info.manifest.parameters["masking"] == masking


def test_masks_are_taken_out_and_drawn(made, tmp_path):
    """The text of both data sets is the same; only the masks of one are stored."""
    out = convert(made / "static", tmp_path / "out", "records", masking="dynamic")
    assert records_in(out) == records_in(made / "dynamic")
    drawn = convert(
        made / "dynamic", tmp_path / "drawn", "google", masking="static", max_predictions_per_seq=4
    )
    again = convert(drawn, tmp_path / "again", "records", masking="dynamic")
    assert records_in(again) == records_in(made / "dynamic")
    examples = [PRETRAINING_MASKED.decode(record) for record in records_in(drawn)]
    numbers = [int(example["masked_lm_weights"].sum()) for example in examples]
    lengths = [int(example["input_mask"].sum()) for example in examples]
    assert numbers == [max(1, min(4, round(0.15 * length))) for length in lengths]
    assert read_manifest(drawn).parameters["masked_lm_prob"] == 0.15


def test_spans_are_drawn_and_taken_out(made, tmp_path):
    spans = {"masking": "static", "max_predictions_per_seq": 4, "span_masking": True}
    drawn = convert(made / "dynamic", tmp_path / "drawn", "google", **spans)
    assert read_manifest(drawn).parameters["span_masking"] is True
    again = convert(drawn, tmp_path / "again", "records", masking="dynamic")
    assert records_in(again) == records_in(made / "dynamic")
    assert "span_masking" not in read_manifest(again).parameters


def test_text_comes_back(made, tmp_path):
    """Each segment is a run of the text's words."""
    out = convert(made / "static", tmp_path / "out", "text")
    corpus = "".join(TEXT.split())
    lines = "".join(path.read_text() for path in sorted(out.glob("*.txt"))).split("\n")
    segments = [line for line in lines if line]
    assert len(segments) == 2 * len(records_in(made / "static"))
    assert all("".join(line.split()).replace("##", "") in corpus for line in segments)


def test_workers_and_batches_change_nothing(made, tmp_path, monkeypatch):
    options = {"masking": "static", "max_predictions_per_seq": 3}
    one = convert(made / "dynamic", tmp_path / "one", "google", **options)
    monkeypatch.setattr(record_inputs, "BATCH_RECORDS", 3)
    other = convert_records.run(
        Settings(str(made / "dynamic"), str(tmp_path / "two"), "google", num_workers=2, **options)
    )
    assert records_in(one) == records_in(other)
    assert read_manifest(one) == read_manifest(other)


def test_google_s_files_need_no_manifest(tmp_path):
    maker = RecordMaker()
    (tmp_path / "in").mkdir()
    maker.write_like_google(tmp_path / "in/a.tfrecord", 7)
    maker.write_like_google(
        tmp_path / "in/b.tfrecord", 5, first=7, renamed={"input_ids": "input_word_ids"}
    )
    out = convert(tmp_path / "in", tmp_path / "out", "google")
    assert len(records_in(out)) == 12
    assert "input_word_ids" not in decode_example(records_in(out)[8])
    assert inspect_records(sorted(out.glob("*.tfrecord"))).num_records == 12
    with pytest.raises(UserError, match="the records' vocabulary is needed"):
        convert(tmp_path / "in", tmp_path / "text", "text")


@given(
    count=st.integers(1, 20),
    target=st.sampled_from(["jsonl", "parquet", "tf2"]),
    batch=st.integers(1, 7),
)
@settings(max_examples=15, deadline=None)
def test_any_records_come_back(tmp_path_factory, count, target, batch):
    if target == "parquet":
        pytest.importorskip("pyarrow")
    root = tmp_path_factory.mktemp("case")
    examples = RecordMaker().examples(count)
    examples["segment_ids"] %= 2
    with TFRecordWriter(root / "a.tfrecord") as writer:
        for record in PRETRAINING_MASKED.encode_batch(examples):
            writer.write(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_inputs, "BATCH_RECORDS", batch)
        convert(root / "a.tfrecord", root / "there", target)
        back = convert(root / "there", root / "back", "google")
    assert records_in(back) == PRETRAINING_MASKED.encode_batch(examples)


def saved(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("masked", [True, False])
def test_lddl(made, tmp_path, masked):
    """Shards as lddl/dask/bert/pretrain.py writes them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "A": ["balu [MASK] dora", "mira"],
        "B": ["kest ba ##n", "zulu"],
        "is_random_next": [True, False],
        "num_tokens": pyarrow.array([9, 5], pyarrow.uint16()),
    }
    if masked:
        positions = [np.array([2, 6], np.uint16), np.array([1], np.uint16)]
        columns["masked_lm_positions"] = [saved(array) for array in positions]
        columns["masked_lm_labels"] = ["bara dost", "mira"]
    parquet.write_table(pyarrow.table(columns), tmp_path / "part.0.parquet")
    options = {"tokenizer_files": TokenizerFiles(vocab_file=made / "vocab.txt").with_casing(None)}
    options |= {"max_seq_length": 12, "max_predictions_per_seq": 3}
    out = convert(tmp_path / "part.0.parquet", tmp_path / "out", "records", **options)
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    first, second = (decode_example(record) for record in records_in(out))
    tokens = [
        "[CLS]",
        "balu",
        "[MASK]",
        "dora",
        "[SEP]",
        "kest",
        "ba",
        "##n",
        "[SEP]",
        "[PAD]",
        "[PAD]",
        "[PAD]",
    ]
    assert first["input_ids"].tolist() == [ids.get(token, 1) for token in tokens]
    assert first["input_mask"].tolist() == [1] * 9 + [0] * 3
    assert first["segment_ids"].tolist() == [0] * 5 + [1] * 4 + [0] * 3
    assert [first["next_sentence_labels"], second["next_sentence_labels"]] == [[1], [0]]
    if masked:
        assert first["masked_lm_positions"].tolist() == [2, 6, 0]
        assert first["masked_lm_ids"].tolist() == [ids["bara"], ids["dost"], 0]
        assert second["masked_lm_weights"].tolist() == [1, 0, 0]
    else:
        assert first["word_starts"].tolist() == [1] * 7 + [0, 1] + [0] * 3
    with pytest.raises(UserError, match=r"--max_seq_length=8: record 0 of .* needs 9"):
        options["max_seq_length"] = 8
        convert(tmp_path / "part.0.parquet", tmp_path / "x", "records", **options)
    with pytest.raises(UserError, match="the records' vocabulary is needed"):
        convert(tmp_path / "part.0.parquet", tmp_path / "x", "records")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"A": None}, "record 1 of .* lacks text in a column"),
        ({"B": b"\xff"}, "record 0 of .* or one after it has text that is not UTF-8"),
        ({"is_random_next": None}, "record 1 of .* is_random_next that is neither true nor false"),
        ({"masked_lm_positions": saved(np.ones(1))}, "record 1 of .* damaged masked_lm_positions"),
        (
            {"masked_lm_positions": saved(np.ones(1, np.uint16)).replace(b"(1,)", b"(1, ")},
            "record 1 of .* damaged masked_lm_positions",
        ),
        ({"masked_lm_positions": None}, "record 1 of .* damaged masked_lm_positions"),
    ],
)
def test_a_damaged_row_of_lddl_is_named(made, tmp_path, changes, sentence):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    good = {"A": "balu", "B": "kest", "is_random_next": True}
    good |= {"masked_lm_positions": saved(np.ones(1, np.uint16)), "masked_lm_labels": "bara"}
    rows = [good, {**good, **changes}]
    columns = {name: [row[name] for row in rows] for name in good}
    for name in ("A", "B", "masked_lm_labels"):  # as text, which no writer checks
        values = [value.encode() if isinstance(value, str) else value for value in columns[name]]
        columns[name] = pyarrow.array(values, pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table(columns), tmp_path / "part.0.parquet")
    files = TokenizerFiles(vocab_file=made / "vocab.txt").with_casing(None)
    options = {"tokenizer_files": files, "max_seq_length": 12, "max_predictions_per_seq": 3}
    with pytest.raises(UserError, match=sentence):
        convert(tmp_path / "part.0.parquet", tmp_path / "out", "records", **options)


GOOD = {
    "input_ids": [2] * 4,
    "input_mask": [1] * 4,
    "segment_ids": [0] * 4,
    "masked_lm_positions": [1, 2],
    "masked_lm_ids": [5, 6],
    "masked_lm_weights": [1, 1.0],
    "next_sentence_labels": 0,
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"input_ids": [1] * 5}, "line 3 of .* has 5 values of input_ids, but the first record 4"),
        ({"input_ids": [1, 2, 3, "4"]}, "line 3 of .* has a input_ids that is not whole"),
        ({"input_ids": [1, 2, 3, 4.5]}, "line 3 of .* has a input_ids that is not whole"),
        ({"input_ids": [1, 2, [3], 4]}, "line 3 of .* has a input_ids that is not whole"),
        ({"masked_lm_positions": [1, 4]}, "line 3 of .* masked_lm_positions contains 4"),
        ({"masked_lm_weights": [1, float("nan")]}, "line 3 of .* masked_lm_weights contains nan"),
        ({"segment_ids": [0, 0, 2, 0]}, "line 3 of .* segment_ids contains 2"),
        ({"input_ids": [1, 2, 3, -1]}, "line 3 of .* input_ids contains -1"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, changes, sentence):
    rows = [json.dumps(GOOD), "", json.dumps({**GOOD, **changes})]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match=sentence):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "google")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"input_ids": [1] * 5},
            "record 1 of .* does not have 4 values of input_ids, as the first",
        ),
        ({"input_ids": None}, "record 1 of .* does not have 4 values of input_ids, as the first"),
        ({"input_ids": [1, 2, 3, None]}, "record 0 of .* or one after it has no input_ids"),
        ({"next_sentence_labels": 2}, "record 1 of .* next_sentence_labels contains 2"),
    ],
)
def test_a_wrong_row_of_parquet_is_named(tmp_path, changes, sentence):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist([GOOD, {**GOOD, **changes}])
    parquet_of(tmp_path / "a.parquet", table)
    with pytest.raises(UserError, match=sentence):
        convert(tmp_path / "a.parquet", tmp_path / "out", "google")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("google", {"masking": "dynamic"}, "which --masking=dynamic takes out"),
        ("x", {}, "--format=x is not one of"),
        ("google", {"masked_lm_prob": 0.0}, "--masked_lm_prob=0 must be in"),
    ],
)
def test_what_cannot_be(tmp_path, target, options, sentence):
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD))
    with pytest.raises(UserError, match=sentence):
        convert(tmp_path / "a.jsonl", tmp_path / "out", target, **options)
    assert not (tmp_path / "out").exists()


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "no records"}\n')
    with pytest.raises(UserError, match="does not hold pre-training records: it has no input_ids"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "google")
    RecordMaker().write(tmp_path / "b.tfrecord", 2)
    with pytest.raises(UserError, match=r"holds JSON lines, but .* TFRecords; convert one kind"):
        convert(tmp_path, tmp_path / "out", "google")
