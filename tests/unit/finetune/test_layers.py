import re

import pytest

from bert_tf.finetune.settings import LayerSettings
from bert_tf.util.errors import UserError
from tests.helpers.settings import optimization_settings

WORDS = "bert/embeddings/word_embeddings"
POOLER, HEAD = "bert/pooler/dense/kernel", "output_weights"
LAYERS = [f"bert/encoder/layer_{n}/output/dense/kernel" for n in range(12)]


def applied(num_layers=12, **settings):
    return LayerSettings(**settings).applied_to(optimization_settings(), num_layers)


def test_by_default_nothing_changes():
    assert applied() == optimization_settings()


@pytest.mark.parametrize(("given", "expected"), [
    ("embeddings", [WORDS]),
    ("1", [WORDS, LAYERS[0]]),
    ("11", [WORDS, *LAYERS[:11]]),
    ("12", [WORDS, *LAYERS]),
    ("encoder", [WORDS, *LAYERS]),
])  # fmt: skip
def test_what_is_frozen(given, expected):
    found = applied(freeze=given)
    names = [WORDS, *LAYERS, POOLER, HEAD]
    assert [name for name in names if not found.rate_factor(name)] == expected
    assert {found.rate_factor(name) for name in names} <= {0.0, 1.0}


def test_rates_fall_from_the_top_layer_to_the_embeddings():
    found = applied(layerwise_lr_decay=0.9, freeze="2")
    for name in (HEAD, POOLER, LAYERS[11]):
        assert found.rate_factor(name) == 1.0
    assert found.rate_factor(LAYERS[10]) == pytest.approx(0.9)
    assert found.rate_factor(LAYERS[2]) == pytest.approx(0.9**9)
    assert found.rate_factor(LAYERS[1]) == found.rate_factor(WORDS) == 0.0
    assert applied(layerwise_lr_decay=0.9).rate_factor(WORDS) == pytest.approx(0.9**12)


def test_layers_open_one_after_the_other_from_the_top():
    found = applied(num_layers=3, gradual_unfreezing=0.8)
    names = [HEAD, POOLER, *LAYERS[2::-1], WORDS]
    expected = [0, 0, 0.2, 0.4, 0.6, 0.8]
    assert [found.start_of(name) for name in names] == pytest.approx(expected)
    frozen = applied(num_layers=3, gradual_unfreezing=0.8, freeze="1")
    assert [frozen.start_of(name) for name in (LAYERS[2], LAYERS[1])] == pytest.approx([0.4, 0.8])


@pytest.mark.parametrize(("settings", "expected"), [
    ({"freeze": "all"}, "--freeze=all must be embeddings, encoder or a number of layers"),
    ({"freeze": "0"}, "--freeze=0 must be"),
    ({"freeze": "٣"}, "--freeze=٣ must be"),
    ({"freeze": "13"}, "--freeze=13: the network has 12 layers"),
    ({"freeze": "encoder", "gradual_unfreezing": 0.5}, "no layer for --gradual_unfreezing=0.5"),
    ({"freeze": "encoder", "layerwise_lr_decay": 0.5}, "no layer for --layerwise_lr_decay=0.5"),
    ({"layerwise_lr_decay": 0.0}, "--layerwise_lr_decay=0 must be in (0, 1]"),
    ({"gradual_unfreezing": 1.0}, "--gradual_unfreezing=1 must be in [0, 1)"),
])  # fmt: skip
def test_what_cannot_be(settings, expected):
    with pytest.raises(UserError, match=re.escape(expected)):
        applied(**settings)
