import json
import math

import pytest

from bert_tf.model.config import ACTIVATIONS, BertConfig, read_config
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

RELEASED = ROOT / "tests/data/uncased_L-8_H-512_A-8.bert_config.json"


def test_defaults_are_those_of_bert_base():
    # google-research/bert, modeling.py: the defaults of BertConfig.__init__.
    assert BertConfig(vocab_size=30522).to_dict() == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        "initializer_range": 0.02,
    }


def test_json_round_trip(tmp_path):
    config = BertConfig(vocab_size=11, hidden_size=6, num_attention_heads=3, hidden_act="relu")
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(config.to_dict()))
    assert BertConfig.from_json_file(path) == config


def test_reads_a_released_config():
    config = BertConfig.from_json_file(RELEASED)
    assert (config.hidden_size, config.num_hidden_layers, config.type_vocab_size) == (512, 8, 2)


def test_keys_of_the_multilingual_release_are_accepted_and_have_no_effect():
    extra = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_type": "first_token_transform",
    }
    assert BertConfig.from_dict({"vocab_size": 9, **extra}) == BertConfig(vocab_size=9)


def test_unknown_key_names_key_file_and_nearest_known_key(tmp_path):
    path = tmp_path / "typo.json"
    path.write_text('{"vocab_size": 9, "hiden_size": 8}')
    with pytest.raises(UserError) as error:
        BertConfig.from_json_file(path)
    assert str(error.value) == (
        f"model configuration {path}: unknown key 'hiden_size'; did you mean 'hidden_size'?"
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hiden_size", "hidden_size"),
        ("hiddenSize", "hidden_size"),
        ("HIDDEN_SIZE", "hidden_size"),
        ("vocabsize", "vocab_size"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("num_layers", "num_hidden_layers"),
        ("num_heads", "num_attention_heads"),
        ("num-attention-heads", "num_attention_heads"),
        ("hidden_dropout", "hidden_dropout_prob"),
        ("attention_dropout", "attention_probs_dropout_prob"),
        ("type_vocab", "type_vocab_size"),
        ("max_position_embedding", "max_position_embeddings"),
        ("intermediate_sise", "intermediate_size"),
        ("initialiser_range", "initializer_range"),
    ],
)
def test_a_misspelt_key_is_refused(key, meant):
    with pytest.raises(UserError, match=f"unknown key '{key}'; did you mean '{meant}'"):
        BertConfig.from_dict({"vocab_size": 9, key: 8})


def test_keys_of_other_programs_are_named_and_ignored(tmp_path):
    others = [
        "attention_type",
        "classifier_dropout",
        "classifier_dropout_prob",
        "embedding_size",
        "finetuning_task",
        "gradient_checkpointing",
        "hidden_size_per_head",
        "label2id",
        "net_structure_type",
        "num_hidden_groups",
        "num_labels",
        "output_all_encoded_layers",
        "output_past",
        "pad_token_id",
        "pooler_activation",
        "use_cache",
    ]
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({"vocab_size": 9, "pooler_type": "x", **dict.fromkeys(others, 1)}))
    assert BertConfig.from_json_file(path) == BertConfig(vocab_size=9)
    assert read_config(path)[1] == [
        f"warning: {path} has keys that this network ignores: {', '.join(others)}"
    ]


