import dataclasses
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.variables import VariableSpec, create_variables, frozen_specs, num_weights
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.programs import ROOT

RELEASED = ROOT / "tests/data/uncased_L-8_H-512_A-8"

# Google's names for a network of hidden size 12, intermediate size 20, vocabulary 37.
GOLDEN_EMBEDDINGS = {
    "bert/embeddings/word_embeddings": (37, 12),
    "bert/embeddings/token_type_embeddings": (2, 12),
    "bert/embeddings/position_embeddings": (11, 12),
    "bert/embeddings/LayerNorm/beta": (12,),
    "bert/embeddings/LayerNorm/gamma": (12,),
}
GOLDEN_LAYER = {
    "attention/self/query/kernel": (12, 12),
    "attention/self/query/bias": (12,),
    "attention/self/key/kernel": (12, 12),
    "attention/self/key/bias": (12,),
    "attention/self/value/kernel": (12, 12),
    "attention/self/value/bias": (12,),
    "attention/output/dense/kernel": (12, 12),
    "attention/output/dense/bias": (12,),
    "attention/output/LayerNorm/beta": (12,),
    "attention/output/LayerNorm/gamma": (12,),
    "intermediate/dense/kernel": (12, 20),
    "intermediate/dense/bias": (20,),
    "output/dense/kernel": (20, 12),
    "output/dense/bias": (12,),
    "output/LayerNorm/beta": (12,),
    "output/LayerNorm/gamma": (12,),
}
GOLDEN_POOLER = {"bert/pooler/dense/kernel": (12, 12), "bert/pooler/dense/bias": (12,)}
GOLDEN_MASKED_LM = {
    "cls/predictions/output_bias": (37,),
    "cls/predictions/transform/dense/kernel": (12, 12),
    "cls/predictions/transform/dense/bias": (12,),
    "cls/predictions/transform/LayerNorm/beta": (12,),
    "cls/predictions/transform/LayerNorm/gamma": (12,),
}
GOLDEN_NEXT_SENTENCE = {
    "cls/seq_relationship/output_weights": (2, 12),
    "cls/seq_relationship/output_bias": (2,),
}


def golden_body():
    layers = {
        f"bert/encoder/layer_{index}/{name}": shape
        for index in range(2)
        for name, shape in GOLDEN_LAYER.items()
    }
    return {**GOLDEN_EMBEDDINGS, **layers}


def created_shapes(session, config, **heads):
    variables = create_variables(pretraining_specs(config, **heads), initializer_range=0.02)
    in_graph = {variable.op.name: tuple(variable.shape) for variable in tf.global_variables()}
    trainable = tf.trainable_variables()
    assert [v.name for v in variables.all()] == [v.name for v in trainable]
    assert {variable.dtype.base_dtype for variable in trainable} == {tf.float32}
    session.run(tf.global_variables_initializer())
    return in_graph


def test_names_and_shapes_are_googles(session, config):
    expected = {
        **golden_body(),
        **GOLDEN_POOLER,
        **GOLDEN_MASKED_LM,
        **GOLDEN_NEXT_SENTENCE,
    }
    assert created_shapes(session, config) == expected


def test_without_token_types_they_have_no_embeddings(session, config):
    expected = {**golden_body(), **GOLDEN_MASKED_LM}
    del expected["bert/embeddings/token_type_embeddings"]
    config = dataclasses.replace(config, type_vocab_size=0)
    assert created_shapes(session, config, next_sentence=False) == expected


def test_without_next_sentence_there_is_no_pooler(session, config):
    expected = {**golden_body(), **GOLDEN_MASKED_LM}
    assert created_shapes(session, config, next_sentence=False) == expected


def test_without_masked_lm_there_are_no_predictions(session, config):
    expected = {**golden_body(), **GOLDEN_POOLER, **GOLDEN_NEXT_SENTENCE}
    assert created_shapes(session, config, masked_lm=False) == expected


def test_variables_equal_those_of_a_released_checkpoint():
    config = BertConfig.from_json_file(f"{RELEASED}.bert_config.json")
    released = {name: tuple(shape) for name, shape in tf.train.list_variables(f"{RELEASED}.ckpt")}
    ours = {spec.name: spec.shape for spec in pretraining_specs(config)}
    assert len(released) == 142
    assert ours == released


def test_initial_values_follow_google(session):
    specs = [
        VariableSpec("kernel", (300, 200)),
        VariableSpec("bias", (7,), 0.0),
        VariableSpec("gamma", (7,), 1.0),
        VariableSpec("given", (2,), (0.5, -3.0)),
    ]
    variables = create_variables(specs, initializer_range=0.02, seed=3)
    session.run(tf.global_variables_initializer())
    kernel, bias, gamma, given = session.run(variables.all())
    # Truncation at two standard deviations leaves 0.8796 of the standard deviation.
    assert abs(kernel.std() - 0.8796 * 0.02) < 1e-4
    assert abs(kernel.mean()) < 5 * 0.02 / np.sqrt(kernel.size)
    assert np.abs(kernel).max() <= 0.04
    np.testing.assert_array_equal(bias, np.zeros(7))
    np.testing.assert_array_equal(gamma, np.ones(7))
    np.testing.assert_array_equal(given, [0.5, -3])


