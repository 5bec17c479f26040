"""Vectors against transformers' BertModel with the same weights."""

import numpy as np
import pytest
import torch

from bert_tf.inference.settings import chosen_options
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.errors import UserError
from tests.helpers.native_ops import requires_native_ops
from tests.unit.checkpoint.tiny_models import huggingface_model

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(35))]
CLS, SEP, FIRST_WORD = 2, 3, 5
# Lengths are mixed, so that the order of the batches is not that of the texts.
TEXTS = [
    "w3", "w7 w1 w30 w2 w9", ("w4 w5", "w6"), "w12 w13 w14 w15 w16 w17 w18 w19 w20 w21",
    ("w1", "w2 w3 w4 w5 w6 w7 w8"), "w0 w0", "unheard w1", "",
]  # fmt: skip
LAYERS = (-1, 0, -2)


@pytest.fixture(scope="module")
def network():
    return huggingface_model("BertModel")


@pytest.fixture(scope="module")
def model(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    network.save_pretrained(path)
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return find_model(path)


def ids_of(text):
    return [ENTRIES.index(word) if word in ENTRIES else 1 for word in text.split()]


def hidden_states(network, text):
    """[layers, tokens, D] of one text, without padding."""
    first, *second = [text] if isinstance(text, str) else text
    ids = [CLS, *ids_of(first), SEP]
    segments = [0] * len(ids)
    for other in second:
        ids += [*ids_of(other), SEP]
        segments += [1] * (len(ids) - len(segments))
    with torch.no_grad():
        outputs = network(
            torch.tensor([ids]), token_type_ids=torch.tensor([segments]), output_hidden_states=True
        )
    return torch.cat(outputs.hidden_states[1:]).numpy()


POOLINGS = {
    "mean": lambda hidden: hidden.mean(axis=1),
    "max": lambda hidden: hidden.max(axis=1),
    "cls": lambda hidden: hidden[:, 0],
}


def encoder_of(model, *, native_ops=False, batch_size=3, **settings):
    options, _ = chosen_options(model.config, native_ops=native_ops)
    return TextEncoder(model, VectorSettings(**settings), batch_size=batch_size, options=options)


@pytest.mark.parametrize(
    ("normalize", "native_ops"),
    [
        (False, False),
        pytest.param(True, True, marks=requires_native_ops),
        pytest.param(True, False, marks=pytest.mark.exhaustive),
        pytest.param(False, True, marks=[requires_native_ops, pytest.mark.exhaustive]),
    ],
)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooled_vectors(network, model, pooling, normalize, native_ops):
    encoder = encoder_of(
        model, native_ops=native_ops, pooling=pooling, layers=LAYERS, normalize=normalize
    )
    expected = np.stack(
        [POOLINGS[pooling](hidden_states(network, text))[list(LAYERS)] for text in TEXTS]
    )
    if normalize:
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    found = encoder.encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("pooling", "layer"),
    [
        *(("mean", 0), ("max", -1), ("cls", -1)),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("mean", -1), ("max", 0), ("cls", 0))
        ),
    ],
)
def test_a_single_layer_has_no_dimension_of_its_own(network, model, pooling, layer):
    found = encoder_of(model, pooling=pooling, layers=(layer,)).encode(TEXTS)
    expected = [POOLINGS[pooling](hidden_states(network, text))[layer] for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("native_ops", [False, pytest.param(True, marks=requires_native_ops)])
def test_vectors_of_tokens(network, model, native_ops):
    encoder = encoder_of(model, native_ops=native_ops, pooling="none", layers=LAYERS)
    for text, found in zip(TEXTS, encoder.tokens(TEXTS)):
        expected = hidden_states(network, text)[list(LAYERS)].swapaxes(0, 1)
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_batches_change_nothing(model):
    encoder = encoder_of(model, pooling="mean")
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS[:3]])
    together = encoder_of(model, pooling="mean", batch_size=100).encode(TEXTS)
    np.testing.assert_allclose(together[:3], alone, atol=1e-5)


def test_no_texts(model):
    assert encoder_of(model, pooling="mean").encode([]).shape == (0, 12)
    assert encoder_of(model, pooling="mean", layers=(0, 1)).encode([]).shape == (0, 2, 12)


def test_the_usual_vectors_are_means_of_the_last_layer(network, model):
    found = TextEncoder(model).encode(TEXTS)
    expected = [hidden_states(network, text)[-1].mean(axis=0) for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_texts_are_cut_to_the_networks_positions(model):
    long, cut = (" ".join(["w3"] * count) for count in (40, 14))
    encoder = encoder_of(model, pooling="mean")
    np.testing.assert_allclose(*encoder.encode([long, cut]), atol=1e-5)


@pytest.mark.parametrize("layers", [(2,), (-3,), (0, 5)])
def test_layers_that_the_network_lacks(model, layers):
    given = ",".join(map(str, layers))
    sentence = f"--layers={given}: the network has 2 layers, so give numbers from -2 to 1"
    with pytest.raises(UserError, match=sentence):
        encoder_of(model, pooling="mean", layers=layers)


def test_vectors_of_the_other_kind(model):
    with pytest.raises(UserError, match=r"use TextEncoder\.tokens"):
        encoder_of(model, pooling="none", layers=(-1,)).encode(TEXTS)
    with pytest.raises(UserError, match=r"use TextEncoder\.encode"):
        encoder_of(model, pooling="max").tokens(TEXTS)