def test_known_keys_give_no_notes(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({**BertConfig(vocab_size=9).to_dict(), "pooler_type": "x"}))
    assert read_config(path)[1] == []
    assert read_config(write_theirs(tmp_path))[1] == []
    [note] = read_config(write_theirs(tmp_path, layer_norm_eps=1e-5))[1]
    assert "layer_norm_eps 1e-05" in note


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 10}, ["hidden_size 10", "num_attention_heads 12"]),
        ({"hidden_size": 0}, ["hidden_size", "positive", "0"]),
        ({"num_hidden_layers": -1}, ["num_hidden_layers", "-1"]),
        ({"vocab_size": 100.0}, ["vocab_size", "100.0"]),
        ({"vocab_size": True}, ["vocab_size", "True"]),
        ({"intermediate_size": "big"}, ["intermediate_size", "'big'"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "1.0"]),
        ({"attention_probs_dropout_prob": -0.1}, ["attention_probs_dropout_prob", "-0.1"]),
        ({"hidden_dropout_prob": None}, ["hidden_dropout_prob", "None"]),
        ({"hidden_act": "swish"}, ["swish", "gelu_erf"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act"]),
        ({"initializer_range": 0}, ["initializer_range"]),
        ({"initializer_range": math.nan}, ["initializer_range", "nan"]),
        ({"initializer_range": math.inf}, ["initializer_range", "inf"]),
        ({"hidden_dropout_prob": math.nan}, ["hidden_dropout_prob", "nan"]),
        ({"vocab_size": 1e9}, ["vocab_size", "1000000000.0"]),
        ({"vocab_size": math.inf}, ["vocab_size", "inf"]),
        ({"vocab_size": 10**200}, ["vocab_size", "not be more than 2147483647"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "not be more than 10000"]),
        ({"vocab_size": "9" * 10_000}, ["vocab_size", "..."]),
    ],
)
def test_bad_values_are_refused_in_one_sentence(tmp_path, values, words):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"vocab_size": 100, **values}))
    with pytest.raises(UserError) as error:
        BertConfig.from_json_file(path)
    message = str(error.value)
    assert message.count("\n") == 0
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize("text", ["{}", "[]", "{", "3"])
def test_files_without_a_config_are_refused(tmp_path, text):
    path = tmp_path / "empty.json"
    path.write_text(text)
    with pytest.raises(UserError, match=str(path)):
        BertConfig.from_json_file(path)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_known_activations_are_accepted(activation):
    assert BertConfig(vocab_size=5, hidden_act=activation).hidden_act == activation


THEIRS = {
    "architectures": ["BertForMaskedLM"],
    "hidden_act": "gelu",
    "hidden_size": 24,
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "pad_token_id": 0,
    "transformers_version": "4.5.1",
    "vocab_size": 9,
}


def write_theirs(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**THEIRS, **changes}))
    return path


def test_gelu_means_different_functions_in_the_two_formats(tmp_path):
    assert BertConfig.from_json_file(write_theirs(tmp_path)) == BertConfig(
        vocab_size=9, hidden_size=24, hidden_act="gelu_erf", type_vocab_size=2
    )
    assert BertConfig.from_dict({"vocab_size": 9}).with_explicit_gelu().hidden_act == "gelu_tanh"
    exact = BertConfig(vocab_size=9, hidden_act="gelu_erf")
    assert exact.with_explicit_gelu() == exact


# distilbert-base-uncased, as published; the first releases had no model_type.
DISTILBERT = {
    "activation": "gelu",
    "attention_dropout": 0.2,
    "dim": 24,
    "dropout": 0.3,
    "hidden_dim": 48,
    "initializer_range": 0.05,
    "max_position_embeddings": 64,
    "model_type": "distilbert",
    "n_heads": 4,
    "n_layers": 3,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": 9,
}


@pytest.mark.parametrize("stated", [True, False])
def test_keys_of_distilbert(tmp_path, stated):
    values = {k: v for k, v in DISTILBERT.items() if stated or k != "model_type"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "layer_norm_eps": 1e-5, "type_vocab_size": 2}))
    config, notes = read_config(path)
    assert config == BertConfig(
        vocab_size=9,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_act="gelu_erf",
        hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.2,
        max_position_embeddings=64,
        type_vocab_size=0,
        initializer_range=0.05,
    )
    assert not notes, "transformers' DistilBERT does not read layer_norm_eps"


