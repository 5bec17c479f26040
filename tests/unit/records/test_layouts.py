from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_tf.records import layouts as records

MASKED = records.PRETRAINING_MASKED
UNMASKED = records.PRETRAINING_UNMASKED
LENGTHS = {"max_seq_length": 6, "max_predictions_per_seq": 2}


def make_examples(spec, count, *, high=30522, seed=0):
    rng = np.random.default_rng(seed)
    examples = {}
    for feature in spec.features:
        shape = (count, {**LENGTHS, "one": 1}[feature.length_key])
        if feature.dtype == "float32":
            examples[feature.name] = rng.random(shape).astype(np.float32)
        else:
            examples[feature.name] = rng.integers(0, high, shape)
    return examples


def as_tensorflow_writes_it(example):
    """Builds and serializes the message with TensorFlow's own classes."""
    features = {}
    for name, values in example.items():
        if values.dtype == np.float32:
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString()


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)
        assert actual[name].dtype == values.dtype


def test_the_masked_layout_is_googles():
    assert [(f.name, f.dtype, f.length_key) for f in MASKED.features] == [
        ("input_ids", "int64", "max_seq_length"),
        ("input_mask", "int64", "max_seq_length"),
        ("segment_ids", "int64", "max_seq_length"),
        ("masked_lm_positions", "int64", "max_predictions_per_seq"),
        ("masked_lm_ids", "int64", "max_predictions_per_seq"),
        ("masked_lm_weights", "float32", "max_predictions_per_seq"),
        ("next_sentence_labels", "int64", "one"),
    ]


@pytest.mark.parametrize("spec", [MASKED, UNMASKED], ids=lambda spec: spec.name)
def test_tensorflow_parses_what_we_encode(spec):
    examples = make_examples(spec, 7)
    encoded = spec.encode_batch(examples)
    with tf.Graph().as_default(), tf.Session() as session:
        parsed = session.run(tf.io.parse_example(encoded, spec.parse_spec(LENGTHS)))
    assert_same(parsed, examples)
    message = tf.train.Example.FromString(encoded[3])
    assert set(message.features.feature) == {feature.name for feature in spec.features}


@pytest.mark.parametrize("spec", [MASKED, UNMASKED], ids=lambda spec: spec.name)
def test_we_decode_what_tensorflow_encodes(spec):
    examples = make_examples(spec, 1)
    example = {name: values[0] for name, values in examples.items()}
    assert_same(spec.decode(as_tensorflow_writes_it(example)), example)


def test_one_example_encodes_as_a_batch_of_one():
    examples = make_examples(MASKED, 3)
    one = {name: values[1] for name, values in examples.items()}
    assert MASKED.encode(one) == MASKED.encode_batch(examples)[1]


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(1, 4), st.integers(1, 5)),
        elements=st.one_of(
            st.integers(0, 300), st.integers(0, 2**40), st.integers(-(2**63), 2**63 - 1)
        ),
    )
)
def test_any_integers_survive(values):
    spec = records.RecordSpec("x", (records.Feature("v", "int64", "length", records.VOCABULARY),))
    for row, record in zip(values, spec.encode_batch({"v": values})):
        message = tf.train.Example.FromString(record)
        assert list(message.features.feature["v"].int64_list.value) == row.tolist()
        np.testing.assert_array_equal(spec.decode(record)["v"], row)


def test_varint_borders():
    values = np.array([[0, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**35, 2**62]])
    spec = records.RecordSpec("x", (records.Feature("v", "int64", "length", records.VOCABULARY),))
    message = tf.train.Example.FromString(spec.encode_batch({"v": values})[0])
    assert list(message.features.feature["v"].int64_list.value) == values[0].tolist()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda e: e.pop("segment_ids"), "segment_ids"),
        (lambda e: e.update(masked_lm_weights=np.ones(2, np.int64)), "masked_lm_weights"),
        (lambda e: e.update(input_mask=np.ones(5, np.int64)), "input_mask has 5 values"),
        (lambda e: e.update(next_sentence_labels=np.ones(2, np.int64)), "2 values instead of 1"),
    ],
)
def test_decoding_refuses_what_does_not_fit_the_layout(change, sentence):
    example = {name: values[0] for name, values in make_examples(MASKED, 1).items()}
    change(example)
    with pytest.raises(ValueError, match=sentence):
        MASKED.decode(as_tensorflow_writes_it(example))


def test_decoding_refuses_other_bytes():
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        MASKED.decode(b"\x0a\xff\xff")


def test_encoding_refuses_missing_and_unknown_features():
    examples = make_examples(MASKED, 1)
    with pytest.raises(ValueError, match="word_starts"):
        MASKED.encode_batch({**examples, "word_starts": examples["input_ids"]})
    del examples["input_ids"]
    with pytest.raises(ValueError, match="input_ids"):
        MASKED.encode_batch(examples)


def test_lengths_are_found_in_an_example():
    example = {name: values[0] for name, values in make_examples(MASKED, 1).items()}
    assert MASKED.lengths_of(example) == {**LENGTHS, "one": 1}
    assert MASKED.matches(example)
    assert not UNMASKED.matches(example)
