"""Published tasks: their table, their rows as written, and invalid files refused by line."""

import re

import pytest

from bert_tf.tasks.classification.glue import GLUE_TASKS, find_split, find_task, read_glue
from bert_tf.tasks.classification.metrics import METRICS
from bert_tf.tasks.classification.texts import Row
from bert_tf.util.errors import UserError

# The columns that MNLI's and XNLI's files have between those that are read.
PARSES = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
P4, L5 = "( a )\t( b )\t(ROOT a)\t(ROOT b)", "neutral\t" * 5
XNLI_HEADER = (
    f"language\tgold_label\t{PARSES}\tsentence1\tsentence2\tpromptID\tpairID\tgenre\t"
    "label1\tlabel2\tlabel3\tlabel4\tlabel5\tsentence1_tokenized\tsentence2_tokenized\tmatch\n"
)


def xnli_line(language, label, first, second):
    """A line of XNLI's development file."""
    return f"{language}\t{label}\t{P4}\t{first}\t{second}\t1\t1\tnews\t{L5}a\tb\tTrue\n"


XNLI = (
    XNLI_HEADER
    + xnli_line("zh", "entailment", 'He said "no.', "No.")
    + xnli_line("de", "neutral", "Er sagt nein.", "Ja.")
    + xnli_line("zh", "contradiction", "Me no.", "Yes.")
)
FILES = {
    "cola": 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tMe no.\n',
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    '1\t70\t71\tHe said "no.\tNo.\r\n0\t1\t2\tMe no.\tYes.\r\n',
    "sst-2": 'sentence\tlabel\nHe said "no.\t1\nMe no.\t0',
    "sts-b": 'main\tMSR\t2012\t1\t5.000\tHe said "no.\tNo.\n'
    "main\tMSR\t2012\t2\t0.25\tMe no.\tYes.\thttp://a\thttp://b\n",
    "wnli": 'index\tsentence1\tsentence2\tlabel\n4\tHe said "no.\tNo.\t1\n9\tMe no.\tYes.\t0\n',
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '1\t2\t3\tHe said "no.\tNo.\t1\n4\t5\t6\tMe no.\tYes.\t0\n',
    "mnli": f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2\tlabel1\tgold_label\n"
    f'0\t1\t1e\tnews\t{P4}\tHe said "no.\tNo.\tneutral\tentailment\n'
    f"1\t2\t2c\tnews\t{P4}\tMe no.\tYes.\tneutral\tcontradiction\n",
    "qnli": 'index\tquestion\tsentence\tlabel\n0\tHe said "no.\tNo.\tnot_entailment\n'
    "1\tMe no.\tYes.\tentailment\n",
    "rte": 'index\tsentence1\tsentence2\tlabel\n0\tHe said "no.\tNo.\tnot_entailment\n'
    "1\tMe no.\tYes.\tentailment\n",
    "ax": "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\t"
    'Hypothesis\tLabel\n\t\tNegation\t\tNews\tHe said "no.\tNo.\tentailment\n'
    "\t\t\t\tNews\tMe no.\tYes.\tcontradiction\n",
    "xnli": XNLI,
    "chemprot": 'index\tsentence\tlabel\n1.T1.T2\tHe said "no.\tCPR:4\n1.T1.T3\tMe no.\tCPR:3\n',
}


def read_file(
    tmp_path, name, content, *, languages=("zh",), trained="", flag="data_dir", needs_labels=True
):
    path = tmp_path / "some.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    task = GLUE_TASKS[name]
    if task.part_column:
        task = task.in_languages(languages, trained or languages[0])
    return read_glue(task, path, flag=flag, needs_labels=needs_labels)


def read(tmp_path, name, content, **how):
    return read_file(tmp_path, name, content, **how).rows


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
        ("qqp", "id\tquestion1\tquestion2\n0\tA\tB\n", Row("A", "B", None)),
        (
            "mnli",
            f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2\n"
            f"0\t1\t1\tnews\t{P4}\tA\tB\n",
            Row("A", "B", None),
        ),
        ("qnli", "index\tquestion\tsentence\n0\tA\tB\n", Row("A", "B", None)),
        ("ax", "index\tsentence1\tsentence2\n0\tA\tB\n", Row("A", "B", None)),
        ("chemprot", "index\tsentence\tlabel\n0\t@GENE$ A.\tfalse\n", Row("@GENE$ A.", None, None)),
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