def test_defaults_of_distilbert(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "distilbert"}))
    assert BertConfig.from_json_file(path) == BertConfig(
        vocab_size=30522, num_hidden_layers=6, type_vocab_size=0, hidden_act="gelu_erf"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 25}, "dim 25 is not a multiple of n_heads 4"),
        ({"n_layers": 0}, "n_layers must be a positive whole number, not 0"),
        ({"dropout": 1}, "dropout must be a number in [0, 1), not 1"),
        ({"activation": "silu"}, "activation 'silu' is not supported, only gelu,"),
        ({"hidden_dim": 10**9}, "hidden_dim 1000000000, max_position_embeddings 64"),
    ],
)
def test_a_distilbert_that_cannot_be_built_is_described_by_its_own_keys(tmp_path, changes, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DISTILBERT, **changes}))
    with pytest.raises(UserError) as error:
        BertConfig.from_json_file(path)
    assert words in str(error.value)
    assert str(error.value).startswith(f"model configuration {path}: ")


def test_a_network_may_have_no_token_types():
    assert BertConfig(vocab_size=9, type_vocab_size=0).to_dict()["type_vocab_size"] == 0
    with pytest.raises(UserError, match=r"type_vocab_size must be a whole number of at least 0, n"):
        BertConfig(vocab_size=9, type_vocab_size=-1)


@pytest.mark.parametrize("mark", ["architectures", "model_type", "transformers_version"])
def test_a_single_hugging_face_key_is_enough(tmp_path, mark):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"vocab_size": 9, "hidden_act": "gelu", mark: THEIRS[mark]}))
    assert BertConfig.from_json_file(path).hidden_act == "gelu_erf"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta' is not supported; give a model of type"),
        ({"model_type": ["bert"]}, "model_type ['bert'] is not supported"),
        ({"position_embedding_type": "relative_key"}, "'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder is set; only encoders"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported, only gelu,"),
        ({"hidden_act": ["gelu"]}, "hidden_act ['gelu'] is not supported"),
        ({"hidden_size": 25}, "hidden_size 25 is not a multiple"),
    ],
)
def test_other_hugging_face_networks_are_refused(tmp_path, changes, words):
    path = write_theirs(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        BertConfig.from_json_file(path)
    assert words in str(error.value)
    assert str(error.value).startswith(f"model configuration {path}: ")


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"vocab_size": 10**9}, 768 * 4e9 / 2**30),
        ({"hidden_size": 10**9, "num_attention_heads": 10}, 12 * 4 * 4e18 / 2**30),
        ({"max_position_embeddings": 10**9}, 768 * 4e9 / 2**30),
        ({"type_vocab_size": 10**9}, 768 * 4e9 / 2**30),
        ({"intermediate_size": 10**9}, 12 * 2 * 768 * 4e9 / 2**30),
        ({"num_hidden_layers": 10**4, "hidden_size": 7680}, 10**4 * 4 * 7680**2 * 4 / 2**30),
    ],
)
def test_networks_larger_than_memory_are_refused(tmp_path, changes, gib):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({"vocab_size": 100, **changes}))
    with pytest.raises(UserError) as error:
        BertConfig.from_json_file(path)
    message = str(error.value)
    assert message.startswith(f"model configuration {path}: its weights take ")
    said = float(message.split(" GiB")[0].rpartition(" ")[2].replace(",", ""))
    assert gib - 1 < said < gib * 1.3
    for name, value in changes.items():
        assert f"{name} {value}" in message or name == "num_attention_heads"


def test_the_largest_released_network_fits(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.model.config.memory_bytes", lambda: 4 * 340_000_000)
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({"vocab_size": 30522, **large, "intermediate_size": 4096}))
    assert BertConfig.from_json_file(path).hidden_size == 1024
    monkeypatch.setattr("bert_tf.model.config.memory_bytes", lambda: 4 * 330_000_000)
    with pytest.raises(UserError, match="take 1 GiB, and this machine has 1 GiB"):
        BertConfig.from_json_file(path)


def test_sequences_longer_than_the_positions_are_refused():
    config = BertConfig(vocab_size=11, max_position_embeddings=8)
    config.check_length(8, "--text has 8 tokens,")
    sentence = "--text has 9 tokens, more than the model's max_position_embeddings=8; shorten it."
    with pytest.raises(UserError, match=f"^{sentence}$"):
        config.check_length(9, "--text has 9 tokens,", advice="shorten it")
