"""The task of a model directory is found from its head and its labels."""

import dataclasses

import pytest

from bert_tf.model_directory.classes import CHOICE, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.serving.trained import open_trained
from bert_tf.util.errors import UserError
from tests.helpers.model_records import set_record
from tests.helpers.small_task_models import CLASSES, WORD_LABELS, WRITERS, write_classifier


@pytest.mark.parametrize("task", WRITERS)
def test_the_task_is_that_of_the_head(tmp_path, task):
    found = open_trained(WRITERS[task](tmp_path))
    assert found.task == task
    assert found.classes == {
        "tagging": Classes("word_labels", WORD_LABELS),
        "classification": CLASSES["single"],
        "multiple_choice": Classes(CHOICE),
    }.get(task)


def test_the_path_of_a_checkpoint(tmp_path):
    write_classifier(tmp_path)
    assert open_trained(tmp_path / "model.ckpt-7").classes == CLASSES["single"]


def test_every_model_gives_vectors(tmp_path):
    assert open_trained(write_classifier(tmp_path), "vectors").task == "vectors"


def test_a_head_of_classes_without_labels(tmp_path):
    write_classifier(tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(UserError, match=r"no model\.json .* give --task=classification"):
        open_trained(tmp_path)
    numbers = Classes.of_texts(SINGLE_LABEL, ("0", "1", "2"))
    assert open_trained(tmp_path, "classification").classes == numbers
    with pytest.raises(UserError, match=r"no model\.json with labels of words next to it"):
        open_trained(tmp_path, "tagging")


def test_a_single_output_without_a_name_is_a_rating(tmp_path):
    write_classifier(tmp_path, "rating")
    (tmp_path / "model.json").unlink()
    assert open_trained(tmp_path, "classification").classes == Classes(REGRESSION)


def test_classes_of_another_head(tmp_path):
    write_classifier(tmp_path)
    set_record(tmp_path, classes=dataclasses.replace(CLASSES["single"], labels=("good", "bad")))
    with pytest.raises(UserError, match="2 classes are stored with it, but its head has 3"):
        open_trained(tmp_path)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("spelling", "--task=spelling is not one of classification, tagging, "),
        ("classification", "has no classification head; train one with run_classifier.py"),
        ("tagging", "no head of labels; give a model that run_ner.py trained"),
        ("multiple_choice", "no multiple-choice head; train one with run_multiple_choice.py"),
    ],
)
def test_a_task_that_the_model_is_not_for(tmp_path, task, sentence):
    with pytest.raises(UserError, match=sentence):
        open_trained(WRITERS["question_answering"](tmp_path), task)


def test_no_model(tmp_path):
    with pytest.raises(UserError, match=r"--model_dir=.*nothing does not exist"):
        open_trained(tmp_path / "nothing")
