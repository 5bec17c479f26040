"""Windows against a slow implementation of google-research/bert's rules, and their records."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.records.layouts import SQUAD_PREDICTION, SQUAD_TRAINING
from bert_tf.records.sequences import LENGTHS_NAME, RECORDS_NAME
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.windows import (
    Window,
    WindowSettings,
    cut_windows,
    feature_stage,
    has_max_context,
    note_on_unusable,
    question_windows,
    tokens_of,
)
from bert_tf.text.tokenizer import Encoding
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer


def _naive_windows(question, context, max_seq_length, doc_stride):
    """Sets of tokens: moved by the stride until the last token is included."""
    room = max_seq_length - question - 3
    found, first = [], 0
    while context and (not found or context - 1 not in found[-1]):
        found.append([token for token in range(context) if first <= token < first + room])
        first += min(doc_stride, room)
    return found


@st.composite
def _cases(draw):
    max_query_length = draw(st.integers(1, 8))
    room = draw(st.integers(1, 12))
    stride = draw(st.integers(1, 15))
    lengths = WindowSettings(max_query_length + 3 + room, stride, max_query_length)
    return draw(st.integers(0, 12)), draw(st.integers(0, 60)), lengths


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_windows_are_googles(case):
    question, context, lengths = case
    lengths.validate()
    cut = min(question, lengths.max_query_length)
    expected = _naive_windows(cut, context, lengths.max_seq_length, lengths.doc_stride)
    windows = cut_windows(question, context, lengths)
    assert [list(range(first, first + count)) for first, count in windows] == expected
    whole = question_windows(list(range(question)), context, lengths)
    assert [(w.first_token, w.num_tokens) for w in whole] == windows
    for window in whole:
        assert window.question_ids == list(range(cut))
        assert window.length <= lengths.max_seq_length
        sequence = ["[CLS]", *window.question_ids, "[SEP]"]
        assert window.context_offset == len(sequence)
        assert window.length == len(sequence) + window.num_tokens + 1


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_a_token_has_most_context_in_exactly_one_window(case):
    question, context, lengths = case
    windows = cut_windows(question, context, lengths)
    for token in range(context):
        scores = {}
        for index, (first, count) in enumerate(windows):
            if first <= token < first + count:
                smaller = min(token - first, first + count - 1 - token)
                scores[index] = smaller + Fraction(count, 100)
        best = next(index for index in scores if scores[index] == max(scores.values()))
        assert [has_max_context(windows, i, token) for i in scores] == [i == best for i in scores]


def test_published_example():
    """From a comment in the published code: "bought" has most context in the third window."""
    lengths = WindowSettings(max_seq_length=9, doc_stride=3, max_query_length=1)
    windows = cut_windows(1, 11, lengths)
    assert windows == [(0, 5), (3, 5), (6, 5)]
    decides = [has_max_context(windows, index, 7) for index in range(3)]
    assert decides == [False, False, True]


def test_position_in_the_sequence():
    window = Window([7, 8], first_token=10, num_tokens=3)
    assert [window.position(token) for token in (9, 10, 12, 13)] == [None, 4, 6, None]


def test_one_window_if_everything_fits():
    lengths = WindowSettings()
    assert cut_windows(10, 371, lengths) == [(0, 371)]
    assert cut_windows(10, 372, lengths) == [(0, 371), (128, 244)]
    assert cut_windows(100, 400, lengths) == cut_windows(64, 400, lengths)
    assert cut_windows(10, 0, lengths) == []


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({"doc_stride": 0}, "--doc_stride=0 must be at least 1"),
        ({"max_query_length": 0}, "--max_query_length=0 must be at least 1"),
        ({"max_seq_length": 67}, "--max_seq_length=67 leaves no room .* give at least 68"),
        ({"max_query_length": 400}, "--max_query_length=400 .* give at least 404"),
    ],
)
def test_invalid_lengths(lengths, expected):
    with pytest.raises(UserError, match=expected):
        WindowSettings(**lengths).validate()
    WindowSettings(max_seq_length=68).validate()


# Records.

WORDS = """[PAD] [UNK] [CLS] [SEP] [MASK]
the red barn stands on hill above elm lake it rains where is who ? . a ##s ##n"""
ENTRIES = WORDS.split()
LENGTHS = WindowSettings(max_seq_length=14, doc_stride=4, max_query_length=4)

