"""Networks of transformers that hold the weights of this project's, in float64.

Any difference is then due to our float32 arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

_ACTIVATIONS = {"gelu": "gelu_new", "gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
_HEADS = {
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_PARTS = [
    ("layer_", "layer."),
    ("output_bias", "bias"),
    ("kernel", "weight"),
    ("gamma", "weight"),
    ("beta", "bias"),
    ("_embeddings", "_embeddings.weight"),
    ("/", "."),
]

# Gradients that are zero in theory, since softmax ignores what all scores have in common, and
# rounding noise in any program: compared with the size of a like one that is not.
_LIKE_ONES = {"key/bias": "query/bias", "squad/output_bias": "squad/output_weights"}


def random_values(specs: Iterable, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for every variable, none of them trivial: biases are not 0, scales not 1."""
    rng = np.random.RandomState(seed)
    return {
        spec.name: (rng.randn(*spec.shape) * 0.3 + spec.name.endswith("gamma")).astype(np.float32)
        for spec in specs
    }


def torch_network(class_name: str, config, values: Mapping[str, np.ndarray], **settings):
    """A network of a class of transformers, without dropout, that holds ``values``."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # pad_token_id=None: otherwise torch leaves the padding token's row out of the gradient.
    settings = {
        **config.to_dict(),
        "hidden_act": _ACTIVATIONS[config.hidden_act],
        "pad_token_id": None,
        **settings,
    }
    config = transformers.BertConfig(**settings, attn_implementation="eager")
    network = getattr(transformers, class_name)(config).double().eval()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[_torch_name(name)].copy_(torch.tensor(_oriented(name, value)))
    return network


def torch_inputs(batch: Mapping[str, np.ndarray]) -> dict:
    """The sequences of a batch, as arguments of a network."""
    torch = pytest.importorskip("torch")
    names = {
        "input_ids": "input_ids",
        "attention_mask": "input_mask",
        "token_type_ids": "segment_ids",
    }
    return {theirs: torch.tensor(batch[ours]).long() for theirs, ours in names.items()}


def torch_gradients(network, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The gradients of a network's parameters by our names, oriented as ours are."""
    parameters = dict(network.named_parameters())
    return {name: _oriented(name, parameters[_torch_name(name)].grad.numpy()) for name in names}


def relative_errors(
    gradients: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Per variable, max|difference| / max|expected|."""
    assert gradients.keys() == expected.keys()
    errors = {}
    for name, value in expected.items():
        like = name
        for zero, other in _LIKE_ONES.items():
            like = like.replace(zero, other)
        size = np.max(np.abs(expected[like]))
        errors[name] = np.max(np.abs(gradients[name] - value)) / size
    return errors


def _torch_name(name: str) -> str:
    if name in _HEADS:
        return _HEADS[name]
    for ours, theirs in _PARTS:
        name = name.replace(ours, theirs)
    return name


def _oriented(name: str, value: np.ndarray) -> np.ndarray:
    return value.T if name.endswith("kernel") else value
