"""GLUE files: rows equal what was written, and invalid files are refused with the line."""

import re

import pytest

from bert_tf.tasks.classification.glue import GLUE_TASKS, find_split, find_task, read_glue
from bert_tf.tasks.classification.text_task import Row
from bert_tf.util.errors import UserError

FILES = {
    "cola": 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tMe no.\n',
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    '1\t70\t71\tHe said "no.\tNo.\r\n0\t1\t2\tMe no.\tYes.\r\n',
    "sst-2": 'sentence\tlabel\nHe said "no.\t1\nMe no.\t0',
    "sts-b": 'main\tMSR\t2012\t1\t5.000\tHe said "no.\tNo.\n'
    "main\tMSR\t2012\t2\t0.25\tMe no.\tYes.\thttp://a\thttp://b\n",
    "wnli": 'index\tsentence1\tsentence2\tlabel\n4\tHe said "no.\tNo.\t1\n9\tMe no.\tYes.\t0\n',
}


def read(tmp_path, name, content, *, needs_labels=True):
    path = tmp_path / "some.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_glue(GLUE_TASKS[name], path, flag="data_dir", needs_labels=needs_labels).rows


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_rows(tmp_path, name):
    has_two = GLUE_TASKS[name].second is not None
    labels = (5.0, 0.25) if name == "sts-b" else (1.0, 0.0)
    assert read(tmp_path, name, FILES[name]) == [
        Row('He said "no.', "No." if has_two else None, labels[0]),
        Row("Me no.", "Yes." if has_two else None, labels[1]),
    ]


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [
        # GLUE's test files have no labels, and other columns in another order.
        ("cola", "index\tsentence\n0\tMe no.\n", Row("Me no.", None, None)),
        ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tA\tB\n", Row("A", "B", None)),
        ("sst-2", "index\tsentence\n0\tMe no.\n", Row("Me no.", None, None)),
        (
            "sts-b",
            "index\tgenre\tsentence1\tsentence2\n0\tnews\tA\tB\n",
            Row("A", "B", None),
        ),
        ("wnli", "index\tsentence1\tsentence2\n0\tA\tB\n", Row("A", "B", None)),
        # Existing labels are ignored.
        ("sst-2", "sentence\tlabel\nMe no.\t?\n", Row("Me no.", None, None)),
        # Characters at which str.splitlines would split.
        ("sst-2", "sentence\nMe\x0b\x85\u2028no.\n", Row("Me\x0b\x85\u2028no.", None, None)),
    ],
)
def test_files_to_predict(tmp_path, name, content, row):
    assert read(tmp_path, name, content, needs_labels=False) == [row]


def test_glue_columns_of_sts_b(tmp_path):
    content = "index\tgenre\tsentence1\tsentence2\tscore\n7\tnews\tA\tB\t2.5\n"
    assert read(tmp_path, "sts-b", content) == [Row("A", "B", 2.5)]


WRONG = {
    "another task's file": ("mrpc", FILES["sst-2"], "line 1 of {} has no column '#1 String'"),
    "no labels": ("sst-2", "index\tsentence\n0\tA\n", "line 1 of {} has no column 'label'"),
    "too few columns": ("sst-2", "sentence\tlabel\nA\t1\nA\n", "line 3 of {} has 1 column instead"),
    "too many columns": ("cola", "a\t1\t\tA\tB\n", "line 1 of {} has 5 columns instead of 4"),
    "between": (
        "sts-b",
        "m\tM\t1\t1\t5\tA\tB\tC\n",
        "line 1 of {} has 8 columns instead of 7 or",
    ),
    "blank line": ("sst-2", "sentence\tlabel\n\nA\t1\n", "line 2 of {} has 1 column instead of 2"),
    "label": (
        "wnli",
        FILES["wnli"][:-2] + "2\n",
        "line 3 of {} has the label '2', which must be",
    ),
    "rating": ("sts-b", FILES["sts-b"].replace("0.25", "5.01"), "label '5.01', which must be a nu"),
    "no rating": ("sts-b", FILES["sts-b"].replace("0.25", "nan"), "a number from 0 to 5; correct"),
    "no rows": ("sst-2", "sentence\tlabel\n", "{} has no examples"),
    "no lines": ("cola", "\n", "line 1 of {} has 1 column instead of 4"),
    "empty": ("cola", "", "{} is empty"),
    "not UTF-8": ("sst-2", b"sentence\tlabel\nA\t1\ncaf\xe9\t0\n", "line 3 of {} is not UTF-8"),
}


@pytest.mark.parametrize(("name", "content", "words"), WRONG.values(), ids=WRONG)
def test_refused_files(tmp_path, name, content, words):
    words = "--data_dir: .*" + re.escape(words.format(tmp_path / "some.tsv"))
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, name, content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["SST-2", "sst2", "Sst_2"])
def test_names_of_tasks(name):
    assert find_task(name, flag="task_name") == "sst-2"


def test_an_unknown_task_lists_the_known_ones():
    sentence = "--task_name=MNLI is not one of CoLA, MRPC, SST-2, STS-B, WNLI"
    with pytest.raises(UserError, match=sentence):
        find_task("MNLI", flag="task_name")


def test_the_file_of_a_split(tmp_path):
    task = GLUE_TASKS["sts-b"]
    sentence = r"--data_dir: .* has no dev\.tsv and no sts-dev\.csv; give .* STS-B's files"
    with pytest.raises(UserError, match=sentence):
        find_split(task, tmp_path, "dev", flag="data_dir")
    for name in ("sts-dev.csv", "dev.tsv"):
        (tmp_path / name).write_text("content")
        assert find_split(task, tmp_path, "dev", flag="data_dir") == tmp_path / name
