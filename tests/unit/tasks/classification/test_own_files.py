"""A user's own tables: columns, labels and classes; bad rows are named."""

import json
import math

import pytest

from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.tasks.classification.own_files import (
    TableSettings,
    first_fraction,
    own_task,
    read_texts,
    require_same_kind,
)
from bert_tf.util.errors import UserError


def written(directory, content, name="t.csv"):
    path = directory / name
    path.write_text(content)
    return path


def texts_of(path, needs_labels=True, **settings):
    return read_texts(path, TableSettings(**settings), flag="train_file", needs_labels=needs_labels)


def file_of(path, **settings):
    texts = texts_of(path, **settings)
    chosen = TableSettings(**settings)
    names = () if chosen.regression else texts.classes()
    return texts.with_numbers(own_task(texts.columns, chosen, Classes.of_texts(chosen.kind, names)))


def labels_of(file):
    return [row.label for row in file.rows]


def test_classes_are_named_and_ordered(tmp_path):
    file = file_of(written(tmp_path, "text,label\na,spam\nb,ham\nc,spam\n"))
    assert file.task.classes.labels == ("ham", "spam")
    assert labels_of(file) == [1, 0, 1]
    assert file.task.classes.kind == SINGLE_LABEL


def test_whole_numbers_are_ordered_as_numbers(tmp_path):
    file = file_of(written(tmp_path, "text,label\na,10\nb,9\nc,-1\n"))
    assert file.task.classes.labels == ("-1", "9", "10")


def test_the_order_of_equal_numbers_is_the_same_in_every_process(tmp_path):
    names = ("+1", "0001", "001", "01", "1")
    file = file_of(written(tmp_path, "text,label\n" + "".join(f"a,{name}\n" for name in names)))
    assert file.task.classes.labels == names


@pytest.mark.parametrize(
    ("rows", "classes"),
    [
        ([1, 2, 1], ("1", "2")),
        ([1.0, 2.0, 1.0], ("1", "2")),
        ([0.5, 2.0, 2.0], ("0.5", "2")),
        ([True, False, True], ("False", "True")),
        ([" a ", "b", "a"], ("a", "b")),
    ],
)
def test_labels_that_are_not_text(tmp_path, rows, classes):
    lines = "\n".join(json.dumps({"text": "a", "label": label}) for label in rows)
    assert file_of(written(tmp_path, lines, "t.jsonl")).task.classes.labels == classes


def test_columns_are_found_or_given(tmp_path):
    path = written(tmp_path, "id,review,stars,sentence\n1,good,5,x\n2,bad,1,y\n")
    file = file_of(path, text_column="review", pair_column="sentence", label_column="stars")
    assert file.task.sentences == ("review", "sentence")
    assert [row.sentences for row in file.rows] == [["good", "x"], ["bad", "y"]]
    assert labels_of(file) == [1, 0]


def test_the_only_column_left_is_the_text(tmp_path):
    assert file_of(written(tmp_path, "review,label\na,x\nb,y\n")).task.first == "review"


def test_files_to_predict_need_no_labels(tmp_path):
    texts = texts_of(written(tmp_path, "text\na\n"), needs_labels=False)
    assert [(e.first, e.label) for e in texts.examples] == [("a", None)]


def test_several_labels(tmp_path):
    content = ["1\t2", "a\t27,4\nb\t\nc\t4\n"][1]
    path = written(tmp_path, content, "t.tsv")
    file = file_of(path, has_header=False, text_column="1", label_column="2", multi_label=True)
    assert file.task.classes.kind == MULTI_LABEL
    assert file.task.classes.labels == ("4", "27")
    assert labels_of(file) == [(0, 1), (), (0,)]
    assert file.task.num_targets == 2


def test_several_labels_in_json_are_a_list(tmp_path):
    lines = '{"text": "a", "labels": ["x, y", "z"]}\n{"text": "b", "labels": []}\n'
    file = file_of(written(tmp_path, lines, "t.jsonl"), multi_label=True)
    assert file.task.classes.labels == ("x, y", "z")
    assert labels_of(file) == [(0, 1), ()]


def test_ratings(tmp_path):
    file = file_of(written(tmp_path, "text,label\na,-1.5\nb,1e3\n"), regression=True)
    assert file.task.classes.kind == REGRESSION
    assert labels_of(file) == [-1.5, 1000]