def initial_values(names, *, seed):
    with tf.Graph().as_default(), tf.Session() as session:
        specs = [VariableSpec(name, (5, 4)) for name in names]
        variables = create_variables(specs, initializer_range=0.1, seed=seed)
        session.run(tf.global_variables_initializer())
        return dict(zip(names, session.run(variables.all())))


def test_random_initial_values_have_a_scale():
    with tf.Graph().as_default(), tf.Session() as session:
        specs = [VariableSpec("a", (5, 4), scale=30.0)]
        variables = create_variables(specs, initializer_range=0.1, seed=1)
        session.run(tf.global_variables_initializer())
        [scaled] = session.run(variables.all())
    np.testing.assert_allclose(scaled, 30 * initial_values(["a"], seed=1)["a"], rtol=1e-6)


def test_initial_values_depend_on_seed_and_name_only():
    both, alone = initial_values(["a", "b"], seed=1), initial_values(["b"], seed=1)
    np.testing.assert_array_equal(both["b"], alone["b"])
    assert not np.array_equal(both["a"], both["b"])
    assert not np.array_equal(initial_values(["b"], seed=2)["b"], alone["b"])


@pytest.mark.each_tensorflow
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_initial_values_are_those_of_philox_as_tensorflow_seeds_it(seed, session):
    """So runs of the same seed start alike with any version of this package."""
    found = initial_values(["a"], seed=seed)["a"]
    pair = [seed, zlib.crc32(b"a")]
    normal = tf.random.stateless_truncated_normal((5, 4), pair, stddev=0.1, alg="philox")
    np.testing.assert_array_equal(found, session.run(normal))


def test_creating_a_name_twice_is_refused(session):
    specs = [VariableSpec("bert/x", (2,), 0.0)]
    create_variables(specs, initializer_range=0.1)
    with pytest.raises(ValueError, match="already exists"):
        create_variables(specs, initializer_range=0.1)


def test_scope_narrows_names_and_names_operations(session):
    variables = create_variables([VariableSpec("a/b/c", (2,), 1.0)], initializer_range=0.1)
    with variables.scope("a") as outer, outer.scope("b") as inner:
        doubled = inner["c"] * 2.0
    assert doubled.op.name.startswith("a/b/")
    with pytest.raises(KeyError, match="a/b/d"):
        inner["d"]


OWN = [VariableSpec("bert/kernel", (3, 2)), VariableSpec("bert/bias", (2,), 0.0)]


def test_number_of_weights():
    assert num_weights(OWN) == 3 * 2 + 2
    assert num_weights([VariableSpec("scalar", ())]) == 1
    assert num_weights([]) == 0


def test_specs_of_a_frozen_network():
    assert frozen_specs(OWN, prefix="teacher") == [
        VariableSpec("teacher/bert/kernel", (3, 2), None, trainable=False),
        VariableSpec("teacher/bert/bias", (2,), 0.0, trainable=False),
    ]
    assert all(spec.trainable for spec in OWN)


def test_a_frozen_network_is_neither_trained_nor_saved(session):
    frozen = frozen_specs(OWN, prefix="teacher")
    variables = create_variables([*OWN, *frozen], initializer_range=0.1)
    base = [variables["bert/kernel"], variables["bert/bias"]]
    teacher = [variables["teacher/bert/kernel"], variables["teacher/bert/bias"]]
    assert variables.all() == [*base, *teacher]
    assert variables.trainable() == tf.trainable_variables() == base
    assert tf.global_variables() == base  # the contents of a checkpoint
    assert tf.local_variables() == teacher
    assert tf.model_variables() == teacher  # also broadcast from rank 0
    assert variables.frozen("teacher") == teacher
    with variables.scope("teacher") as inner:
        assert inner["bert/bias"] is teacher[1]
        assert list(inner.within()) == ["bert/kernel", "bert/bias"]
        assert inner.trainable() == base  # of the whole network in any scope
    session.run(tf.global_variables_initializer())
    assert session.run(tf.report_uninitialized_variables(teacher)).size == 2
    session.run(tf.local_variables_initializer())
    assert np.any(session.run(teacher[0]))


def test_frozen_variables_are_found_by_whole_parts_of_names(session):
    specs = [
        VariableSpec("teacher/a", (2,), trainable=False),
        VariableSpec("teacher2/a", (2,), trainable=False),
        VariableSpec("teacher/trained", (2,)),
    ]
    variables = create_variables(specs, initializer_range=0.1)
    assert variables.frozen("teacher") == [variables["teacher/a"]]
    assert variables.frozen("teacher2") == [variables["teacher2/a"]]
    assert variables.frozen("none") == []
