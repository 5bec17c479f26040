"""The labels of a head for words: beside the weights, in every format, and only with that head."""

import json

import pytest
import transformers

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import open_with_heads
from bert_tf.commands.convert import convert
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.model_directory.labels import find_labels, read_labels, write_labels
from bert_tf.model_directory.text_classes import find_text_classes
from bert_tf.tasks.classification.task import CLASSIFICATION_HEAD
from bert_tf.tasks.tagging.task import TAGGING_HEAD
from bert_tf.util.errors import UserError
from tests.unit.checkpoint.tiny_models import LABELS, huggingface_model, save_google

HEAD = {"output_weights", "output_bias"}


def test_what_was_written_is_read(tmp_path):
    assert read_labels(tmp_path) is None
    labels = ("O", "B-Straße\u2028\x85", "# x", "B-a b")
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfO\r\nB")  # by an editor
    assert read_labels(tmp_path) == ("O", "B")
    write_labels(tmp_path, None)
    write_labels(tmp_path, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"\n", b"O\nO\n", b"O\n\nB\n", b"O\nB\n\n", b"O\n\xe9\n"])
def test_damaged_files(tmp_path, content):
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"labels .*labels\.txt: .*restore") as error:
        read_labels(tmp_path)
    assert "\n" not in str(error.value)


TOKENS = {"architectures": ["BertForTokenClassification"]}
SETTINGS = {
    "named": ({**TOKENS, "id2label": {"1": "b", "0": "a"}}, ("a", "b")),
    "by transformers": (TOKENS, ("LABEL_0", "LABEL_1")),
    "counted": ({**TOKENS, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
    "DistilBERT": (
        {"architectures": ["DistilBertForTokenClassification"]},
        ("LABEL_0", "LABEL_1"),
    ),
    "another class": ({"architectures": ["BertForMaskedLM"], "id2label": {"0": "a"}}, None),
}


@pytest.mark.parametrize(("settings", "labels"), SETTINGS.values(), ids=SETTINGS)
def test_labels_of_transformers(tmp_path, settings, labels):
    write_labels(tmp_path, ["of", "something", "else"])
    assert find_labels(tmp_path, settings, tmp_path / "config.json") == labels


@pytest.mark.parametrize(
    "named", [{"1": "a"}, {"0": "a", "2": "b"}, {"0": "a", "1": "a"}, {"0": 5}, {}, ["a"], "a"]
)
def test_malformed_settings(tmp_path, named):
    with pytest.raises(UserError, match="its id2label must name classes 0, 1, 2 and so on"):
        find_labels(tmp_path, {**TOKENS, "id2label": named}, tmp_path / "config.json")


@pytest.mark.parametrize("count", [10**9, 0, -1, "3", None, 2.0])
@pytest.mark.parametrize("kind", ["Token", "Sequence"])
def test_impossible_numbers_of_labels(tmp_path, count, kind):
    settings = {"architectures": [f"BertFor{kind}Classification"], "num_labels": count}
    find = find_labels if kind == "Token" else find_text_classes
    with pytest.raises(UserError, match=f"config.json: its num_labels is {count!r}, not a number"):
        find(tmp_path, settings, tmp_path / "config.json")


@pytest.mark.parametrize("target", ["google", "nvidia", "bert_tf"])
def test_labels_go_from_transformers_and_back(tmp_path, target):
    model = huggingface_model("BertForTokenClassification")
    model.config.id2label = {0: "B-Ä", 1: "O", 2: "I-Ä"}
    model.save_pretrained(tmp_path / "theirs")
    convert(open_source(tmp_path / "theirs"), tmp_path / "ours", target)
    assert open_source(tmp_path / "ours").labels == ("B-Ä", "O", "I-Ä")
    assert open_source(tmp_path / "ours").stored.keys() >= HEAD
    convert(open_source(tmp_path / "ours"), tmp_path / "back", "huggingface")
    config = transformers.BertConfig.from_pretrained(tmp_path / "back")
    assert config.id2label == model.config.id2label
    assert not (tmp_path / "back" / "labels.txt").exists()


def test_classes_of_a_text_have_no_labels(tmp_path):
    huggingface_model("BertForSequenceClassification").save_pretrained(tmp_path / "theirs")
    convert(open_source(tmp_path / "theirs"), tmp_path / "ours", "google")
    for name in ("theirs", "ours"):
        assert open_source(tmp_path / name).labels is None
    assert not (tmp_path / "ours" / "labels.txt").exists()


def test_labels_without_a_head_are_none(tmp_path):
    save_google(tmp_path / "google", "BertModel")
    write_labels(tmp_path / "google", LABELS)
    assert ModelDirectory.of(tmp_path / "google").labels == LABELS
    assert open_source(tmp_path / "google").labels is None


def test_labels_of_another_head(tmp_path):
    save_google(tmp_path / "google", "BertForTokenClassification")
    write_labels(tmp_path / "google", [*LABELS, "more"])
    with pytest.raises(UserError, match="4 labels are stored with it, but its head has 3 classes"):
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
    write_labels(tmp_path / "google", LABELS)
    convert(open_source(tmp_path / "google"), tmp_path / "tags", "huggingface")
    config = json.loads((tmp_path / "tags" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert list(config["id2label"].values()) == list(LABELS)
