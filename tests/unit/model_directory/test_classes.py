"""The classes of a head: in every format, only with that head, and those of earlier versions."""

import json

import pytest
import transformers

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import open_with_heads
from bert_tf.commands.convert import convert
from bert_tf.model_directory.classes import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    WORD_LABELS,
    Classes,
    classes_in_labels_file,
    classes_of_huggingface,
)
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.tasks.classification.task import CLASSIFICATION_HEAD
from bert_tf.tasks.tagging.task import TAGGING_HEAD
from bert_tf.util.errors import UserError
from tests.helpers.model_records import set_labels
from tests.unit.checkpoint.tiny_models import LABELS, huggingface_model, save_google

HEAD = {"output_weights", "output_bias"}


def words(*labels):
    return Classes(WORD_LABELS, labels)


@pytest.mark.parametrize(
    ("kind", "labels", "thresholds", "sentence"),
    [
        ("other", ("a",), (), "'other' is not a kind"),
        (WORD_LABELS, ("O", "O"), (), "must have names that are text, all of them different"),
        (WORD_LABELS, ("O", ""), (), "must have names"),
        (WORD_LABELS, ("O", 5), (), "must have names"),
        (WORD_LABELS, ("O", "B-a\nO"), (), "must have names"),
        (SINGLE_LABEL, ("a", "\ud800"), (), "must have names"),
        (REGRESSION, ("a",), (), "a rating has no classes"),
        (SINGLE_LABEL, (), (), "and all other kinds have some"),
        (MULTI_LABEL, ("a", "b"), (0.5,), "a threshold for each class"),
        (SINGLE_LABEL, ("a", "b"), (0.5, 0.5), "a threshold for each class"),
        (MULTI_LABEL, ("a",), (float("nan"),), "finite"),
        (MULTI_LABEL, ("a",), ("0.5",), "finite"),
    ],
)
def test_classes_that_no_head_has(kind, labels, thresholds, sentence):
    with pytest.raises(UserError, match=sentence):
        Classes(kind, labels, thresholds)


def test_a_labels_file(tmp_path):
    assert classes_in_labels_file(tmp_path) is None
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfO\r\nB-Stra\xc3\x9fe")  # by an editor
    assert classes_in_labels_file(tmp_path) == words("O", "B-Straße")
    assert ModelDirectory.of(tmp_path).labels == ("O", "B-Straße")


@pytest.mark.parametrize("content", [b"", b"\n", b"O\nO\n", b"O\n\nB\n", b"O\nB\n\n", b"O\n\xe9\n"])
def test_a_damaged_labels_file(tmp_path, content):
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"labels .*labels\.txt: .*restore") as error:
        classes_in_labels_file(tmp_path)
    assert "\n" not in str(error.value)


TOKENS = {"architectures": ["BertForTokenClassification"]}
TEXTS = {"architectures": ["BertForSequenceClassification"]}
SETTINGS = {
    "named": ({**TOKENS, "id2label": {"1": "b", "0": "a"}}, words("a", "b")),
    "by transformers": (TOKENS, words("LABEL_0", "LABEL_1")),
    "counted": ({**TOKENS, "num_labels": 3}, words("LABEL_0", "LABEL_1", "LABEL_2")),
    "DistilBERT": (
        {"architectures": ["DistilBertForTokenClassification"]},
        words("LABEL_0", "LABEL_1"),
    ),
    "another class": ({"architectures": ["BertForMaskedLM"], "id2label": {"0": "a"}}, None),
    "texts": (
        {**TEXTS, "id2label": {"0": "no", "1": "yes"}},
        Classes(SINGLE_LABEL, ("no", "yes")),
    ),
    "several": (
        {**TEXTS, "id2label": {"0": "a", "1": "b"}, "problem_type": MULTI_LABEL},
        Classes(MULTI_LABEL, ("a", "b"), (0.5, 0.5)),
    ),
    "threshold": (
        {**TEXTS, "problem_type": MULTI_LABEL, "multi_label_threshold": 0.25},
        Classes(MULTI_LABEL, ("LABEL_0", "LABEL_1"), (0.25, 0.25)),
    ),
    "rating": ({**TEXTS, "id2label": {"0": "LABEL_0"}}, Classes(REGRESSION)),
    "unnamed texts": (TEXTS, Classes(SINGLE_LABEL, ("LABEL_0", "LABEL_1"))),
}


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_those_of_transformers(tmp_path, settings, expected):
    assert classes_of_huggingface(settings, tmp_path / "config.json") == expected


