"""The task against numpy: what is replaced, both losses, and where gradients flow."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import ClassScores, Sums
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.tasks.pretraining.task import MASKED_LM, PretrainingOutputs
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens
from bert_tf.tasks.replaced_tokens.task import DISCRIMINATOR, ReplacedTokenOutputs
from tests.helpers import rounding

B, S, P, V = 4, 9, 3, 37
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=20,
    max_position_embeddings=11,
    type_vocab_size=2,
)
TASK = ReplacedTokens().task(CONFIG)
NATIVE = ForwardOptions().with_native_layers()
# The most that a sum has terms: the losses of a batch, and the words of a softmax.
OF_SUMS = rounding.of_products(4, V)


def batch():
    """Sequences of different lengths and numbers of masked words, one without any."""
    rng = np.random.default_rng(5)
    lengths = np.array([9, 6, 3, 7])
    is_mask = np.arange(P) < np.array([3, 1, 0, 2])[:, None]
    places = np.stack([1 + rng.permutation(length - 1)[:P] for length in (9, 6, 4, 7)])
    return {
        "input_ids": rng.integers(5, V, [B, S]).astype(np.int32),
        "input_mask": (np.arange(S) < lengths[:, None]).astype(np.int32),
        "segment_ids": (np.arange(S) >= np.array([4, 6, 1, 5])[:, None]).astype(np.int32),
        "masked_lm_positions": np.where(is_mask, places, 0).astype(np.int32),
        "masked_lm_ids": np.where(is_mask, rng.integers(5, V, [B, P]), 0).astype(np.int32),
        "masked_lm_weights": is_mask.astype(np.float32),
    }


BATCH = batch()


def put(ids, values):
    """``ids`` with ``values`` at the masked positions."""
    found = ids.copy()
    for row, column in zip(*np.nonzero(BATCH["masked_lm_weights"])):
        found[row, BATCH["masked_lm_positions"][row, column]] = values[row, column]
    return found


ORIGINAL = put(BATCH["input_ids"], BATCH["masked_lm_ids"])


def features(**changes):
    return {name: tf.constant(value) for name, value in {**BATCH, **changes}.items()}


def dropout(first_example=0):
    place = {"data_position": 3, "first_example": first_example}
    return Dropout(9, **{name: tf.constant(value, tf.int64) for name, value in place.items()})


def losses_of(logits, words, input_ids, **changes):
    """The sums of each term for outputs that are given."""
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = ReplacedTokenOutputs(
            PretrainingOutputs(ClassScores(tf.constant(words), tf.zeros([V])), None),
            tf.constant(input_ids),
            tf.constant(logits),
        )
        return session.run(TASK.losses(outputs, features(**changes), ForwardOptions()))


@pytest.mark.parametrize("example_weights", [None, np.float32([1, 1, 1, 0])])
def test_losses_are_those_of_the_paper(example_weights):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, [B, S]).astype(np.float32)
    words = rng.normal(0, 3, [B * P, V]).astype(np.float32)
    guesses = rng.integers(5, V, [B, P]).astype(np.int32)
    guesses[0, 1] = BATCH["masked_lm_ids"][0, 1]  # an original word, although it was sampled
    input_ids = put(BATCH["input_ids"], guesses)
    changes = {} if example_weights is None else {"example_weights": example_weights}
    found = losses_of(logits, words, input_ids, **changes)

    masked = BATCH["masked_lm_weights"].ravel()
    log_probabilities = words - np.log(np.exp(words.astype(np.float64)).sum(axis=1, keepdims=True))
    of_labels = log_probabilities[np.arange(B * P), BATCH["masked_lm_ids"].ravel()]
    assert found[MASKED_LM].weight == masked.sum() == 6
    assert found[MASKED_LM].loss == pytest.approx(-(masked * of_labels).sum(), rel=OF_SUMS)

    is_replaced = input_ids != ORIGINAL
    assert 0 < is_replaced.sum() < 6
    weights = BATCH["input_mask"] * (1 if example_weights is None else example_weights[:, None])
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    losses = -np.log(np.where(is_replaced, probabilities, 1 - probabilities))
    flagged = logits > 0
    sums = found[DISCRIMINATOR]
    assert sums.weight == weights.sum()
    assert sums.loss == pytest.approx(50 * (weights * losses).sum(), rel=OF_SUMS)
    assert sums.metrics["cross_entropy"] == pytest.approx(sums.loss / 50, rel=OF_SUMS)
    counts = {
        "accuracy": flagged == is_replaced,
        "replaced": is_replaced,
        "flagged": flagged,
        "caught": flagged & is_replaced,
    }
    for name, count in counts.items():
        assert sums.metrics[name] == (weights * count).sum(), name


def test_scores_are_precision_recall_and_perplexity():
    metrics = {"replaced": 8.0, "flagged": 5.0, "caught": 4.0}
    sums = {MASKED_LM: Sums(6.0, 3.0, {}), DISCRIMINATOR: Sums(0.0, 90.0, metrics)}
    assert TASK.scores(sums) == {
        "masked_lm_perplexity": pytest.approx(np.exp(2)),
        "discriminator_precision": 0.8,
        "discriminator_recall": 0.5,
    }
    nothing = {**sums, DISCRIMINATOR: Sums(0.0, 90.0, dict.fromkeys(metrics, 0.0))}
    assert TASK.scores(nothing)["discriminator_precision"] == 0


@pytest.fixture(name="network")
def made_network():
    with tf.Graph().as_default():
        yield create_network(TASK, ForwardOptions(), seed=1)


def run(tensors):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(tensors)


@pytest.mark.parametrize("trains", [True, False])
def test_only_masked_positions_get_other_words(network, trains):
    options = ForwardOptions().with_dropout(dropout() if trains else None)
    found = run(TASK.outputs(network.variables, features(), options).input_ids)
    is_masked = put(np.zeros([B, S], int), np.ones([B, P], int)) > 0
    np.testing.assert_array_equal(found[~is_masked], BATCH["input_ids"][~is_masked])
    assert (found[is_masked] != ORIGINAL[is_masked]).any()


def test_samples_follow_the_place_in_the_global_batch(network):
    def sampled(begin, end):
        part = {name: tf.constant(value[begin:end]) for name, value in BATCH.items()}
        options = ForwardOptions().with_dropout(dropout(begin))
        return TASK.outputs(network.variables, part, options).input_ids

    whole, *parts = run([sampled(0, 4), sampled(0, 1), sampled(1, 4)])
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def gradients_of(network, term):
    """Names of all variables, each with the gradient of a term's loss, None where none flows."""
    options = ForwardOptions().with_dropout(dropout())
    outputs = TASK.outputs(network.variables, features(), options)
    loss = TASK.losses(outputs, features(), options)[term].loss
    variables = network.variables.trainable()
    names = [variable.op.name for variable in variables]
    return dict(zip(names, tf.gradients(loss, variables)))