def test_training_file_of_xnli(tmp_path):
    """Machine-translated MultiNLI, whose columns and labels have names of their own."""
    content = "premise\thypo\tlabel\nA\tB\tcontradictory\nC\tD\tneutral\n"
    assert read(tmp_path, "xnli", content) == [Row("A", "B", 0.0), Row("C", "D", 2.0)]


def test_languages_are_parts(tmp_path):
    file = read_file(tmp_path, "xnli", XNLI, languages=("de", "zh"))
    assert [row.second for row in file.rows] == ["Ja.", "No.", "Yes."]
    assert [(part.name, part.rows) for part in file.parts] == [
        ("", slice(0, 1)),
        ("zh", slice(1, 3)),
    ]
    assert file.score_names == ["eval_accuracy", "eval_accuracy_zh"]
    # Records of other languages are other records.
    assert file.task.parameters == {"language": ["de", "zh"]}


def test_a_training_file_has_the_language_to_train_in(tmp_path):
    trained = {"trained": "zh", "flag": "train_file"}
    file = read_file(tmp_path, "xnli", XNLI, languages=("de", "fr"), **trained)
    assert [row.second for row in file.rows] == ["No.", "Yes."]
    assert file.task.parameters == {"language": ["zh"]}
    sentence = r"--train_language=fr: .* has no rows in this language; it has de, zh\."
    with pytest.raises(UserError, match=sentence):
        read_file(tmp_path, "xnli", XNLI, languages=("de",), **{**trained, "trained": "fr"})


def test_two_files_are_parts(tmp_path):
    paths = [tmp_path / f"dev_{part}.tsv" for part in ("matched", "mismatched")]
    head, first, second = FILES["mnli"].splitlines(keepends=True)
    paths[0].write_text(head + first)
    paths[1].write_text(head + second + first)
    task = GLUE_TASKS["mnli"]
    assert find_split(task, tmp_path, "dev", flag="data_dir") == paths
    file = read_glue(task, paths, flag="data_dir", needs_labels=True)
    assert [row.label for row in file.rows] == [1.0, 0.0, 1.0]
    assert file.parts == (("", paths[0], slice(0, 1)), ("mismatched", paths[1], slice(1, 3)))
    assert file.paths == paths
    assert file.score_names == ["eval_accuracy", "eval_accuracy_mismatched"]
    # A file that is named by its flag is scored alone.
    alone = read_glue(task, paths[1], flag="eval_file", needs_labels=True)
    assert alone.score_names == ["eval_accuracy"]


def test_broken_lines_of_qqp_are_left_out_and_counted(tmp_path):
    content = FILES["qqp"] + "7\t8\t9\tA question on\n two lines?\tB\t1\n0\t1\t2\tC\tD\t1\n"
    file = read_file(tmp_path, "qqp", content)
    assert [row.first for row in file.rows] == ['He said "no.', "Me no.", "C"]
    assert file.skipped_lines == 2


WRONG = {
    "another task's file": ("mrpc", FILES["sst-2"], "line 1 of {} has no column '#1 String'"),
    "too few columns": ("sst-2", "sentence\tlabel\nA\t1\nA\n", "line 3 of {} has 1 column instead"),
    "too many columns": ("cola", "a\t1\t\tA\tB\n", "line 1 of {} has 5 columns instead of 4"),
    "between": (
        "sts-b",
        "m\tM\t1\t1\t5\tA\tB\tC\n",
        "line 1 of {} has 8 columns instead of 7 or",
    ),
    "blank line": ("sst-2", "sentence\tlabel\n\nA\t1\n", "line 2 of {} has 1 column instead of 2"),
    "rating": ("sts-b", FILES["sts-b"].replace("0.25", "5.01"), "label '5.01', which must be a nu"),
    "no rating": ("sts-b", FILES["sts-b"].replace("0.25", "nan"), "a number from 0 to 5; correct"),
    "no lines": ("cola", "\n", "line 1 of {} has 1 column instead of 4"),
    "columns of SNLI": (
        "xnli",
        "gold_label\ts1\ts2\n",
        "line 1 of {} has no column 'sentence1' or 'premise'; give a file of XNLI",
    ),
    "too many columns of QQP": (
        "qqp",
        FILES["qqp"] + "1\t2\t3\tA\tB\tC\t1\n",
        "line 4 of {} has 7 columns instead of 6",
    ),
    "only broken lines": ("qqp", FILES["qqp"].partition("\n")[0] + "\na\n", "{} has no examples"),
}