BAD = {
    "no column": ("text,stars\na,x\n", {}, "which column of .* has the label"),
    "which text": ("a,b,label\n1,2,3\n", {}, "which column of .* has the text.*'a', 'b', 'label'"),
    "unknown column": (
        "text,label\na,x\n",
        {"text_column": "body"},
        "--text_column=body: .*no such",
    ),
    "empty text": ("text,label\na,x\n ,y\n", {}, "line 3 of .*: column 'text' is empty"),
    "empty label": (
        "text,label\na,x\nb,\n",
        {},
        "line 3 of .*: column 'label' has '', not a label",
    ),
    "one class": ("text,label\na,x\nb,x\n", {}, "only the label 'x', so there is nothing"),
    "no rating": (
        "text,label\na,1\nb,good\n",
        {"regression": True},
        "line 3 .*not a finite number",
    ),
    "nan": (
        "text,label\na,1\nb,nan\n",
        {"regression": True},
        "line 3 .*'nan', not a finite number",
    ),
    "infinite": ("text,label\na,1e999\n", {"regression": True}, "line 2 .*not a finite number"),
    "infinite as float32": (
        "text,label\na,3.4e38\nb,3.5e38\n",
        {"regression": True},
        "line 3 .*'3.5e38', not a finite number of 32 bits",
    ),
    "negative class": (
        "text,label\na,x\nb,y\n",
        {"negative_label": "z"},
        "--negative_label=z is not one of the labels, which are 'x', 'y'",
    ),
    "no rows": ("text,label\n", {}, "has no rows"),
    "no labels at all": ("text,label\na,\nb,\n", {"multi_label": True}, "has no label"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(tmp_path, case):
    content, settings, said = BAD[case]
    with pytest.raises(UserError, match=said):
        file_of(written(tmp_path, content), **settings)


@pytest.mark.parametrize("label", ["null", "NaN", '{"a": 1}', "[]"])
def test_values_that_are_no_label(tmp_path, label):
    lines = f'{{"text": "a", "label": "x"}}\n{{"text": "b", "label": {label}}}\n'
    with pytest.raises(UserError, match=r"line 2 of .*not a label; correct it"):
        file_of(written(tmp_path, lines, "t.jsonl"))


def test_a_text_that_is_a_number(tmp_path):
    with pytest.raises(UserError, match=r"line 1 of .*column 'text' has 5, not a text"):
        file_of(written(tmp_path, '{"text": 5, "label": "x"}', "t.jsonl"))


def test_labels_that_look_like_ratings(tmp_path):
    rows = "".join(f"a,{number / 7}\n" for number in range(1100))
    with pytest.raises(
        UserError, match=r"has 1,100 different labels in 1,100 rows; give .*regress"
    ):
        file_of(written(tmp_path, "text,label\n" + rows))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["1", "0.5", "2.5"], "0.5"),
        (["0.0", "1.0"], None),
        (["0.5", "x"], None),
        (["0", "1"], None),
    ],
)
def test_classes_that_look_like_ratings(names, found):
    assert first_fraction(names) == found


def test_an_unknown_label_in_the_development_file(tmp_path):
    texts = texts_of(written(tmp_path, "text,label\na,x\nb,new\n"))
    task = own_task(texts.columns, TableSettings(), Classes(SINGLE_LABEL, ("x", "y")))
    with pytest.raises(
        UserError, match=r"line 3 of .*label 'new', which the model does not know; .*'x', 'y'"
    ):
        texts.with_numbers(task)


def test_kinds_must_agree_with_the_model():
    model = Classes.of_texts(MULTI_LABEL, ("a", "b"))
    require_same_kind(model, TableSettings(multi_label=True), source="model")
    with pytest.raises(UserError, match="model was trained for multi label classification, not"):
        require_same_kind(model, TableSettings(), source="model")


@pytest.mark.parametrize(
    "settings",
    [
        {"multi_label": True, "regression": True},
        {"label_separator": ""},
        {"negative_label": "a", "multi_label": True},
    ],
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(UserError):
        TableSettings(**settings)


def test_ratings_have_no_bounds(tmp_path):
    task = file_of(written(tmp_path, "text,label\na,-5\nb,7\n"), regression=True).task
    assert (task.lowest, task.highest) == (-math.inf, math.inf)
