"""DistilBERT, a network without token types and pooler: what is read, written and refused."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
import transformers
from safetensors.torch import save_file

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import check_initial
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.model.bert import bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import write_model_files
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.pretraining.mask_filler import MaskFiller
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.small_vocabulary import load_tokenizer
from tests.unit.checkpoint.tiny_models import (
    SIZES,
    huggingface_model,
    huggingface_outputs,
    our_outputs,
    save_google,
)

CONFIG = BertConfig(**{**SIZES, "type_vocab_size": 0}, hidden_act="gelu_erf")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(name="masked_lm", scope="module")
def masked_lm_model():
    return huggingface_model("DistilBertForMaskedLM")


def weights_of(path):
    source = open_source(path)
    return {name: source.read(name) for name in source.stored}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


def write(directory, model, state, *, file="model.safetensors"):
    """A directory with the model's configuration and these weights."""
    directory.mkdir()
    model.config.save_pretrained(directory)
    state = {name: value.clone() for name, value in state.items()}
    (save_file if file.endswith("safetensors") else torch.save)(state, directory / file)
    return directory


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "weights.pt"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_names_of_a_model_with_a_head(tmp_path, masked_lm, file, prefix):
    masked_lm.save_pretrained(tmp_path / "saved")
    state = {f"{prefix}{name}": value for name, value in masked_lm.state_dict().items()}
    # Older versions saved the numbers of the positions.
    state[f"{prefix}distilbert.embeddings.position_ids"] = torch.arange(16)[None]
    path = write(tmp_path / "other", masked_lm, state, file=file)
    assert_same(weights_of(path), weights_of(tmp_path / "saved"))
    assert {spec.name for spec in pretraining_specs(CONFIG, next_sentence=False)} == set(
        open_source(path).stored
    )


@pytest.mark.parametrize("prefix", ["", "module.", "distilbert."])
def test_the_names_of_the_bare_network(tmp_path, masked_lm, prefix):
    bare = masked_lm.distilbert.state_dict()
    assert "transformer.layer.0.ffn.lin1.weight" in bare
    path = write(tmp_path / "bare", masked_lm, {f"{prefix}{n}": v for n, v in bare.items()})
    found = weights_of(path)
    assert found.keys() == {spec.name for spec in bert_specs(CONFIG, pooler=False)}
    kernel = masked_lm.distilbert.transformer.layer[1].ffn.lin1.weight.detach().numpy().T
    np.testing.assert_array_equal(found["bert/encoder/layer_1/intermediate/dense/kernel"], kernel)


def test_a_computed_table_of_positions_is_read_as_it_is(tmp_path):
    model = huggingface_model("DistilBertForMaskedLM", sinusoidal_pos_embds=True)
    table = model.distilbert.embeddings.position_embeddings.weight
    places, halves = np.arange(16)[:, None], np.arange(6)
    angles = places / 10000 ** (2 * halves / 12)
    computed = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(16, 12)
    with torch.no_grad():
        table.copy_(torch.tensor(computed))
    model.save_pretrained(tmp_path / "theirs")
    name = "bert/embeddings/position_embeddings"
    found = open_source(tmp_path / "theirs").read(name)
    np.testing.assert_array_equal(found, computed.astype(np.float32))
    expected = huggingface_outputs(model)["logits"]
    logits = our_outputs(tmp_path / "theirs", "DistilBertForMaskedLM")["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    convert(open_source(tmp_path / "theirs"), tmp_path / "ours", "huggingface")
    again = transformers.DistilBertForMaskedLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    ).eval()
    np.testing.assert_array_equal(huggingface_outputs(again)["logits"], expected)


def vocabulary(directory):
    entries = [*SPECIAL, *(f"w{number}" for number in range(35))]
    (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries))
    return load_tokenizer(vocab_file=directory / "vocab.txt")


