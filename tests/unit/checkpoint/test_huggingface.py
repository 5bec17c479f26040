"""transformers as the oracle: their models computed by us, ours by them, weights bit for bit."""

import json

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
from bert_tf.model_directory.classes import MULTI_LABEL, Classes
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.model_records import classes_in, set_record
from tests.helpers.sentencepiece_models import train_sentencepiece
from tests.unit.checkpoint.tiny_models import (
    CLASSES,
    huggingface_model,
    huggingface_outputs,
    our_outputs,
    save_google,
)

# The others have parts of these.
WRITTEN = ("BertForPreTraining", "BertForSequenceClassification", "DistilBertForQuestionAnswering")


def assert_close(ours, theirs):
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def weights_of(path):
    source = open_source(path)
    return {name: source.read(name) for name in source.stored}


def assert_same_weights(first, second):
    first, second = weights_of(first), weights_of(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("class_name", CLASSES)
def test_their_models_give_the_same_outputs_here(tmp_path, class_name):
    model = huggingface_model(class_name)
    model.save_pretrained(tmp_path)
    assert_close(our_outputs(tmp_path, class_name), huggingface_outputs(model))


@pytest.mark.parametrize(
    ("class_name", "activation"),
    [
        *(
            pytest.param(name, "gelu", marks=[] if name in WRITTEN else pytest.mark.slow)
            for name in CLASSES
        ),
        ("BertForPreTraining", "gelu_erf"),
    ],
)
def test_our_models_give_the_same_outputs_there(tmp_path, class_name, activation):
    save_google(tmp_path / "google", class_name, activation=activation)
    convert(open_source(tmp_path / "google"), tmp_path / "hf", "huggingface")
    model, loading = getattr(transformers, class_name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values()), loading
    assert model.config.architectures == [class_name]
    assert model.config.pad_token_id == 1
    ours = our_outputs(tmp_path / "google", class_name)
    assert_close(ours, huggingface_outputs(model.eval()))


@pytest.mark.parametrize("class_name", CLASSES)
def test_there_and_back_from_hugging_face(tmp_path, class_name):
    huggingface_model(class_name).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs"
    for target in ("google", "nvidia", "bert_tf", "huggingface"):
        convert(open_source(path), tmp_path / target, target)
        path = tmp_path / target
    before = load_file(tmp_path / "theirs/model.safetensors")
    after = load_file(path / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name
    old, new = (json.loads((d / "config.json").read_text()) for d in (tmp_path / "theirs", path))
    for key, value in new.items():
        if key != "torch_dtype":  # transformers writes "dtype" today
            assert old.get(key, value) == value, key


@pytest.mark.parametrize("class_name", CLASSES)
def test_there_and_back_from_google(tmp_path, class_name):
    arrays = save_google(tmp_path / "google", class_name)
    for step, target in enumerate(["huggingface", "nvidia", "huggingface", "bert_tf", "google"]):
        source = open_source(tmp_path / (str(step - 1) if step else "google"))
        convert(source, tmp_path / str(step), target)
    assert_same_weights(tmp_path / "google", tmp_path / "4")
    assert weights_of(tmp_path / "4").keys() == arrays.keys()
    for name in ("bert_config.json", "vocab.txt", "tokenizer_config.json"):
        first, last = (json_or_bytes(tmp_path / d / name) for d in ("google", "4"))
        assert first.items() <= last.items() if isinstance(first, dict) else first == last


def test_the_threshold_of_several_classes_is_kept(tmp_path):
    classes = Classes.of_texts(MULTI_LABEL, ("news", "sports", "town"), 0.375)
    save_google(tmp_path / "google", "BertForSequenceClassification", num_classes=3)
    set_record(tmp_path / "google", classes=classes)
    convert(open_source(tmp_path / "google"), tmp_path / "theirs", "huggingface")
    convert(open_source(tmp_path / "theirs"), tmp_path / "back", "google")
    assert classes_in(tmp_path / "back") == classes


def json_or_bytes(path):
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes()


def test_the_tokenizer_is_the_one_of_the_directory(tmp_path):
    save_google(tmp_path / "google", "BertModel")
    convert(open_source(tmp_path / "google"), tmp_path / "hf", "huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert (tokenizer.init_kwargs["do_lower_case"], tokenizer.model_max_length) == (False, 16)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "w0"]) == [1, 5]


def test_a_casing_that_nothing_records_is_inferred_and_told(tmp_path):
    save_google(tmp_path / "google", "BertModel")
    (tmp_path / "google/tokenizer_config.json").unlink()
    lines = convert(open_source(tmp_path / "google"), tmp_path / "hf", "huggingface")
    told = "nothing records whether the vocabulary is lower-cased; it is taken as lower-cased"
    assert any(line.startswith(told) for line in lines)
    assert open_source(tmp_path / "hf").files.tokenizer_files.do_lower_case is True


def test_a_sentencepiece_model_without_an_equal_is_kept_and_told(tmp_path):
    path = train_sentencepiece(tmp_path / "spm.model", model_type="bpe")
    files = TokenizerFiles(spm_model_file=path, do_lower_case=False)
    save_google(tmp_path / "google", "BertModel", tokenizer_files=files)
    lines = convert(open_source(tmp_path / "google"), tmp_path / "hf", "huggingface")
    told = [line for line in lines if line.startswith("warning: tokenizer.json is left out")]
    assert len(told) == 1
    assert "it is a BPE model rather than a unigram model; encode texts by other means" in told[0]
    assert not (tmp_path / "hf/tokenizer.json").exists()
    assert (tmp_path / "hf/spm.model").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gelu_erf", ["gelu", "gelu_python"]),
        ("gelu_tanh", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"]),
        ("relu", ["relu"]),
    ],
)
def test_activations_by_name(tmp_path, theirs, ours):
    by_us = None
    for name in theirs:
        model = huggingface_model("BertForMaskedLM", activation=name)
        model.save_pretrained(tmp_path / name)
        assert open_source(tmp_path / name).config.hidden_act == ours
        by_us = by_us or our_outputs(tmp_path / name, "BertForMaskedLM")
        assert_close(by_us, huggingface_outputs(model))


def test_the_two_gelus_are_told_apart_by_these_tests(tmp_path):
    """With the other form the outputs would differ by far more than the tolerance above."""
    exact = huggingface_outputs(huggingface_model("BertModel", activation="gelu"))
    tanh = huggingface_outputs(huggingface_model("BertModel", activation="gelu_new"))
    assert np.abs(exact["last_hidden_state"] - tanh["last_hidden_state"]).max() > 1e-4
