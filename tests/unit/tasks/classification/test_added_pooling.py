"""Another pooling for classification is a class of its own: mean or maximum of a text's tokens."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.layers import activate, dense
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model.variables import dense_specs
from bert_tf.tasks.classification import run as classification
from bert_tf.tasks.classification.flags import (
    classification_settings,
    define_classification_flags,
)
from bert_tf.tasks.classification.task import CLS, ClassificationTask, Pooling
from bert_tf.util.errors import UserError
from tests.helpers import squad_files
from tests.helpers.glue_files import write_data
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.small_span_model import write_model
from tests.helpers.tensors import variables_of

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    initializer_range=0.2,
)
LENGTHS = np.array([35, 3, 17, 1, 22])  # more tokens than the step that rows are rounded up to
B, S, CLASSES = len(LENGTHS), 35, 3
MASK = (np.arange(S) < LENGTHS[:, None]).astype(np.int32)
TINY = 1e-5


@dataclasses.dataclass(frozen=True)
class TokenPooling(Pooling):
    """Mean or maximum over the tokens of a text, then a dense layer with tanh."""

    kind: str

    scope = "token_pooler"

    def specs(self, config):
        return dense_specs(self.scope, inputs=config.hidden_size, outputs=config.hidden_size)

    def positions_read(self, mask):
        return mask

    def pool(self, sequence_output, mask, variables, options):
        is_token = tf.cast(mask, tf.float32)[..., tf.newaxis]
        if self.kind == "mean":
            sums = tf.reduce_sum(sequence_output * is_token, axis=1)
            reduced = sums / tf.reduce_sum(is_token, axis=1)
        else:
            reduced = tf.reduce_max(sequence_output + (is_token - 1) * 1e9, axis=1)
        pooled = dense(reduced, variables, self.scope, policy=options.policy)
        return activate(pooled, "tanh", policy=options.policy)


POOLINGS = {kind: TokenPooling(kind) for kind in ("mean", "max")}
each_pooling = pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS)


def features_of():
    draw = np.random.default_rng(0)
    ids = draw.integers(50, size=(B, S), dtype=np.int32)
    segments = draw.integers(2, size=(B, S), dtype=np.int32) * MASK
    labels = draw.integers(CLASSES, size=B).astype(np.float32)
    return {**dict(zip(INPUTS, (ids, MASK, segments))), "labels": labels}


def constants(features):
    return {name: tf.constant(value) for name, value in features.items()}


@each_pooling
def test_padding_is_left_out(pooling):
    """Against numpy, with anything at all at padding, where the encoder's output is undefined."""
    hidden = np.random.default_rng(1).normal(size=[B, S, CONFIG.hidden_size]).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(ClassificationTask(CONFIG, CLASSES, pooling), ForwardOptions())
        given = tf.constant(np.where(MASK[..., None], hidden, 1e3).astype(np.float32))
        logits = network.task.head_outputs(
            given, network.variables, constants(features_of()), network.options
        )
        [gradient] = tf.gradients(tf.reduce_sum(tf.square(logits)), given)
        session.run(tf.global_variables_initializer())
        variables = session.run({v.op.name: v for v in network.variables.trainable()})
        logits, gradient = session.run([logits, gradient])
    reduce = {"mean": np.mean, "max": np.max}[pooling.kind]
    reduced = [reduce(hidden[b, :length], axis=0) for b, length in enumerate(LENGTHS)]
    kernel, bias = variables["token_pooler/kernel"], variables["token_pooler/bias"]
    pooled = np.tanh(np.array(reduced) @ kernel + bias)
    expected = pooled @ variables["output_weights"].T + variables["output_bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=TINY)
    reached = np.abs(gradient).max(axis=-1) > 0
    if pooling.kind == "mean":
        np.testing.assert_array_equal(reached, MASK == 1)
    else:
        assert not reached[MASK == 0].any()


def computed(pooling, options):
    """The logits, and the gradients of the loss."""
    with tf.Graph().as_default(), tf.Session() as session:
        task = ClassificationTask(CONFIG, CLASSES, pooling)
        network = create_network(task, options, seed=3)
        given = constants(features_of())
        logits = network.predictions(given)["logits"]
        [sums] = network.losses(given).values()
        trained = network.variables.trainable()
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(sums.loss, trained)]
        session.run(tf.global_variables_initializer())
        return session.run([logits, *gradients])


@requires_native_ops
@each_pooling
def test_rows_of_padding_may_be_skipped(pooling):
    """The native layers compute the last layer where it is read only, and no padding."""
    expected = computed(pooling, ForwardOptions())
    found = computed(pooling, ForwardOptions(native_layers=True, skip_padding=True))
    for given, known in zip(found, expected):
        np.testing.assert_allclose(given, known, rtol=1e-4, atol=TINY)


@each_pooling
def test_positions_of_padding_may_be_cut(pooling):
    with tf.Graph().as_default(), tf.Session() as session:
        task = ClassificationTask(CONFIG, CLASSES, pooling)
        network = create_network(task, ForwardOptions(), seed=3)
        cut = features_of()
        padded = {name: np.pad(cut[name], [(0, 0), (0, 5)]) for name in INPUTS}
        both = [network.predictions(constants(given))["logits"] for given in (cut, padded)]
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(*session.run(both), rtol=1e-4, atol=TINY)


@pytest.fixture(name="start", scope="module")
def sentences_and_a_vocabulary(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    write_data(directory / "SST-2")
    squad_files.write_model(directory / "new")
    write_model(directory / "pretrained", span_head=False)
    return directory


def run(start, output_dir, *more, pooling):
    values = absl_flags.FlagValues()
    define_classification_flags(values)
    given = [
        *("--task_name=SST-2", f"--data_dir={start / 'SST-2'}", f"--output_dir={output_dir}"),
        *("--max_seq_length=16", "--precision=fp32", "--do_eval", *more),
    ]
    values(["run_classifier.py", *given])
    return classification.run(classification_settings(values), pooling=pooling)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "buckets"),
    [
        pytest.param(POOLINGS["mean"], "--length_buckets", id="mean"),
        pytest.param(POOLINGS["max"], "--nolength_buckets", id="max", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_learns_with_it(start, tmp_path, pooling, buckets):
    new = [
        f"--bert_config_file={start / 'new' / 'bert_config.json'}",
        f"--vocab_file={start / 'new' / 'vocab.txt'}",
    ]
    taught = ["--do_train", "--learning_rate=2e-3", "--num_train_steps=40", buckets]
    train = functools.partial(run, start, tmp_path / "run", pooling=pooling)
    results = train(*new, *taught, "--train_batch_size=16")
    assert results["eval_accuracy"] > 0.9
    assert {"token_pooler/kernel", "token_pooler/bias"} <= set(variables_of(tmp_path / "run"))
    assert train(buckets)["eval_loss"] == pytest.approx(results["eval_loss"], rel=1e-4)
    with pytest.raises(UserError, match=r"cannot resume from .*bert/pooler/dense"):
        run(start, tmp_path / "run", pooling=CLS)


def test_a_pretrained_network_need_not_have_it(start, tmp_path, capsys):
    pretrained = f"--init_checkpoint={start / 'pretrained'}"
    dry = ["--do_train", "--dry_run", "--max_seq_length=16", pretrained]
    assert run(start, tmp_path / "run", *dry, pooling=POOLINGS["mean"]) is None
    out = capsys.readouterr().out
    assert "the checkpoint has no classification head, so it starts from random weights" in out
    assert "token_pooler/kernel" in out