BARN = "The red barn stands on the hill above Elm Lake."
RAIN = "It  rains. Barns."


def _question(question_id, question, *answers, **others):
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": question_id, "question": question, "answers": listed, **others}


DATA = [
    {
        "title": "Barn",
        "paragraphs": [
            {
                "context": BARN,
                "qas": [
                    _question("lake", "Where is the lake?", ("Elm Lake", 38), ("Lake", 42)),
                    _question("odd", "Who?", ("hill", 3)),
                    _question("none", "Who is it?", is_impossible=True),
                ],
            },
            {"context": "", "qas": [_question("empty", "Where?", is_impossible=True)]},
        ],
    },
    {
        "title": "Rain",
        "paragraphs": [{"context": RAIN, "qas": [_question("s", "Who?", ("arns", 12))]}],
    },
]


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(ENTRIES) + "\n")
    return path


def _squad(tmp_path, data=DATA):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": data}))
    return read_squad(path, flag="f", version_2_with_negative=True, needs_answers=True)


def _stage(tmp_path, vocab_file, *, training=True, squad=None, **options):
    return feature_stage(
        squad or _squad(tmp_path),
        training=training,
        **{
            "tokenizer_files": TokenizerFiles(vocab_file),
            "windows": LENGTHS,
            "num_workers": 1,
            **options,
        },
    )


def _build(tmp_path, vocab_file, *, training, squad=None, name="records", **options):
    stage = _stage(tmp_path, vocab_file, training=training, squad=squad, **options)
    return stage.build(tmp_path / name)


def _records(features):
    record_set = RecordSet(features.files)
    return [features.spec.decode(record) for record in record_set.read(range(len(record_set)))]


def _tokens(record):
    length = int(record["input_mask"].sum())
    assert record["input_mask"].tolist() == [1] * length + [0] * (14 - length)
    assert record["input_ids"][length:].tolist() == [0] * (14 - length)
    return " ".join(ENTRIES[index] for index in record["input_ids"][:length])


def test_prediction_records(tmp_path, vocab_file):
    """Written out by hand: there is room for 7 tokens with a question of 4, 9 with one of 2."""
    features = _build(tmp_path, vocab_file, training=False)
    records = _records(features)
    assert [_tokens(record) for record in records] == [
        "[CLS] where is the lake [SEP] the red barn stands on the hill [SEP]",
        "[CLS] where is the lake [SEP] on the hill above elm lake . [SEP]",
        "[CLS] who ? [SEP] the red barn stands on the hill above elm [SEP]",
        "[CLS] who ? [SEP] on the hill above elm lake . [SEP]",
        "[CLS] who is it ? [SEP] the red barn stands on the hill [SEP]",
        "[CLS] who is it ? [SEP] on the hill above elm lake . [SEP]",
        "[CLS] who ? [SEP] it rains . barn ##s . [SEP]",
    ]
    assert features.spec is SQUAD_PREDICTION
    assert [record["unique_ids"].tolist() for record in records] == [
        [1_000_000_000 + number] for number in range(7)
    ]
    assert features.lengths.tolist() == [14, 14, 14, 12, 14, 14, 11]
    assert features.lengths.dtype == np.int32
    first_sep = [record["input_ids"].tolist().index(3) for record in records]
    for record, sep, length in zip(records, first_sep, features.lengths):
        expected = [0] * (sep + 1) + [1] * (length - sep - 1) + [0] * (14 - length)
        assert record["segment_ids"].tolist() == expected
    assert dict(features.counts) == {
        "questions": 5,
        "windows": 7,
        "cut_questions": 1,
        "impossible_questions": 2,
        "unusable_answers": 0,
        "moved_answers": 0,
    }
    assert features.record_lengths == {"max_seq_length": 14, "num_targets": 1}


