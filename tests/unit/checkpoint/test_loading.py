from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import loading
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.model.pretraining import pretraining_specs
from bert_tf.training.loss_scale import DynamicLossScale
from bert_tf.training.optimizers import AdamW, Lamb

RELEASED = Path(__file__).parents[4] / "shared/data/checkpoint-index/uncased_L-8_H-512_A-8"

NETWORK = {
    "bert/embeddings/word_embeddings": (5, 2),
    "bert/pooler/dense/kernel": (2, 2),
    "cls/squad/output_weights": (2, 2),
}


def create(shapes, *, fill=0.0):
    return [
        tf.get_variable(name, shape, initializer=tf.constant_initializer(fill), use_resource=True)
        for name, shape in shapes.items()
    ]


def save(path, shapes, *, fill=1.0, optimizer=None, extra=None):
    """A checkpoint whose variables are full of ``fill``, after one update of ``optimizer``."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create(shapes, fill=fill)
        tf.train.create_global_step()
        if extra is not None:
            extra()
        if optimizer is not None:
            optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in variables])
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(path), global_step=7)


def without(shapes, *names):
    return {name: shape for name, shape in shapes.items() if name not in names}


def test_every_variable_is_in_one_list(tmp_path):
    stored = {
        "bert/embeddings/word_embeddings": (5, 2),
        "bert/pooler/dense/kernel": (2, 3),
        "cls/predictions/output_bias": (5,),
    }
    path = save(tmp_path / "model.ckpt", stored, optimizer=Lamb(0.1), extra=DynamicLossScale)
    report = loading.compare(path, NETWORK)
    assert report.checkpoint == path
    assert report.restored == ("bert/embeddings/word_embeddings",)
    assert report.fresh == ("cls/squad/output_weights",)
    assert report.unexpected == ("cls/predictions/output_bias",)
    assert report.mismatched == (("bert/pooler/dense/kernel", (2, 3), (2, 2)),)
    assert report.run_state == (
        "bert/embeddings/word_embeddings/adam_m",
        "bert/embeddings/word_embeddings/adam_v",
        "bert/pooler/dense/kernel/adam_m",
        "bert/pooler/dense/kernel/adam_v",
        "cls/predictions/output_bias/adam_m",
        "cls/predictions/output_bias/adam_v",
        "global_step",
        "loss_scale/good_updates",
        "loss_scale/scale",
        "optimizer/update_count",
    )
    assert report.summary() == [
        f"{path}: 1 variables restored",
        "1 not in the checkpoint, fresh: cls/squad/output_weights",
        "1 of the checkpoint, unused: cls/predictions/output_bias",
        "1 of other shapes: bert/pooler/dense/kernel has [2, 3], not [2, 2]",
        "10 of a run's state, not needed",
    ]


def test_a_complete_checkpoint_needs_one_line(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        create(NETWORK)
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "bert_model.ckpt"))
    assert loading.compare(path, NETWORK).summary() == [f"{path}: 3 variables restored"]


@pytest.mark.skipif(not RELEASED.parent.exists(), reason="needs ../shared/data")
def test_a_released_checkpoint_is_named_as_our_network():
    config = BertConfig.from_json_file(f"{RELEASED}.bert_config.json")
    entries = TensorflowCheckpoint(f"{RELEASED}.ckpt").entries
    stored = {name: entry.shape for name, entry in entries.items()}
    assert stored == {spec.name: spec.shape for spec in pretraining_specs(config)}
    with pytest.raises(UserError, match="is incomplete: it has 0 data files"):
        loading.compare(f"{RELEASED}.ckpt", {})


def test_ways_to_name_a_checkpoint(tmp_path):
    save(tmp_path / "model.ckpt", without(NETWORK, "cls/squad/output_weights"))
    latest = str(tmp_path / "model.ckpt-7")
    for name in (
        tmp_path,
        latest,
        f"{latest}.index",
        f"{latest}.meta",
        f"{latest}.data-00000-of-00001",
    ):
        assert loading.resolve_checkpoint(name) == latest


def test_missing_and_damaged_checkpoints_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        loading.resolve_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"nothing\.ckpt does not exist"):
        loading.resolve_checkpoint(tmp_path / "nothing.ckpt")
    path = save(tmp_path / "model.ckpt", NETWORK)
    index = Path(f"{path}.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        loading.compare(path, NETWORK)
    index.write_bytes(whole)
    Path(f"{path}.data-00000-of-00001").rename(f"{path}.data-00000-of-00002")
    with pytest.raises(UserError, match="is incomplete: it has 1 data files"):
        loading.compare(path, NETWORK)


def test_initial_values_come_from_the_checkpoint(tmp_path):
    head = "cls/squad/output_weights"
    path = save(tmp_path / "model.ckpt", without(NETWORK, head), fill=3.0, optimizer=AdamW(0.1))
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create(NETWORK, fill=-1.0)
        report = loading.initialise_from_checkpoint(path, variables, allowed_fresh=["cls/squad"])
        session.run(tf.global_variables_initializer())
        values = dict(zip(NETWORK, session.run(variables)))
    assert report.fresh == (head,)
    np.testing.assert_array_equal(values.pop(head), np.full([2, 2], -1.0))
    for value in values.values():
        np.testing.assert_array_equal(value, np.full_like(value, 3.0))


def test_a_missing_variable_is_an_error_unless_its_scope_may_be_fresh(tmp_path):
    stored = without(NETWORK, "cls/squad/output_weights")
    path = save(tmp_path / "model.ckpt", stored)
    for scopes in ([], ["cls/squ"], ["cls/squad/output"], ["bert"]):
        with tf.Graph().as_default(), pytest.raises(UserError) as error:
            loading.initialise_from_checkpoint(path, create(NETWORK), allowed_fresh=scopes)
        assert f"cannot start from {path}: it lacks cls/squad/output_weights;" in str(error.value)


def test_other_shapes_are_an_error_even_in_a_scope_that_may_be_fresh(tmp_path):
    path = save(tmp_path / "model.ckpt", {**NETWORK, "cls/squad/output_weights": (3, 2)})
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        loading.initialise_from_checkpoint(path, create(NETWORK), allowed_fresh=["cls"])
    assert f"{path}: cls/squad/output_weights has [3, 2], not [2, 2];" in str(error.value)


def run_variables(shapes, optimizer, *, extra=None):
    variables = create(shapes)
    tf.train.create_global_step()
    if extra is not None:
        extra()
    optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in variables])
    return tf.global_variables()


def test_a_run_can_resume_from_its_own_checkpoint(tmp_path):
    path = save(tmp_path / "model.ckpt", NETWORK, optimizer=Lamb(0.1), extra=DynamicLossScale)
    with tf.Graph().as_default():
        variables = run_variables(NETWORK, Lamb(0.1), extra=DynamicLossScale)
        report = loading.check_compatible(tmp_path, variables)
    assert (report.checkpoint, len(report.restored)) == (path, 13)
    with tf.Graph().as_default():  # the loss scale is no longer needed in another precision
        report = loading.check_compatible(tmp_path, run_variables(NETWORK, Lamb(0.1)))
    assert report.run_state == ("loss_scale/good_updates", "loss_scale/scale")


@pytest.mark.parametrize(
    ("stored", "optimizer", "words"),
    [
        ({**NETWORK, "bert/pooler/dense/kernel": (9, 9)}, Lamb, "kernel has [9, 9], not [2, 2]"),
        (NETWORK, AdamW, "it lacks optimizer/update_count"),
        (without(NETWORK, "bert/pooler/dense/kernel"), Lamb, "it lacks bert/pooler/dense/kernel"),
        ({**NETWORK, "bert/other": (1,)}, Lamb, "it holds bert/other"),
        (
            {name: (8, *shape) for name, shape in NETWORK.items()},
            Lamb,
            "cls/squad/output_weights has [8, 2, 2], not [2, 2] and 6 more",
        ),
    ],
)
def test_a_run_cannot_resume_from_another_models_checkpoint(tmp_path, stored, optimizer, words):
    path = save(tmp_path / "model.ckpt", stored, optimizer=optimizer(0.1))
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        loading.check_compatible(tmp_path, run_variables(NETWORK, Lamb(0.1)))
    message = str(error.value)
    assert message.startswith(f"cannot resume from {path}: ")
    assert words in message
    assert message.count("\n") == 0
