"""The classes beside a model: written, read back, damaged, Hugging Face's."""

import json

import pytest

from bert_tf.model_directory.labels import TEXT_CLASSES_NAME
from bert_tf.model_directory.text_classes import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    TextClasses,
    find_text_classes,
    read_text_classes,
    write_text_classes,
)
from bert_tf.util.errors import UserError

CLASSES = TextClasses(MULTI_LABEL, ("a,b", "日本\n"), 0.25)


@pytest.mark.parametrize("classes", [CLASSES, TextClasses(REGRESSION)])
def test_what_is_written_is_read(tmp_path, classes):
    write_text_classes(tmp_path, classes)
    assert read_text_classes(tmp_path) == classes


def test_every_flipped_byte_is_noticed(tmp_path):
    write_text_classes(tmp_path, CLASSES)
    path = tmp_path / TEXT_CLASSES_NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if whole[place : place + 1].isspace():
            continue
        with pytest.raises(UserError, match=TEXT_CLASSES_NAME):
            read_text_classes(tmp_path)


@pytest.mark.parametrize(
    "content", [{"kind": "other", "labels": [], "threshold": 0.5}, {"labels": 5}, {}]
)
def test_valid_digests_of_other_content(tmp_path, content):
    from bert_tf.util.sealed_json import write_sealed_json

    write_sealed_json(tmp_path / TEXT_CLASSES_NAME, content)
    with pytest.raises(UserError, match="restore it, or train the model again"):
        read_text_classes(tmp_path)


def huggingface(**settings):
    return {"architectures": ["BertForSequenceClassification"], **settings}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (huggingface(id2label={"0": "no", "1": "yes"}), TextClasses(SINGLE_LABEL, ("no", "yes"))),
        (
            huggingface(id2label={"0": "a", "1": "b"}, problem_type=MULTI_LABEL),
            TextClasses(MULTI_LABEL, ("a", "b")),
        ),
        (
            huggingface(problem_type=MULTI_LABEL, multi_label_threshold=0.25),
            TextClasses(MULTI_LABEL, ("LABEL_0", "LABEL_1"), 0.25),
        ),
        (huggingface(id2label={"0": "LABEL_0"}), TextClasses(REGRESSION)),
        (huggingface(), TextClasses(SINGLE_LABEL, ("LABEL_0", "LABEL_1"))),
        ({"architectures": ["BertForTokenClassification"]}, None),
        ({}, None),
    ],
)
def test_those_of_hugging_face(tmp_path, settings, expected):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    assert find_text_classes(tmp_path, settings, path) == expected


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"problem_type": "x"}, "problem_type must be one of"),
        ({"multi_label_threshold": "x"}, "multi_label_threshold must be a number"),
    ],
)
def test_malformed_settings_of_hugging_face(tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        find_text_classes(tmp_path, huggingface(**settings), tmp_path / "config.json")