@pytest.mark.parametrize(("name", "content", "words"), WRONG.values(), ids=WRONG)
def test_refused_files(tmp_path, name, content, words):
    words = "--data_dir: .*" + re.escape(words.format(tmp_path / "some.tsv"))
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, name, content)
    assert "\n" not in str(error.value)


def changed(name, line, column, value=None):
    """A task's file with another value in a line and column, or with none."""
    lines = [text.split("\t") for text in FILES[name].rstrip("\r\n").split("\n")]
    lines[line][column : column + 1] = [] if value is None else [value]
    return "\n".join("\t".join(cells) for cells in lines)


def place_of_label(name):
    """The column of the labels."""
    task = GLUE_TASKS[name]
    header = FILES[name].lstrip("\ufeff").partition("\n")[0].split("\t")
    if task.without_header:
        return task.without_header.index(task.label)
    return next(n for n, column in enumerate(header) if column in (task.label, "Label"))


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_every_task_refuses_bad_files(tmp_path, name):
    task, label = GLUE_TASKS[name], place_of_label(name)
    last = FILES[name].rstrip().count("\n") + 1
    cases = [
        (changed(name, -1, label, "?"), True, f"line {last} of .* has the label '\\?', which must"),
        (changed(name, -1, 0), False, f"line {last} of .* has \\d+ columns? instead of "),
        ("", True, "some.tsv is empty"),
        (FILES[name].encode() + b"\xe9", True, "line \\d+ of .*some.tsv is not UTF-8"),
    ]
    if not task.without_header:
        no_rows = "has no rows in this language" if name == "xnli" else "has no examples"
        cases += [
            (changed(name, 0, label, "x"), True, f"line 1 of .* has no column '{task.label}'"),
            (FILES[name].partition("\n")[0], True, no_rows),
        ]
    for content, needs_labels, sentence in cases:
        with pytest.raises(UserError, match=sentence) as error:
            read(tmp_path, name, content, needs_labels=needs_labels)
        assert "\n" not in str(error.value)


def test_a_short_line_of_a_test_set_is_refused(tmp_path):
    """Its predictions would be of other lines than GLUE's."""
    content = "id\tquestion1\tquestion2\n0\tA\tB\n1\tA\n"
    with pytest.raises(UserError, match=r"line 3 of .* has 2 columns instead of 3"):
        read(tmp_path, "qqp", content, needs_labels=False)


def test_a_language_that_a_file_lacks(tmp_path):
    sentence = r"--language=fr: .*some\.tsv has no rows in this language; it has de, zh\."
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, "xnli", XNLI, languages=("fr",))
    with pytest.raises(UserError, match=r"--language=zh: .* has no rows in this language\."):
        read(tmp_path, "xnli", XNLI_HEADER)


def test_the_file_of_a_split(tmp_path):
    task = GLUE_TASKS["sts-b"]
    sentence = r"--data_dir: .* has no dev\.tsv and no sts-dev\.csv; give .* STS-B's files"
    with pytest.raises(UserError, match=sentence):
        find_split(task, tmp_path, "dev", flag="data_dir")
    for name in ("sts-dev.csv", "dev.tsv"):
        (tmp_path / name).write_text("content")
        assert find_split(task, tmp_path, "dev", flag="data_dir") == [tmp_path / name]