@pytest.mark.parametrize(
    "named",
    [{"1": "a"}, {"0": "a", "2": "b"}, {"0": "a", "1": "a"}, {"0": 5}, {"0": "\ud800"}, {}, ["a"]],
)
@pytest.mark.parametrize("kind", [TOKENS, TEXTS])
def test_malformed_names(tmp_path, named, kind):
    with pytest.raises(UserError, match="its id2label must name classes 0, 1, 2 and so on"):
        classes_of_huggingface({**kind, "id2label": named}, tmp_path / "config.json")


@pytest.mark.parametrize("count", [10**9, 0, -1, "3", None, 2.0])
@pytest.mark.parametrize("kind", [TOKENS, TEXTS])
def test_impossible_numbers_of_labels(tmp_path, count, kind):
    with pytest.raises(UserError, match=f"config.json: its num_labels is {count!r}, not a number"):
        classes_of_huggingface({**kind, "num_labels": count}, tmp_path / "config.json")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"problem_type": "x"}, "problem_type must be one of"),
        ({"multi_label_threshold": "x"}, "multi_label_threshold must be a number"),
    ],
)
def test_malformed_settings(tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        classes_of_huggingface({**TEXTS, **settings}, tmp_path / "config.json")


@pytest.mark.parametrize("target", ["google", "nvidia", "bert_tf"])
def test_labels_go_from_transformers_and_back(tmp_path, target):
    model = huggingface_model("BertForTokenClassification")
    model.config.id2label = {0: "B-Ä", 1: "O", 2: "I-Ä"}
    model.save_pretrained(tmp_path / "theirs")
    convert(open_source(tmp_path / "theirs"), tmp_path / "ours", target)
    assert open_source(tmp_path / "ours").files.labels == ("B-Ä", "O", "I-Ä")
    assert open_source(tmp_path / "ours").stored.keys() >= HEAD
    convert(open_source(tmp_path / "ours"), tmp_path / "back", "huggingface")
    config = transformers.BertConfig.from_pretrained(tmp_path / "back")
    assert config.id2label == model.config.id2label


def test_classes_of_a_text_have_no_labels(tmp_path):
    huggingface_model("BertForSequenceClassification").save_pretrained(tmp_path / "theirs")
    convert(open_source(tmp_path / "theirs"), tmp_path / "ours", "google")
    for name in ("theirs", "ours"):
        assert open_source(tmp_path / name).files.labels is None


def test_labels_without_a_head_are_none(tmp_path):
    save_google(tmp_path / "google", "BertModel")
    set_labels(tmp_path / "google", LABELS)
    assert ModelDirectory.of(tmp_path / "google").labels == tuple(LABELS)
    assert open_source(tmp_path / "google").files.labels is None


@pytest.mark.parametrize("class_name", ["BertForTokenClassification"])
def test_labels_of_another_head(tmp_path, class_name):
    save_google(tmp_path / "google", class_name)
    set_labels(tmp_path / "google", (*LABELS, "more"))
    with pytest.raises(UserError, match="4 classes are stored with it, but its head has 3; rest"):
        open_source(tmp_path / "google")


@pytest.mark.parametrize(
    ("class_name", "reads", "ignores"),
    [
        ("BertForTokenClassification", TAGGING_HEAD, CLASSIFICATION_HEAD),
        ("BertForSequenceClassification", CLASSIFICATION_HEAD, TAGGING_HEAD),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_the_head_of_another_task_is_not_there(tmp_path, class_name, reads, ignores, ours):
    if ours:
        save_google(tmp_path / "model", class_name)
    else:
        huggingface_model(class_name).save_pretrained(tmp_path / "model")
    assert open_with_heads(tmp_path / "model", [reads]).stored.keys() >= HEAD
    assert not HEAD & open_with_heads(tmp_path / "model", [ignores]).stored.keys()
    assert open_with_heads(tmp_path / "model", []).stored.keys() >= HEAD


def test_a_head_of_unknown_classes_is_one_of_a_text(tmp_path):
    """NVIDIA's run_ner.py stores no labels that are read."""
    save_google(tmp_path / "google", "BertForSequenceClassification")
    convert(open_source(tmp_path / "google"), tmp_path / "theirs", "huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    set_labels(tmp_path / "google", LABELS)
    convert(open_source(tmp_path / "google"), tmp_path / "tags", "huggingface")
    config = json.loads((tmp_path / "tags" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert list(config["id2label"].values()) == list(LABELS)