def test_no_gradient_flows_through_the_sample(network):
    of_words, of_tokens = (gradients_of(network, term) for term in (MASKED_LM, DISCRIMINATOR))
    for name, gradient in of_tokens.items():
        assert (gradient is None) == name.startswith("generator/"), name
    for name, gradient in of_words.items():
        is_shared = name.startswith("bert/embeddings/")
        assert (gradient is not None) == (is_shared or name.startswith("generator/")), name


@pytest.mark.slow
def test_shared_embeddings_get_both_gradients(network):
    tables = [v for v in tf.global_variables() if "word_embeddings" in v.op.name]
    assert [table.op.name for table in tables] == [WORD_EMBEDDINGS]
    parts = [gradients_of(network, term) for term in (MASKED_LM, DISCRIMINATOR)]
    options = ForwardOptions().with_dropout(dropout())
    sums = TASK.losses(TASK.outputs(network.variables, features(), options), features(), options)
    total = tf.add_n([term.loss for term in sums.values()])
    shared = (
        *(WORD_EMBEDDINGS, "bert/embeddings/position_embeddings"),
        "bert/embeddings/LayerNorm/gamma",
    )
    by_name = {v.op.name: v for v in network.variables.trainable()}
    both = tf.gradients(total, [by_name[name] for name in shared])
    wanted = zip(*([part[name] for name in shared] for part in parts), both)
    for first, second, whole in run([list(map(tf.convert_to_tensor, each)) for each in wanted]):
        assert np.abs(first).max() > 0
        assert np.abs(second).max() > 0
        largest = np.abs(whole).max()
        np.testing.assert_allclose(first + second, whole, atol=OF_SUMS * largest)