def test_an_untied_masked_lm_head_is_left_out_and_cannot_fill_masks(tmp_path):
    model = huggingface_model("DistilBertForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "untied")
    source = open_source(tmp_path / "untied")
    assert source.notes == (
        "warning: vocab_projector.weight differs from distilbert.embeddings.word_embeddings.weight;"
        " this network uses one for both, so the masked-LM head is left out",
    )
    assert not any(name.startswith("cls/") for name in source.stored)
    assert "vocab_transform.weight" in source.stored
    with pytest.raises(UserError, match="has no masked-LM head"):
        MaskFiller(source.config, vocabulary(tmp_path), tmp_path / "untied")
    check_initial(tmp_path / "untied", shapes_of(bert_specs(CONFIG, pooler=False)), config=CONFIG)


def test_a_head_that_is_tied_by_its_values_is_read(tmp_path):
    model = huggingface_model("DistilBertForMaskedLM", tie_word_embeddings=False)
    with torch.no_grad():
        model.vocab_projector.weight.copy_(model.distilbert.embeddings.word_embeddings.weight)
    model.save_pretrained(tmp_path / "tied")
    source = open_source(tmp_path / "tied")
    assert not source.notes
    assert "vocab_projector.weight" not in source.stored
    expected = huggingface_outputs(model)["logits"]
    logits = our_outputs(tmp_path / "tied", "DistilBertForMaskedLM")["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_their_head_for_classes_of_a_text_is_not_taken_for_ours(tmp_path):
    model = huggingface_model("DistilBertForSequenceClassification")
    model.save_pretrained(tmp_path / "theirs")
    lines = convert(open_source(tmp_path / "theirs"), tmp_path / "ours", "bert_tf")
    assert (
        "4 of the checkpoint, unused: classifier.bias, classifier.weight, pre_classifier.bias, "
        "pre_classifier.weight"
    ) in lines
    assert (
        "warning: pre_classifier is a layer of DistilBERT's text classification head, in place of "
        "which this network has BERT's pooler, so the head is left out"
    ) in lines
    found = open_source(tmp_path / "ours").stored.keys()
    assert found == {spec.name for spec in bert_specs(CONFIG, pooler=False)}


def test_a_written_directory_describes_the_same_network(tmp_path):
    config = dataclasses.replace(
        CONFIG,
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.3,
        initializer_range=0.05,
    )
    save_as_ours(tmp_path / "ours", config, SpanTask(config).specs())
    convert(open_source(tmp_path / "ours"), tmp_path / "theirs", "huggingface")
    assert json.loads((tmp_path / "theirs/config.json").read_text()) == {
        "activation": "gelu_new",
        "architectures": ["DistilBertForQuestionAnswering"],
        "attention_dropout": 0.3,
        "dim": 12,
        "dropout": 0.2,
        "hidden_dim": 20,
        "initializer_range": 0.05,
        "max_position_embeddings": 16,
        "model_type": "distilbert",
        "n_heads": 3,
        "n_layers": 2,
        "pad_token_id": 0,
        "sinusoidal_pos_embds": False,
        "torch_dtype": "float32",
        "vocab_size": 40,
    }
    assert open_source(tmp_path / "theirs").config == config
    assert_same(weights_of(tmp_path / "theirs"), weights_of(tmp_path / "ours"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert dict(tokenizer("W0 w1")) == {"input_ids": [2, 5, 6, 3], "attention_mask": [1, 1, 1, 1]}


def save_as_ours(directory, config, specs):
    """A model directory of this toolkit with random weights."""
    directory.mkdir()
    generator = np.random.default_rng(5)
    arrays = {spec.name: generator.normal(0, 0.5, spec.shape).astype("f4") for spec in specs}
    write_checkpoint(str(directory / "model.ckpt-1"), arrays)
    tf.train.update_checkpoint_state(str(directory), "model.ckpt-1")
    vocabulary(directory)
    files = TokenizerFiles(directory / "vocab.txt", do_lower_case=True)
    write_model_files(directory, config, files)
    return directory


def test_a_pooler_has_no_place_and_is_named(tmp_path):
    ours = save_as_ours(tmp_path / "ours", CONFIG, pretraining_specs(CONFIG))
    lines = convert(open_source(ours), tmp_path / "theirs", "huggingface")
    assert (
        "4 of these left out, since DistilBERT, Hugging Face's form of a network without token "
        "types, has no pooler: bert/pooler/dense/kernel, bert/pooler/dense/bias, "
        "cls/seq_relationship/output_weights, cls/seq_relationship/output_bias"
    ) in lines
    assert weights_of(tmp_path / "theirs").keys() == {
        spec.name for spec in pretraining_specs(CONFIG, next_sentence=False)
    }
    model, loading = transformers.DistilBertForMaskedLM.from_pretrained(
        tmp_path / "theirs", output_loading_info=True
    )
    assert not any(loading.values()), loading
    assert model.config.architectures == ["DistilBertForMaskedLM"]


def test_our_head_for_classes_of_a_text_has_no_place(tmp_path):
    specs = ClassificationTask(CONFIG, num_classes=3).specs()
    ours = save_as_ours(tmp_path / "ours", CONFIG, specs)
    with pytest.raises(UserError, match=r"DistilBERT, .* has no pooler for that head; convert"):
        convert(open_source(ours), tmp_path / "theirs", "huggingface")
    assert not (tmp_path / "theirs").exists()
    convert(open_source(ours), tmp_path / "again", "bert_tf")
    assert_same(weights_of(tmp_path / "again"), weights_of(ours))


@pytest.mark.parametrize("target", ["google", "nvidia"])
def test_the_code_of_others_is_warned_of(tmp_path, masked_lm, target):
    masked_lm.save_pretrained(tmp_path / "theirs")
    lines = convert(open_source(tmp_path / "theirs"), tmp_path / "out", target)
    assert (
        "warning: the model has no token types (type_vocab_size 0), and Google's and NVIDIA's code "
        "cannot build a network without them"
    ) in lines
    assert json.loads((tmp_path / "out/bert_config.json").read_text())["type_vocab_size"] == 0
    assert_same(weights_of(tmp_path / "out"), weights_of(tmp_path / "theirs"))


def shapes_of(specs):
    return {spec.name: spec.shape for spec in specs}


def test_token_types_are_neither_ignored_nor_made_up(tmp_path, masked_lm):
    masked_lm.save_pretrained(tmp_path / "distilbert")
    save_google(tmp_path / "bert", "BertForPreTraining", activation="gelu_erf")
    with_types = BertConfig(**SIZES, hidden_act="gelu_erf")
    words = "cannot start from .*: it has bert/embeddings/token_type_embeddings, but the network's"
    with pytest.raises(UserError, match=f"{words} type_vocab_size is 0"):
        check_initial(tmp_path / "bert", shapes_of(SpanTask(CONFIG).specs()[:-2]), config=CONFIG)
    with pytest.raises(UserError, match="it lacks bert/embeddings/token_type_embeddings"):
        shapes = shapes_of(SpanTask(with_types).specs()[:-2])
        check_initial(tmp_path / "distilbert", shapes, config=with_types)
    path = tmp_path / "bert/bert_config.json"
    path.write_text(path.read_text().replace('"type_vocab_size": 2', '"type_vocab_size": 0'))
    with pytest.raises(UserError, match=r"cannot convert .*: it has bert/embeddings/token_type"):
        convert(open_source(tmp_path / "bert"), tmp_path / "out", "huggingface")


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_activations(tmp_path, activation):
    model = huggingface_model("DistilBertForMaskedLM", activation=activation)
    model.save_pretrained(tmp_path)
    expected = huggingface_outputs(model)["logits"]
    logits = our_outputs(tmp_path, "DistilBertForMaskedLM")["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