def test_training_records_have_positions_and_no_unusable_answers(tmp_path, vocab_file):
    features = _build(tmp_path, vocab_file, training=True)
    records = _records(features)
    assert features.spec is SQUAD_TRAINING
    assert [_tokens(record).split()[:3] for record in records] == [
        ["[CLS]", "where", "is"],
        ["[CLS]", "where", "is"],
        ["[CLS]", "who", "is"],
        ["[CLS]", "who", "is"],
        ["[CLS]", "who", "?"],
    ]
    names = ("start_positions", "end_positions", "is_impossible")
    found = [tuple(int(record[name][0]) for name in names) for record in records]
    # "Elm Lake" is only in the second window; "arns" begins inside "barn".
    assert found == [(0, 0, 0), (10, 11, 0), (0, 0, 1), (0, 0, 1), (7, 8, 0)]
    answers = [
        _tokens(record).split()[start : end + 1] for record, (start, end, _) in zip(records, found)
    ]
    assert answers[1] == ["elm", "lake"]
    assert answers[4] == ["barn", "##s"]
    assert dict(features.counts) == {
        "questions": 4,
        "windows": 5,
        "cut_questions": 1,
        "impossible_questions": 2,
        "unusable_answers": 1,
        "moved_answers": 0,
    }


def test_questions_that_are_left_out_are_named(tmp_path):
    said = note_on_unusable(_squad(tmp_path))
    assert "1 questions of" in said
    assert said.endswith("answer is not within 3 characters of its answer_start: odd")


def test_an_answer_near_its_offset_is_used_and_counted(tmp_path, vocab_file):
    def positions(start, name):
        qas = [_question(7, "Who?", ("rains", start))]
        squad = _squad(tmp_path, [{"paragraphs": [{"context": "It  rains. It.", "qas": qas}]}])
        features = _build(tmp_path, vocab_file, training=True, squad=squad, name=name)
        [record] = _records(features)
        names = ("start_positions", "end_positions")
        return features.counts["moved_answers"], [int(record[name][0]) for name in names]

    assert positions(4, "right") == (0, [5, 5])
    assert positions(1, "before") == (1, [5, 5])
    assert positions(7, "behind") == (1, [5, 5])


def test_an_answer_of_only_dropped_characters_is_left_out(tmp_path, vocab_file):
    context = "It \u200b rains."
    qas = [_question("a", "Who?", ("\u200b", 3)), _question("b", "Who?", ("rains", 5))]
    squad = _squad(tmp_path, [{"paragraphs": [{"context": context, "qas": qas}]}])
    features = _build(tmp_path, vocab_file, training=True, squad=squad)
    assert (features.counts["unusable_answers"], features.counts["questions"]) == (1, 1)
    assert [int(record["start_positions"][0]) for record in _records(features)] == [5]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, (0, 0)),
        (2, 3, (0, 0)),
        (3, 6, (1, 1)),  # begins at the blank
        (0, 4, (0, 0)),  # ends at the blank
        (2, 5, (0, 1)),
        (3, 4, None),
        (8, 9, (3, 3)),
        (7, 8, (2, 2)),
        (9, 12, None),
    ],
)
def test_tokens_of_characters(start, end, expected):
    encoding = Encoding([5, 6, 7, 8], [0, 4, 6, 8], [3, 6, 8, 9])  # "the red" and so on
    assert tokens_of(encoding, start, end) == expected


def test_a_character_with_several_tokens_gives_all_of_them():
    encoding = Encoding([1, 2, 3, 4], [0, 1, 1, 2], [1, 2, 2, 3])
    assert tokens_of(encoding, 1, 2) == (1, 2)