@pytest.mark.parametrize("options", [ForwardOptions(), NATIVE], ids=["tensorflow", "native"])
def test_both_networks_have_their_own_dropout(options):
    """Networks of the same shape would otherwise drop the same elements of the same layers."""
    task = dataclasses.replace(TASK, generator=CONFIG)
    with tf.Graph().as_default():
        network = create_network(task, options, seed=1)
        seen = []

        class Noted(Dropout):
            """Dropout that notes the state of each draw."""

            def at(self, data_position, first_example):
                return Noted(9, data_position=data_position, first_example=first_example)

            def draw(self, elements, rate, *, site):
                found = super().draw(elements, rate, site=site)
                seen.append(found.counter)
                return found

        place = [tf.constant(value, tf.int64) for value in (3, 0)]
        noted = Noted(9, data_position=place[0], first_example=place[1])
        task.outputs(network.variables, features(), options.with_dropout(noted))
        # Both encoders, the sample, and the layer behind the generator's embeddings, which is
        # built with the generator's own sites and never computed.
        counters = run(seen)
    states = [tuple(counter) for counter in counters]
    sites = 1 + 3 * CONFIG.num_hidden_layers
    assert len(set(states)) == 2 * sites + 1
    assert len(states) == 2 * sites + 1 + 3


def test_what_nothing_reads_is_not_computed(network):
    """The layer behind the generator's embeddings, of which only the embeddings are read."""
    outputs = TASK.outputs(network.variables, features(), ForwardOptions())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        session.run(outputs.logits, options=options, run_metadata=metadata)
    run_there = {node.name for graph in metadata.partition_graphs for node in graph.node}
    assert any(name.startswith("generator/bert/encoder/layer_1") for name in run_there)
    built = {operation.name for operation in tf.get_default_graph().get_operations()}
    layer = "generator/bert/encoder/layer_0"
    products = {name for name in built if name.startswith("generator/") and "MatMul" in name}
    assert layer in {"/".join(name.split("/")[:4]) for name in products}
    # The generator's own layers are built second, under a scope of their own.
    dead = {name for name in products if name.startswith(f"{layer}/")}
    alive = {name for name in products if name.startswith("generator/bert/encoder_1/layer_0/")}
    assert len(dead) == len(alive) > 0
    assert not dead & run_there


def test_predictions_are_of_every_token(network):
    found = run(network.predictions(features()))
    assert found["sampled_ids"].shape == found["replaced_probabilities"].shape == (B, S)
    assert ((found["replaced_probabilities"] > 0) & (found["replaced_probabilities"] < 1)).all()


def test_a_batch_is_memorized():
    """The discriminator finds what the generator, which learns too, still gets wrong."""
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(TASK, ForwardOptions(), seed=1)
        position = tf.placeholder(tf.int64, [])
        first = tf.constant(0, tf.int64)
        masks = Dropout(9, data_position=position, first_example=first)
        sums = network.losses(features(), dropout=masks)
        loss = tf.add_n([term.loss / term.weight for term in sums.values()])
        update = tf.train.AdamOptimizer(3e-3).minimize(loss)
        session.run(tf.global_variables_initializer())
        *_, last = (session.run([sums, update], {position: n})[0] for n in range(150))
    assert last[MASKED_LM].loss / last[MASKED_LM].weight < 2
    found = last[DISCRIMINATOR].metrics
    assert found["replaced"] >= 3
    assert found["caught"] >= found["replaced"] - 1
    assert found["accuracy"] >= last[DISCRIMINATOR].weight - 2


LENGTH = 8


def counted_by_torch(config, class_name):
    """Forward and backward pass of one sequence, with a label at every token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    settings = transformers.ElectraConfig(
        **config.to_dict(), embedding_size=CONFIG.hidden_size, attn_implementation="eager"
    )
    network = getattr(transformers, class_name)(settings)
    ids = torch.ones([1, LENGTH], dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(ids, labels=ids).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("share", [1 / 4, 1.0])
def test_the_flops_are_those_that_torch_counts(share):
    task = ReplacedTokens(generator_hidden_size=share, generator_layers=0.5).task(CONFIG)
    expected = counted_by_torch(CONFIG, "ElectraForPreTraining")
    expected += counted_by_torch(task.generator, "ElectraForMaskedLM")
    assert task.training_flops(length=LENGTH, predictions=LENGTH) == expected


def test_words_cost_what_the_embeddings_are_wide():
    counts = [TASK.training_flops(length=LENGTH, predictions=predictions) for predictions in (0, 3)]
    assert counts[1] - counts[0] == 6 * 3 * 12 * (3 + V)
