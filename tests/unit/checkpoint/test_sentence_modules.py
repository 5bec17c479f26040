"""Directories of sentence-transformers: what is read, kept by convert, and refused."""

import json

import numpy as np
import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.sentence_modules import read_sentence_modules
from bert_tf.commands.convert import convert
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.util.errors import UserError
from tests.helpers.sentence_models import sentence_vectors, write_json, write_sentence_model

PROMPTS = {"prompts": {"query": "w1 w2 ", "document": ""}, "default_prompt_name": "query"}


@pytest.mark.parametrize("formats", [("huggingface",), ("google", "huggingface"), ("bert_tf",)])
def test_convert_keeps_all_of_it(tmp_path, formats):
    path = write_sentence_model(
        tmp_path / "0",
        pooling=("cls", "mean"),
        dense=[(7, "activation.Tanh"), (5, "linear.Identity")],
        normalize=True,
        texts={"max_seq_length": 8, "do_lower_case": True},
        prompts={**PROMPTS, "similarity_fn_name": "cosine"},
    )
    expected = sentence_vectors(path, ["W3 w7", "w1 w5 w9"], length=8, prompt="w1 w2 ", lower=True)
    for number, name in enumerate(formats, start=1):
        source, path = open_source(path), tmp_path / str(number)
        lines = convert(source, path, name)
        assert "1_Pooling, 2_Dense, 3_Dense, 4_Normalize" in lines[-1]
    found = TextEncoder(find_model(path)).encode(["W3 w7", "w1 w5 w9"])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for file in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        assert json.loads((path / file).read_text()) == json.loads(
            (tmp_path / "0" / file).read_text()
        )


def test_a_network_in_a_directory_of_its_own(tmp_path):
    """Earlier versions have ``0_Transformer``; what convert writes is like that of later ones."""
    whole = write_sentence_model(tmp_path / "whole", normalize=True)
    expected = sentence_vectors(whole, ["w3 w7"])
    modules = json.loads((whole / "modules.json").read_text())
    (whole / "0_Transformer").mkdir()
    for file in list(whole.glob("*.*")):
        if file.name != "modules.json":
            file.rename(whole / "0_Transformer" / file.name)
    modules[0]["path"] = "0_Transformer"
    write_json(whole / "modules.json", modules)
    convert(open_source(whole / "0_Transformer"), tmp_path / "new", "google")
    for path in (whole / "0_Transformer", tmp_path / "new"):
        found = TextEncoder(find_model(path)).encode(["w3 w7"])
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", ("mean",)),
        (["mean_sqrt_len_tokens", "cls"], ("mean_sqrt_len", "cls")),
        (["lasttoken"], ("lasttoken",)),
    ],
)
def test_files_of_version_6(tmp_path, mode, expected):
    types = "sentence_transformers.sentence_transformer.modules.{0}"
    texts = {"transformer_task": "feature-extraction"}
    path = write_sentence_model(tmp_path / "model", normalize=True, types=types, texts=texts)
    settings = {"embedding_dimension": 12, "pooling_mode": mode, "include_prompt": True}
    write_json(path / "1_Pooling/config.json", settings)
    found = read_sentence_modules(path)
    assert (found.pooling, found.normalize, found.max_seq_length) == (expected, True, 14)


def test_other_directories_say_nothing(tmp_path):
    path = write_sentence_model(tmp_path / "model")
    assert read_sentence_modules(path) is not None
    assert read_sentence_modules(path / "model.safetensors") is not None
    (path / "modules.json").rename(path.parent / "modules.json")
    assert read_sentence_modules(path) is None


CHANGES = {
    "modules.json": [
        ({}, "it must be a list of modules"),
        ([{"type": 5}], "it must be a list of modules"),
        ([{"type": "a.Transformer", "path": "../x"}], "'../x' is not a directory in its own"),
    ],
    "1_Pooling/config.json": [
        ({"pooling_mode": "first"}, "the pooling 'first' is not known here"),
        ({"pooling_mode": [5]}, "the pooling '5' is not known here"),
        ({"pooling_mode_new_tokens": True}, "the pooling 'pooling_mode_new_tokens' is not known"),
        ({"pooling_mode": "cls", "include_prompt": False}, "include_prompt is false"),
        ([], "is not a JSON object"),
    ],
    "2_Dense/config.json": [
        ({"activation_function": "my.Tanh"}, "the activation 'my.Tanh' is not known here"),
        ({"in_features": 12, "out_features": 8}, "they are not the layer of"),
        ({"use_residual": True}, "use_residual True is not computed here"),
    ],
    "sentence_bert_config.json": [
        ({"max_seq_length": "long"}, "'long' is not a length of texts"),
        ({"max_seq_length": 2}, "2 is not a length of texts"),
        ({"transformer_task": "fill-mask"}, "transformer_task 'fill-mask' is not computed here"),
    ],
    "config_sentence_transformers.json": [
        ({"prompts": ["a"]}, "prompts must be texts by their names"),
        ({"prompts": {"a": 5}}, "prompts must be texts by their names"),
        ({"prompts": {"a": "b"}, "default_prompt_name": ["a"]}, "which is not a prompt there"),
    ],
}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [(file, *change) for file, changes in CHANGES.items() for change in changes],
)
def test_what_is_not_computed_is_named(tmp_path, file, content, message):
    path = write_sentence_model(tmp_path / "model", dense=[(7, "activation.Tanh")])
    write_json(path / file, content)
    with pytest.raises(UserError) as error:
        TextEncoder(find_model(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["Transformer", "Pooling", "LSTM"], "'2_LSTM' has the type 'st.LSTM', which is not known"),
        (
            ["Transformer", "Pooling", "Normalize", "Dense"],
            "Transformer, Pooling, Normalize, Dense;",
        ),
        (["Transformer"], "its modules are Transformer; only a Transformer, a Pooling"),
    ],
)
def test_unknown_modules_are_named_and_left_out_by_convert(tmp_path, kinds, message):
    path = write_sentence_model(tmp_path / "model")
    rows = [
        {
            "path": f"{n}_{kind}" if n else "",
            "type": "st.LSTM" if kind == "LSTM" else f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(kinds)
    ]
    write_json(path / "modules.json", rows)
    with pytest.raises(UserError) as error:
        TextEncoder(find_model(path))
    assert message in str(error.value)
    lines = convert(open_source(path), tmp_path / "new", "google")
    [warning] = [line for line in lines if message in line]
    assert warning.endswith("What is said there on vectors of texts is left out")
    assert not (tmp_path / "new/modules.json").exists()
