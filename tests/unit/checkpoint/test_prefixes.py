"""A network whose names all have a prefix, as other programs' wrappers add them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
from safetensors.torch import save_file

from bert_tf.checkpoint.formats import _lacks_scope, open_source, prefix_of
from bert_tf.checkpoint.loading import initialise_from_checkpoint
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.inference.predictor import Predictor
from bert_tf.model.config import BertConfig
from bert_tf.model.variables import create_variables
from bert_tf.tasks.vectors.task import VectorTask
from bert_tf.util.errors import UserError
from tests.helpers.forward_passes import pretraining_specs
from tests.unit.checkpoint.tiny_models import SIZES, huggingface_model, save_google

HEADED = ("_orig_mod.", "model.", "bert.", "module.", "_orig_mod.module.", "0.", "net.student.")
BARE = ("0.auto_model.", "model.", "_orig_mod.", "encoder.", "bert._orig_mod.", "model.sbert.")
DISTILLED = ("_orig_mod.", "model.", "0.auto_model.")


def values_of(source):
    return {name: source.read(name) for name in source.stored}


def assert_same_but_for_the_prefix(directory, expected, prefix):
    source = open_source(directory)
    found = values_of(source)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert source.notes == (
        f"the network's variables are stored under the prefix {prefix}, which is left out",
    )


@pytest.mark.parametrize(
    ("class_name", "prefix"),
    [
        *(("BertForPreTraining", prefix) for prefix in HEADED),
        *(("BertModel", prefix) for prefix in BARE),
        *(("DistilBertModel", prefix) for prefix in DISTILLED),
        *(("DistilBertForMaskedLM", prefix) for prefix in DISTILLED),
    ],
)
@pytest.mark.parametrize("file_name", ["model.safetensors", "pytorch_model.bin"])
def test_one_prefix_is_left_out_and_named(tmp_path, class_name, prefix, file_name):
    model = huggingface_model(class_name)
    model.save_pretrained(tmp_path)
    expected = values_of(open_source(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    state = {f"{prefix}{name}": value.clone() for name, value in model.state_dict().items()}
    write = save_file if file_name.endswith("safetensors") else torch.save
    write(state, tmp_path / file_name)
    assert_same_but_for_the_prefix(tmp_path, expected, prefix)


@pytest.mark.parametrize("prefix", ["bert/", "module/", "tower_0/model/"])
def test_one_prefix_of_a_tensorflow_checkpoint(tmp_path, prefix):
    arrays = save_google(tmp_path / "google", "BertForPreTraining")
    stored = {f"{prefix}{name}": value for name, value in arrays.items()}
    bias = "bert/pooler/dense/bias"
    slots = {f"{prefix}{bias}/adam_m": np.ones(12, np.float32), "global_step": np.int64(9)}
    write_checkpoint(str(tmp_path / "google/bert_model.ckpt"), {**stored, **slots})
    expected = {**arrays, f"{bias}/adam_m": slots[f"{prefix}{bias}/adam_m"], "global_step": 9}
    assert_same_but_for_the_prefix(tmp_path / "google", expected, prefix)
    config = BertConfig(**SIZES)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create_variables(pretraining_specs(config), initializer_range=0.02).all()
        report = initialise_from_checkpoint(tmp_path / "google", variables)
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(variables[0]), arrays[variables[0].op.name])
    assert report.run_state == (f"{bias}/adam_m", "global_step")


@pytest.mark.parametrize("prefix", ["", "module/", "my_bert/"])
def test_the_scope_of_a_tensorflow_checkpoint_may_be_missing(tmp_path, prefix):
    arrays = save_google(tmp_path / "google", "BertForPreTraining")
    bias = "bert/pooler/dense/bias"
    arrays = {**arrays, f"{bias}/adam_m": np.ones(12, np.float32), "global_step": np.int64(9)}
    stored = {f"{prefix}{name.removeprefix('bert/')}": value for name, value in arrays.items()}
    if prefix:
        stored["global_step"] = stored.pop(f"{prefix}global_step")
    write_checkpoint(str(tmp_path / "google/bert_model.ckpt"), stored)
    source = open_source(tmp_path / "google")
    found = values_of(source)
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    [*others, last] = source.notes
    assert last == "the network's variables are stored without the scope bert/, which is added"
    assert len(others) == bool(prefix)


@pytest.mark.parametrize(
    "stored",
    [
        ["embeddings/word_embeddings", "bert/embeddings/word_embeddings"],
        ["pooler/dense/kernel", "bert/embeddings/word_embeddings"],
        ["encoder/layer_0/output/dense/kernel"],
    ],
)
def test_a_scope_is_added_if_no_variable_has_it(stored):
    assert not _lacks_scope(stored)


WORDS, KERNEL = "embeddings.word_embeddings.weight", "encoder.layer.0.output.dense.weight"


@pytest.mark.parametrize(
    ("stored", "prefix"),
    [
        ([f"bert.{WORDS}", f"bert.{KERNEL}"], ""),
        ([WORDS, KERNEL], ""),
        ([f"model.{WORDS}", f"model.{KERNEL}", "classifier.weight", "loss.weight"], "model."),
        ([f"student.{WORDS}", f"teacher.{WORDS}"], ""),
        ([f"bert.{WORDS}", f"ema.bert.{WORDS}"], ""),
        ([f"model.{WORDS}", KERNEL], ""),
        ([f"model.bert.{WORDS}", "model.classifier.weight", "classifier.weight"], ""),
        ([f"mybert.{WORDS}"], "mybert."),
        ([f"roberta.{WORDS}", f"roberta.{KERNEL}"], ""),
        ([f"model.electra.{WORDS}"], ""),
        (["bert/bert/embeddings/word_embeddings", "bert/cls/predictions/output_bias"], "bert/"),
        (["module/bert/embeddings/word_embeddings", "bert/pooler/dense/bias"], ""),
        (["bert/embeddings/word_embeddings", "generator/bert/encoder/layer_0/x"], ""),
        (["conv.weight"], ""),
        (["embeddings/word_embeddings", "encoder/layer_0/output/dense/kernel"], ""),
        (["m/embeddings/word_embeddings", "encoder/layer_0/output/dense/kernel"], ""),
        (["m/embeddings/word_embeddings", "cls/predictions/output_bias"], "m/"),
        (["electra/embeddings/word_embeddings"], ""),
    ],
)
def test_a_prefix_is_taken_if_there_is_one_network(stored, prefix):
    assert prefix_of(stored) == prefix


@pytest.fixture(name="two_networks")
def directory_of_two_networks(tmp_path):
    model = huggingface_model("BertModel")
    model.save_pretrained(tmp_path / "two")
    state = model.state_dict().items()
    both = {f"{who}.{name}": value.clone() for who in ("ema", "raw") for name, value in state}
    save_file(both, tmp_path / "two/model.safetensors")
    return tmp_path / "two"


def test_other_names_are_shown_and_the_configuration_is_not_blamed(two_networks, tmp_path):
    source = open_source(two_networks)

    def train():
        variables = create_variables(pretraining_specs(source.config), initializer_range=0.02)
        initialise_from_checkpoint(two_networks, variables.all())

    def predict():
        Predictor(VectorTask(source.config, (0,), ("mean",), False), two_networks)

    def write():
        convert(source, tmp_path / "new", "google")

    for action in (train, predict, write):
        with tf.Graph().as_default(), pytest.raises(UserError) as error:
            action()
        message = str(error.value)
        assert "it lacks bert/embeddings/word_embeddings, " in message
        assert "but has ema.embeddings.LayerNorm.bias, ema.embeddings" in message
        assert message.endswith("give a file with the variables of one BERT network.")
        assert "config" not in message.replace(str(tmp_path), "")


def test_predictions_name_the_prefix(tmp_path, capsys):
    model = huggingface_model("BertModel")
    model.save_pretrained(tmp_path / "lightning")
    state = {f"model.{name}": value.clone() for name, value in model.state_dict().items()}
    save_file(state, tmp_path / "lightning/model.safetensors")
    source = open_source(tmp_path / "lightning")
    Predictor(VectorTask(source.config, (0,), ("mean",), False), tmp_path / "lightning")
    assert "under the prefix model., which" in capsys.readouterr().err
