"""Vectors as a directory of sentence-transformers says, and what a user says otherwise."""

import json

import numpy as np
import pytest

from bert_tf.model_directory.complete import find_model
from bert_tf.serving.load import load_model
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.errors import UserError
from tests.helpers.sentence_models import KEYS, sentence_vectors, write_json, write_sentence_model

TEXTS = ["w3", "W7 w1 w30 w2 w9", " ".join(f"w{n}" for n in range(10, 25)), "unheard w1", ""]
PROMPTS = {"prompts": {"query": "w1 w2 ", "text": "w4 ", "none": ""}}
# What the network's tokens alone would decide, by the poolings of a directory.
PROMPTED = ("max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
DENSE = [(7, "activation.GELU"), (5, "activation.Tanh")]
DIRECTORIES = {
    **{name: ({"pooling": (name,)}, {}) for name in KEYS},
    "all": ({"pooling": tuple(KEYS), "normalize": True}, {}),
    "dense": ({"pooling": ("cls", "mean"), "dense": DENSE, "normalize": True}, {}),
    "no length": ({"texts": {"do_lower_case": False}}, {"length": 14}),
    "lower": ({"texts": {"max_seq_length": 50, "do_lower_case": True}}, {"lower": True}),
    "prompt": (
        {"pooling": PROMPTED, "prompts": {**PROMPTS, "default_prompt_name": "query"}},
        {"prompt": "w1 w2 "},
    ),
}
DIRECTORIES["lower"][1]["length"] = 16


@pytest.mark.parametrize("name", DIRECTORIES)
def test_vectors_are_as_the_directory_says(tmp_path, capsys, name):
    written, computed = DIRECTORIES[name]
    path = write_sentence_model(tmp_path / "model", **written)
    found = load_model(path).predict(TEXTS)
    np.testing.assert_allclose(found, sentence_vectors(path, TEXTS, **computed), atol=1e-6)
    assert capsys.readouterr().err == ""


def test_a_prompt_that_is_not_pooled(tmp_path):
    prompts = {**PROMPTS, "default_prompt_name": "query"}
    path = write_sentence_model(
        tmp_path / "model", pooling=PROMPTED, include_prompt=False, prompts=prompts
    )
    expected = sentence_vectors(path, TEXTS, prompt="w1 w2 ")
    np.testing.assert_allclose(TextEncoder(find_model(path)).encode(TEXTS), expected, atol=1e-6)
    named = TextEncoder(find_model(path), VectorSettings(prompt_name="text")).encode(TEXTS)
    np.testing.assert_allclose(named, sentence_vectors(path, TEXTS, prompt="w4 "), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "length", "note"),
    [
        ({"pooling": "cls"}, None, "--pooling=cls is used, but {} says mean"),
        ({"normalize": False}, None, "--normalize=false is used, but {} says true"),
        ({"layers": (0,)}, None, "--layers=-2 is used, but {} says -1"),
        (
            {"pooling": "none", "layers": (1,)},
            None,
            "--pooling=none: nothing is pooled or scaled, otherwise than",
        ),
        ({}, 5, "--max_seq_length=5 is used, but sentence_bert_config.json says 10"),
        ({}, 10, ""),
        ({"pooling": "mean", "normalize": True, "layers": (1,)}, None, ""),
    ],
)
def test_a_setting_that_differs_says_so(tmp_path, capsys, settings, length, note):
    path = write_sentence_model(tmp_path / "model", normalize=True)
    encoder = TextEncoder(find_model(path), VectorSettings(**settings), max_seq_length=length)
    expected = note.format(path / "modules.json")
    said = capsys.readouterr().err
    assert said.startswith(expected) if expected else said == ""
    if settings.get("pooling") != "none":
        norms = np.linalg.norm(encoder.encode(TEXTS), axis=-1)
        assert np.allclose(norms, 1) == (settings.get("normalize") is not False)


def test_prompts_that_none_asks_for_are_named(tmp_path, capsys):
    path = write_sentence_model(tmp_path / "model", prompts=PROMPTS)
    np.testing.assert_allclose(
        load_model(path).predict(TEXTS), sentence_vectors(path, TEXTS), atol=1e-6
    )
    assert "no prompt precedes the texts; --prompt_name chooses one" in capsys.readouterr().err
    with pytest.raises(UserError, match="--prompt_name=x: the prompts next to the network are: qu"):
        TextEncoder(find_model(path), VectorSettings(prompt_name="x"))


def test_no_prompts(tmp_path):
    path = write_sentence_model(tmp_path / "model")
    with pytest.raises(
        UserError, match="--prompt_name=x: the prompts next to the network are: none"
    ):
        TextEncoder(find_model(path), VectorSettings(prompt_name="x"))
    (path / "modules.json").unlink()
    with pytest.raises(
        UserError, match="--prompt_name=x: the prompts next to the network are: none"
    ):
        TextEncoder(find_model(path), VectorSettings(prompt_name="x"))


def test_a_dense_layer_takes_vectors_of_its_width(tmp_path):
    path = write_sentence_model(tmp_path / "model", dense=[(7, "activation.Tanh")])
    assert TextEncoder(find_model(path), VectorSettings("max")).encode(["w1"]).shape == (1, 7)
    with pytest.raises(UserError, match="takes vectors of 12 components, not of 24 as --pooling="):
        TextEncoder(find_model(path), VectorSettings("mean,max"))


def test_a_pooling_that_is_given_leaves_unknown_modules_out(tmp_path, capsys):
    path = write_sentence_model(tmp_path / "model")
    expected = sentence_vectors(path, TEXTS)
    rows = json.loads((path / "modules.json").read_text())
    write_json(path / "modules.json", [*rows, {"path": "2_X", "type": "x.LSTM"}])
    with pytest.raises(UserError, match=r"known here.*; --pooling gives vectors of the network"):
        TextEncoder(find_model(path))
    encoder = TextEncoder(find_model(path), VectorSettings("mean"), max_seq_length=10)
    assert "has the type 'x.LSTM', which is not known here" in capsys.readouterr().err
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["sum", "mean,sum", "mean,", "", "none,mean"])
def test_poolings_that_do_not_exist(pooling):
    with pytest.raises(UserError, match=f"--pooling={pooling}: "):
        VectorSettings(pooling)