def test_files_of_languages(tmp_path):
    task = GLUE_TASKS["xnli"].in_languages(("de", "fr"), "en")
    train = tmp_path / "multinli" / "multinli.train.en.tsv"
    train.parent.mkdir()
    for path in (train, tmp_path / "xnli.dev.tsv"):
        path.write_text("content")
    assert find_split(task, tmp_path, "train", flag="data_dir") == [train]
    assert find_split(task, tmp_path, "dev", flag="data_dir") == [tmp_path / "xnli.dev.tsv"]
    train.unlink()
    sentence = r"has no multinli/multinli\.train\.en\.tsv and no .*, or another language\."
    with pytest.raises(UserError, match=sentence):
        find_split(task, tmp_path, "train", flag="data_dir")


def test_a_second_file_that_is_missing(tmp_path):
    (tmp_path / "dev_matched.tsv").write_text("content")
    with pytest.raises(UserError, match=r"has no dev_mismatched\.tsv; give the directory of MNLI"):
        find_split(GLUE_TASKS["mnli"], tmp_path, "dev", flag="data_dir")


def test_the_diagnostic_set_cannot_be_trained_on(tmp_path):
    with pytest.raises(UserError, match="AX has no train set; train a model with --task_name=MNLI"):
        find_split(GLUE_TASKS["ax"], tmp_path, "train", flag="data_dir")


# Names on GLUE's page of submissions, https://gluebenchmark.com.
SUBMISSIONS = {
    "cola": {"test.tsv": "CoLA.tsv"},
    "sst-2": {"test.tsv": "SST-2.tsv"},
    "mrpc": {"test.tsv": "MRPC.tsv"},
    "qqp": {"test.tsv": "QQP.tsv"},
    "sts-b": {"test.tsv": "STS-B.tsv", "sts-test.csv": None},
    "mnli": {
        "test_matched.tsv": "MNLI-m.tsv",
        "test_mismatched.tsv": "MNLI-mm.tsv",
        "dev_matched.tsv": None,
    },
    "qnli": {"test.tsv": "QNLI.tsv", "dev.tsv": None},
    "rte": {"test.tsv": "RTE.tsv"},
    "wnli": {"test.tsv": "WNLI.tsv"},
    "ax": {"diagnostic.tsv": "AX.tsv", "diagnostic-full.tsv": None},
    "xnli": {"xnli.test.tsv": None},
    "chemprot": {"test.tsv": None},
}


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_submissions(name):
    task = GLUE_TASKS[name]
    assert {file: task.submission(file) for file in SUBMISSIONS[name]} == SUBMISSIONS[name]


@pytest.mark.parametrize("task", GLUE_TASKS.values(), ids=GLUE_TASKS)
def test_rows_are_consistent(task):
    assert set(task.metrics) <= METRICS.keys()
    assert task.is_regression == (task.lowest < task.highest)
    assert task.negative in ("", *task.classes.labels)
    assert set(task.other_labels.values()) <= set(task.classes.labels)
    columns = {*task.sentences, task.label}
    assert set(task.other_names.values()) <= columns
    assert columns <= set(task.without_header) or not task.without_header


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *(("SST-2", "sst-2"), ("sst2", "sst-2"), ("Sst_2", "sst-2")),
        *(("mnli", "mnli"), ("XNLI", "xnli"), ("stsb", "sts-b"), ("chemprot", "chemprot")),
    ],
)
def test_names_of_tasks(given, found):
    assert find_task(given, flag="task_name") == found


def test_an_unknown_task_lists_the_known_ones():
    sentence = "--task_name=SNLI is not one of CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE, WNLI"
    with pytest.raises(UserError, match=sentence):
        find_task("SNLI", flag="task_name")


def test_classes_in_the_order_of_a_model():
    task = GLUE_TASKS["mnli"]
    found = task.numbered_as(["CONTRADICTION", "NEUTRAL", "ENTAILMENT"])
    assert found.classes.labels == ("contradiction", "neutral", "entailment")
    # Records hold the numbers of classes, so that they are others.
    assert found.parameters == {"classes": ["contradiction", "neutral", "entailment"]}
    for others in (["LABEL_0", "LABEL_1", "LABEL_2"], ["neutral"] * 3, [], task.classes.labels):
        assert task.numbered_as(others) is task


def test_tasks_with_the_same_head():
    assert GLUE_TASKS["ax"].same_head == GLUE_TASKS["mnli"].same_head == ["MNLI", "AX", "XNLI"]
    assert GLUE_TASKS["rte"].same_head == ["RTE"]