def test_output_does_not_depend_on_the_number_of_workers(tmp_path, vocab_file):
    paragraphs = [
        {"context": f"{BARN} " * (number % 4), "qas": [_question(f"q{number}", "Where is it?")]}
        for number in range(70)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    squad = read_squad(path, flag="f", version_2_with_negative=False, needs_answers=False)
    one = _build(tmp_path, vocab_file, squad=squad, training=False, name="one")
    in_two = {"num_workers": 2, "questions_per_worker": 1}
    two = _build(tmp_path, vocab_file, squad=squad, training=False, name="two", **in_two)
    assert one.digest == two.digest
    tokenizer = load_tokenizer(vocab_file=vocab_file)
    expected = []
    for example in squad.examples:
        question, context = map(tokenizer.encode, (example.question, example.context))
        for window in question_windows(question, len(context), LENGTHS):
            expected.append(window.length)
    assert two.lengths.tolist() == expected
    ids = [int(record["unique_ids"][0]) for record in _records(two)]
    assert ids == list(range(1_000_000_000, 1_000_000_000 + len(expected)))


@pytest.mark.parametrize("change", ["lengths", "file", "vocabulary", "casing", "training"])
def test_any_change_rebuilds_the_records(tmp_path, vocab_file, change):
    first = _build(tmp_path, vocab_file, training=True)
    options = {"training": change != "training"}
    if change == "lengths":
        options["windows"] = WindowSettings(14, 3, 4)
    elif change == "file":
        options["squad"] = _squad(tmp_path, DATA[:1])
    elif change == "vocabulary":
        vocab_file.write_text(vocab_file.read_text() + "more\n")
    elif change == "casing":
        options["tokenizer_files"] = TokenizerFiles(vocab_file, do_lower_case=False)
    assert _build(tmp_path, vocab_file, **options).digest != first.digest


def test_errors(tmp_path, vocab_file):
    with pytest.raises(UserError, match="--max_seq_length=10 leaves no room"):
        _build(tmp_path, vocab_file, training=False, windows=WindowSettings(10, 4, 7))
    with pytest.raises(UserError, match="--num_workers=-1"):
        _build(tmp_path, vocab_file, training=False, num_workers=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output_dir: cannot write"):
        _build(tmp_path, vocab_file, training=False, name="file")
    empty = [
        {"paragraphs": [{"context": " ", "qas": [_question("a", "Who?", is_impossible=True)]}]}
    ]
    with pytest.raises(UserError, match="has no text to look for answers in"):
        _build(tmp_path, vocab_file, training=False, squad=_squad(tmp_path, empty))
    assert not (tmp_path / "records/manifest.json").exists()
    with pytest.raises(UserError, match=r"manifest\.json does not exist"):
        _stage(tmp_path, vocab_file).open(tmp_path / "records")


def test_a_flipped_bit_of_the_lengths_is_found(tmp_path, vocab_file):
    directory = _build(tmp_path, vocab_file, training=True).files[0].parent
    path = directory / LENGTHS_NAME
    intact = path.read_bytes()
    for byte in range(len(intact)):
        path.write_bytes(intact[:byte] + bytes([intact[byte] ^ 2]) + intact[byte + 1 :])
        with pytest.raises(UserError, match=rf"lengths\.npy is not the .*; delete {directory}, so"):
            _stage(tmp_path, vocab_file).open(directory)


def test_lengths_that_are_missing_are_named(tmp_path, vocab_file):
    directory = _build(tmp_path, vocab_file, training=True).files[0].parent
    (directory / LENGTHS_NAME).unlink()
    with pytest.raises(UserError, match=rf"lengths\.npy is missing; delete {directory}, so"):
        _stage(tmp_path, vocab_file).open(directory)


def test_records_of_other_lengths_are_refused(tmp_path, vocab_file):
    directory = _build(tmp_path, vocab_file, training=True).files[0].parent
    with TFRecordWriter(directory / RECORDS_NAME) as writer:
        writer.write(b"one")
    with pytest.raises(UserError, match="is not the file of the 1 records stored with it"):
        _stage(tmp_path, vocab_file).open(directory)


def test_tensorflow_reads_the_records(tmp_path, vocab_file):
    """The parser also reads an Example that was written in two parts."""
    tf = pytest.importorskip("tensorflow").compat.v1
    features = _build(tmp_path, vocab_file, training=True)
    spec = features.spec.parse_spec(features.record_lengths)
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf.data.TFRecordDataset(list(map(str, features.files)))
        serialized = tf.data.make_one_shot_iterator(dataset.batch(99)).get_next()
        batch, single = (
            tf.io.parse_example(serialized, spec),
            tf.io.parse_single_example(serialized[1], spec),
        )
        found, second = session.run((batch, single))
    records = _records(features)
    for name in found:
        np.testing.assert_array_equal(found[name], [record[name] for record in records])
        np.testing.assert_array_equal(second[name], records[1][name])


def test_the_first_questions_have_separate_records(tmp_path, vocab_file):
    squad = _squad(tmp_path)
    _build(tmp_path, vocab_file, training=False)
    for count, expected in ((1, 2), (2, 4), (99, 7)):
        features = _build(tmp_path, vocab_file, training=False, squad=squad.first(count))
        assert len(_records(features)) == expected
