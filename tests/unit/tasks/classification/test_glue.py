"""The table of tasks: names, sets, submission files, and which models predict which task."""

import pytest

from bert_tf.tasks.classification.glue import GLUE_TASKS, find_task
from bert_tf.tasks.classification.metrics import METRICS
from bert_tf.util.errors import UserError

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
