"""Files of questions with choices: JSON lines, SWAG, RACE; what they become."""

import json

import numpy as np
import pytest

from bert_tf.tasks.multiple_choice.files import (
    Question,
    QuestionEncoder,
    check_length,
    find_split,
    read_questions,
    sequences_of,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.squad_files import write_model

# As published, with other words: the first column has no name.
SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,\
ending3,label
0,a,1,Anna lives. She,Anna lives.,She,gold,works.,"visited, in rome.",lives in oslo.,does.,2
1,b,2,Bob works. He,Bob works.,He,gen,lives.,does.,works.,visited.,0
"""
ARTICLE = {
    "answers": ["B", "A"],
    "options": [["oslo", "rome", "lima", "cairo"], ["Bob .", "Emil .", "Dora .", "Gina ."]],
    "questions": ["Where does Anna live ?", "The friend of _ works ."],
    "article": "Anna lives in Rome .",
    "id": "high1.txt",
}


def read(path, *, needs_labels=True):
    return read_questions(path, flag="train_file", needs_labels=needs_labels).questions


def write_lines(directory, *values):
    path = directory / "train.jsonl"
    path.write_text("".join(f"{v if isinstance(v, str) else json.dumps(v)}\n" for v in values))
    return path


def test_json_lines(tmp_path):
    values = {"context": "Anna .", "choices": ["lives", "works", "does"], "label": 1}
    path = write_lines(tmp_path, values, "", {**values, "question": "Who ?", "label": 0})
    first, second = read(path)
    assert first == Question("Anna .", "", ("lives", "works", "does"), 1)
    assert first.continuations == ["lives", "works", "does"]
    assert second.continuations == ["Who ? lives", "Who ? works", "Who ? does"]
    assert [question.label for question in read(path, needs_labels=False)] == [None, None]


def test_swag(tmp_path):
    (tmp_path / "train.csv").write_text(SWAG)
    first, second = read(tmp_path / "train.csv")
    assert first == Question(
        "Anna lives.", "She", ("works.", "visited, in rome.", "lives in oslo.", "does."), 2
    )
    assert first.continuations[1] == "She visited, in rome."
    assert second.label == 0
    header, *rows = SWAG.splitlines()
    test = [header.removesuffix(",label"), *(row.rpartition(",")[0] for row in rows)]
    (tmp_path / "test.csv").write_text("\r\n".join(test))
    given = read(tmp_path / "test.csv", needs_labels=False)
    assert given == [first._replace(label=None), second._replace(label=None)]
    with pytest.raises(UserError, match=r"^--train_file: line 2 of .*csv has the label None, not"):
        read(tmp_path / "test.csv")


def test_race(tmp_path):
    for part, label in (("high", "B"), ("middle", "D")):
        (tmp_path / "train" / part).mkdir(parents=True)
        content = {**ARTICLE, "answers": [label, "A"]}
        (tmp_path / "train" / part / "1.txt").write_text(json.dumps(content))
    file = read_questions(tmp_path / "train", flag="data_dir", needs_labels=True)
    assert [question.label for question in file.questions] == [1, 0, 3, 0]
    assert [path.parent.name for path in file.paths] == ["high", "middle"]
    first, second = file.questions[:2]
    assert first.continuations[1] == "Where does Anna live ? rome"
    assert second.continuations[3] == "The friend of Gina . works ."
    assert len(read(tmp_path / "train" / "high")) == 2


@pytest.mark.parametrize("question", ["what is max_len ?", "", "none"])
def test_only_a_blank_by_itself_is_filled(question):
    given = Question("a", question, ("x", "y"))
    assert given.continuations == [f"{question} x".strip(), f"{question} y".strip()]
    assert Question("a", "in ___ , _", ("x", "y")).continuations == ["in x , x", "in y , y"]


GOOD = {"context": "a", "choices": ["x", "y"], "label": 0}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("nothing", "is not valid JSON"),
        ([], "not a JSON object"),
        ({"context": "a"}, 'needs a text "context" and two texts or more in the list "choices"'),
        ({"choices": ["x", "y"], "label": 0}, 'needs a text "context"'),
        ({**GOOD, "choices": ["x"]}, "two texts or more"),
        ({**GOOD, "choices": "xy"}, "two texts or more"),
        ({**GOOD, "choices": ["x", 5]}, "two texts or more"),
        ({**GOOD, "question": 5}, 'may have a text "question"'),
        ({**GOOD, "label": 2}, "has the label 2, not the number of one of its 2 choices"),
        ({**GOOD, "label": True}, "has the label True, not"),
        ({"context": "a", "choices": ["x", "y"]}, "has the label None, not"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path, values, said):
    path = write_lines(tmp_path, GOOD, values)
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"--train_file: line 2 of {path} ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": ["A"]}, "is not a file of RACE, with lists of questions, options and answers"),
        ({"options": None}, "is not a file of RACE"),
        ({"answers": ["A", "E"]}, "has the label 4, not the number of one of its 4 choices"),
        ({"answers": ["A", 3]}, "has the label None, not"),
        ({"article": None}, 'needs a text "context"'),
    ],
)
def test_an_article_that_is_malformed_is_named(tmp_path, change, said):
    (tmp_path / "1.txt").write_text(json.dumps({**ARTICLE, **change}))
    with pytest.raises(UserError, match=f"^--train_file: .*{tmp_path}/1.txt .*{said}"):
        read(tmp_path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("sent1,sent2,ending0\na,b,c\n")
    with pytest.raises(UserError, match=r'line 2 of .*a\.csv needs a text "context" and two texts'):
        read(tmp_path / "a.csv")
    with pytest.raises(UserError, match="has no questions; give JSON lines, a table of SWAG"):
        read(tmp_path)
    with pytest.raises(UserError, match="does not exist or is not a file"):
        read(tmp_path / "b.jsonl")


def test_splits_of_published_data(tmp_path):
    for name in ("train.csv", "val.csv", "test.jsonl"):
        (tmp_path / name).touch()
    names = [
        find_split(tmp_path, split, flag="data_dir").name for split in ("train", "dev", "test")
    ]
    assert names == ["train.csv", "val.csv", "test.jsonl"]
    with pytest.raises(
        UserError, match=r"--data_dir: .*/none has no file train\.jsonl or train\.csv or"
    ):
        find_split(tmp_path / "none", "train", flag="data_dir")


@pytest.fixture(name="files")
def tokenizer_files(tmp_path):
    return TokenizerFiles(write_model(tmp_path / "model") / "vocab.txt")


def test_the_longer_text_loses_its_end(files):
    tokenizer = files.load()
    question = Question(
        "Anna lives in the old town", "Where ?", ("rome", "in the town of a friend")
    )
    (first, second), is_cut = sequences_of(question, tokenizer, 11)
    assert is_cut
    texts = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids, _ in (first, second)]
    assert texts[0] == "[CLS] anna lives in the old [SEP] where ? rome [SEP]"
    assert texts[1] == "[CLS] anna lives in the [SEP] where ? in the [SEP]"
    assert first[1] == [0] * 7 + [1] * 4
    assert not sequences_of(question, tokenizer, 40)[1]


def test_questions_with_fewer_choices_are_filled_up(files):
    questions = [Question("a", "", ("rome", "oslo", "lima"), 2), Question("a", "", ("in", "of"), 1)]
    encoded = QuestionEncoder(8, 3).encode(questions, files.load())
    assert encoded.counts == {"questions": 2, "cut_questions": 0}
    mask = encoded.features["input_mask"]
    assert mask.shape == (2, 3, 8)
    np.testing.assert_array_equal(mask.sum(axis=-1), [[5, 5, 5], [5, 5, 1]])
    np.testing.assert_array_equal(encoded.features["labels"], [[2], [1]])


def test_a_length_without_room_is_refused():
    check_length(5)
    with pytest.raises(UserError, match=r"--max_seq_length=4 has no room .* give at least 5"):
        check_length(4)
