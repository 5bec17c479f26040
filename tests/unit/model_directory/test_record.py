"""``model.json``: written, read back, damaged, resealed, and beside files that are others."""

import json
import math

import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
from bert_tf.config.declared import settings_of_model, with_settings_of_model
from bert_tf.durable.sealed_json import write_sealed_json
from bert_tf.model_directory.classes import MULTI_LABEL, SINGLE_LABEL, WORD_LABELS, Classes
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.model_directory.record import MODEL_RECORD_NAME, read_record
from bert_tf.tasks.classification.texts import LongTexts
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.util.errors import UserError
from tests.helpers.model_records import set_record
from tests.helpers.small_span_model import CONFIG, write_model
from tests.helpers.small_task_models import write_classifier

CLASSES = Classes(MULTI_LABEL, ("a,b", "日本\n"), (0.25, 0.5))
SETTINGS = {
    "max_seq_length": 20,
    "null_score_diff_threshold": -math.inf,
    "precision_policy": {"dense": "bf16"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def directory(tmp_path, model):
    """The files of a model without its weights."""
    for path in model.iterdir():
        if path.suffix in (".json", ".txt"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_what_is_written_is_read(directory):
    set_record(directory, classes=CLASSES, settings=SETTINGS, chosen_on="12ab")
    found = read_record(directory)
    assert (found.classes, found.chosen_on) == (CLASSES, "12ab")
    assert found.settings == {**SETTINGS, "null_score_diff_threshold": "-inf"}
    answers = with_settings_of_model(AnswerSettings(), found.settings)
    assert answers.null_score_diff_threshold == -math.inf
    assert found.path == directory / MODEL_RECORD_NAME
    assert ModelDirectory.of(directory).kept_settings["max_seq_length"] == 20


def test_every_flipped_byte_is_noticed(directory):
    set_record(directory, classes=CLASSES, settings=SETTINGS)
    path = directory / MODEL_RECORD_NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        if whole[place : place + 1].isspace():
            continue
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match=MODEL_RECORD_NAME):
            read_record(directory)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", {"kind": "other", "labels": [], "thresholds": []}),
        ("classes", {"kind": SINGLE_LABEL}),
        ("classes", 5),
        ("network", {}),
        ("network", None),
        ("files", {"vocab.txt": 5}),
        ("files", []),
        ("settings", 5),
        ("chosen_on", 5),
        ("more", 5),
    ],
)
def test_valid_digests_of_other_content(directory, name, value):
    content = json.loads((directory / MODEL_RECORD_NAME).read_text())
    del content["content_sha256"]
    write_sealed_json(directory / MODEL_RECORD_NAME, {**content, name: value})
    with pytest.raises(UserError, match=f"{MODEL_RECORD_NAME}: .*; restore it, or train the model"):
        read_record(directory)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer_config.json"])
def test_files_that_are_others(directory, name):
    path = directory / name
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-2], lines[-1], lines[-2]]) + b" ")
    with pytest.raises(UserError, match=f"{name} is not the file with which the model was trained"):
        ModelDirectory.of(directory)
    path.write_bytes(whole)
    ModelDirectory.of(directory)


def test_ends_of_lines_may_be_others(directory):
    vocabulary = directory / "vocab.txt"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"\n", b"\r\n"))
    assert ModelDirectory.of(directory).record is not None


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"doc_stride": 0}, "--doc_stride=0 must be at least 1"),
        ({"doc_stride": "8"}, "--doc_stride: '8' is not a int"),
        ({"long_texts": "middle"}, "--long_texts=middle is not one of"),
        ({"long_texts": None}, "--long_texts: None is not a str"),
    ],
)
def test_stored_values_are_checked(stored, sentence):
    with pytest.raises(UserError, match=sentence):
        with_settings_of_model(LongTexts(), stored)
    assert settings_of_model(LongTexts(long_texts="tail")) == {
        "long_texts": "tail",
        "doc_stride": 128,
    }


def test_a_converted_model_keeps_what_decides_its_predictions(tmp_path):
    source = write_classifier(tmp_path / "ours", "several")
    set_record(source, settings={"max_seq_length": 24, "long_texts": "windows"}, chosen_on="ab")
    before = ModelDirectory.of(source)
    convert(open_source(source), tmp_path / "theirs", "huggingface")
    convert(open_source(tmp_path / "theirs"), tmp_path / "back", "bert_tf")
    for name in ("theirs", "back"):
        found = ModelDirectory.of(tmp_path / name)
        assert found.classes == before.classes
        assert found.kept_settings == before.kept_settings
        assert found.record.chosen_on == "ab"


def test_a_hugging_face_directory_whose_classes_were_changed(tmp_path):
    convert(open_source(write_classifier(tmp_path / "ours")), tmp_path / "theirs", "huggingface")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    names = config["id2label"]
    names["0"], names["1"] = names["1"], names["0"]
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"names the classes bad, good, neither, and model\.json"):
        open_source(tmp_path / "theirs")


def test_classes_in_another_order_than_in_training(tmp_path):
    """With a valid digest, as if the file were written by hand."""
    source = write_classifier(tmp_path / "ours")
    classes = ModelDirectory.of(source).classes
    ledger = {"data": {"classes_sha256": classes.digest}}
    (source / "run.json").write_text(json.dumps({"ledger": ledger, "model": CONFIG.to_dict()}))
    ModelDirectory.of(source)
    set_record(source, classes=Classes(SINGLE_LABEL, tuple(reversed(classes.labels))))
    with pytest.raises(UserError, match=r"names other classes than those of the training in .*run"):
        ModelDirectory.of(source)


def test_a_configuration_of_other_layers_than_the_record(tmp_path):
    """Of fewer layers, shapes do not show it: the weights of others are not asked for."""
    source = write_classifier(tmp_path / "ours")
    path = source / "bert_config.json"
    layers = CONFIG.num_hidden_layers
    path.write_text(json.dumps({**CONFIG.to_dict(), "num_hidden_layers": layers + 1}))
    with pytest.raises(UserError, match=f"num_hidden_layers {layers} -> {layers + 1}; restore the"):
        ModelDirectory.of(source)


def test_a_record_that_the_run_names_and_that_is_missing(tmp_path):
    source = write_classifier(tmp_path / "ours")
    run = {"ledger": {}, "model": CONFIG.to_dict(), "model_record": "model.json"}
    (source / "run.json").write_text(json.dumps(run))
    ModelDirectory.of(source)
    (source / "model.json").unlink()
    with pytest.raises(UserError, match=r"ours has no model\.json, which .*run\.json names"):
        ModelDirectory.of(source)


def test_the_record_of_a_model_with_classes_in_one_trained_without(tmp_path):
    source = write_classifier(tmp_path / "ours")
    ledger = {"data": {"classes_sha256": None}}
    (source / "run.json").write_text(json.dumps({"ledger": ledger, "model": CONFIG.to_dict()}))
    with pytest.raises(UserError, match=r"names other classes than those of the training in .*run"):
        ModelDirectory.of(source)


def test_a_file_that_decides_ids_and_is_missing(tmp_path):
    source = write_classifier(tmp_path / "ours")
    ModelDirectory.of(source)
    (source / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer_config\.json is missing, with which the model"):
        ModelDirectory.of(source)


def test_other_classes_than_the_head_has(tmp_path):
    source = write_classifier(tmp_path / "ours")
    set_record(source, classes=Classes(WORD_LABELS, ("O", "B-X")))
    with pytest.raises(UserError, match="2 classes are stored with it, but its head has 3"):
        open_source(source)
