import dataclasses
import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import loading
from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, resolve_checkpoint
from bert_tf.compat.estimator.choice import tf_estimator
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import MASKED_LM_HEAD, NEXT_SENTENCE_HEAD
from bert_tf.model.variables import create_variables, frozen_specs
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.update.loss_scale import DynamicLossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.util.errors import UserError
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.programs import ROOT
from tests.helpers.updates import apply_gradients
from tests.unit.checkpoint.tiny_models import SIZES, huggingface_model, save_google

RELEASED = ROOT / "tests/data/uncased_L-8_H-512_A-8"

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
        step = tf.train.create_global_step()
        if extra is not None:
            extra()
        if optimizer is not None:
            apply_gradients(optimizer, [(tf.zeros(v.shape), v) for v in variables])
        session.run(tf.global_variables_initializer())
        session.run(step.assign(7))
        return tf.train.Saver().save(session, str(path), global_step=7)


def without(shapes, *names):
    return {name: shape for name, shape in shapes.items() if name not in names}


def test_every_variable_is_in_one_list(tmp_path):
    stored = {
        "bert/embeddings/word_embeddings": (5, 2),
        "bert/pooler/dense/kernel": (2, 3),
        "cls/predictions/output_bias": (5,),
    }
    path = save(
        tmp_path / "model.ckpt", stored, optimizer=Optimizer("lamb", 0.1), extra=DynamicLossScale
    )
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


def test_a_released_checkpoint_is_named_as_our_network():
    config = BertConfig.from_json_file(f"{RELEASED}.bert_config.json")
    entries = TensorflowCheckpoint(f"{RELEASED}.ckpt").entries
    stored = {name: entry.shape for name, entry in entries.items()}
    assert stored == {spec.name: spec.shape for spec in pretraining_specs(config)}
    with pytest.raises(UserError, match="is incomplete: it has 0 data files"):
        loading.compare(f"{RELEASED}.ckpt", {})


def test_an_index_without_its_data_tells_what_is_missing(tmp_path):
    path = save(tmp_path / "model.ckpt", NETWORK)
    Path(f"{path}.data-00000-of-00001").unlink()
    entries = TensorflowCheckpoint(path).entries
    assert {n: e.shape for n, e in entries.items() if n in NETWORK} == NETWORK
    with pytest.raises(UserError, match="is incomplete: it has 0 data files"):
        loading.compare(path, {})


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
        assert resolve_checkpoint(name) == latest


def test_missing_and_damaged_checkpoints_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        resolve_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"nothing\.ckpt does not exist"):
        resolve_checkpoint(tmp_path / "nothing.ckpt")
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
    path = save(
        tmp_path / "model.ckpt", without(NETWORK, head), fill=3.0, optimizer=Optimizer("adam", 0.1)
    )
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create(NETWORK, fill=-1.0)
        report = loading.initialise_from_checkpoint(path, variables, allowed_fresh=["cls/squad"])
        session.run(tf.global_variables_initializer())
        values = dict(zip(NETWORK, session.run(variables)))
    assert report.fresh == (head,)
    np.testing.assert_array_equal(values.pop(head), np.full([2, 2], -1.0))
    for value in values.values():
        np.testing.assert_array_equal(value, np.full_like(value, 3.0))


def test_a_network_of_which_no_graph_exists_is_compared(tmp_path):
    path = save(tmp_path / "model.ckpt", without(NETWORK, "cls/squad/output_weights"))
    source, report = loading.check_initial(path, NETWORK, allowed_fresh=["cls/squad"])
    assert source.path == path
    assert report.restored == tuple(without(NETWORK, "cls/squad/output_weights"))
    assert report.fresh == ("cls/squad/output_weights",)
    with pytest.raises(UserError, match="it lacks cls/squad/output_weights;"):
        loading.check_initial(path, NETWORK)
    with pytest.raises(UserError, match=r"kernel has \[2, 2\], not \[7, 2\];"):
        loading.check_initial(path, {"bert/pooler/dense/kernel": (7, 2)})


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
    apply_gradients(optimizer, [(tf.zeros(v.shape), v) for v in variables])
    return tf.global_variables()


def test_a_run_can_resume_from_its_own_checkpoint(tmp_path):
    path = save(
        tmp_path / "model.ckpt", NETWORK, optimizer=Optimizer("lamb", 0.1), extra=DynamicLossScale
    )
    with tf.Graph().as_default():
        variables = run_variables(NETWORK, Optimizer("lamb", 0.1), extra=DynamicLossScale)
        report = loading.check_compatible(tmp_path, variables)
    assert (report.checkpoint, len(report.restored)) == (path, 13)
    with tf.Graph().as_default():  # the loss scale is no longer needed in another precision
        report = loading.check_compatible(tmp_path, run_variables(NETWORK, Optimizer("lamb", 0.1)))
    assert report.run_state == ("loss_scale/good_updates", "loss_scale/scale")


def test_a_run_cannot_resume_from_weights_alone(tmp_path):
    path = save(tmp_path / "model.ckpt", NETWORK)
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        loading.check_compatible(tmp_path, run_variables(NETWORK, Optimizer("lamb", 0.1)))
    assert str(error.value).startswith(f"cannot resume from {path}: it has no optimizer state")
    assert "give it as --init_checkpoint" in str(error.value)


@pytest.mark.parametrize(
    ("stored", "optimizer", "words"),
    [
        ({**NETWORK, "bert/pooler/dense/kernel": (9, 9)}, "lamb", "kernel has [9, 9], not [2, 2]"),
        (NETWORK, "adam", "it lacks optimizer/update_count"),
        (without(NETWORK, "bert/pooler/dense/kernel"), "lamb", "it lacks bert/pooler/dense/kernel"),
        ({**NETWORK, "bert/other": (1,)}, "lamb", "it contains bert/other"),
        (
            {name: (8, *shape) for name, shape in NETWORK.items()},
            "lamb",
            "cls/squad/output_weights has [8, 2, 2], not [2, 2] and 6 more",
        ),
    ],
)
def test_a_run_cannot_resume_from_another_models_checkpoint(tmp_path, stored, optimizer, words):
    path = save(tmp_path / "model.ckpt", stored, optimizer=Optimizer(optimizer, 0.1))
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        loading.check_compatible(tmp_path, run_variables(NETWORK, Optimizer("lamb", 0.1)))
    message = str(error.value)
    assert message.startswith(f"cannot resume from {path}: ")
    assert words in message
    assert message.count("\n") == 0


OURS = BertConfig(**SIZES, hidden_act="gelu_erf")


@pytest.fixture(name="theirs")
def huggingface_directory(tmp_path):
    huggingface_model("BertForPreTraining").save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def start_from(path, specs, *, config=OURS, **arguments):
    variables = create_variables(specs, initializer_range=0.02)
    return loading.initialise_from_checkpoint(path, variables.all(), config=config, **arguments)


@pytest.fixture(name="copies")
def directory_of_copies(tmp_path, monkeypatch):
    """Where copies of weights are while they are needed."""
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    return tmp_path / "copies"


def test_a_span_network_starts_from_a_hugging_face_model(theirs):
    with tf.Graph().as_default():
        report = start_from(theirs, SpanTask(OURS).specs(), allowed_fresh=["cls/squad"])
    assert report.fresh == ("cls/squad/output_weights", "cls/squad/output_bias")
    assert report.summary() == [
        f"{theirs / 'model.safetensors'}: 37 variables restored",
        "format: Hugging Face; exact GELU (gelu_erf)",
        "2 not in the checkpoint, fresh: cls/squad/output_weights, cls/squad/output_bias",
        "9 of the checkpoint, unused: bert/pooler/dense/bias, bert/pooler/dense/kernel, "
        "cls/predictions/output_bias, cls/predictions/transform/LayerNorm/beta, "
        "cls/predictions/transform/LayerNorm/gamma, cls/predictions/transform/dense/bias, "
        "cls/predictions/transform/dense/kernel, cls/seq_relationship/output_bias, "
        "cls/seq_relationship/output_weights",
    ]


def test_an_estimator_starts_from_a_hugging_face_model_and_leaves_no_copy(tmp_path, theirs, copies):
    """The session begins after the graph is finished, and the copy goes when the graph does."""

    def model_fn(features, labels, mode):
        start_from(theirs, pretraining_specs(OURS))
        assert len(list(copies.iterdir())) == 1
        step = tf.train.get_or_create_global_step()
        return tf_estimator.EstimatorSpec(
            mode, loss=tf.constant(0.0), train_op=tf.assign_add(step, 1)
        )

    estimator = tf_estimator.Estimator(model_fn, model_dir=str(tmp_path / "run"))
    estimator.train(lambda: tf.data.Dataset.from_tensors([0.0]), steps=1)
    source = open_source(theirs)
    for name in ("bert/embeddings/word_embeddings", "bert/encoder/layer_1/output/dense/kernel"):
        np.testing.assert_array_equal(estimator.get_variable_value(name), source.read(name))
    gc.collect()
    assert not list(copies.iterdir())


def test_a_google_checkpoint_is_read_where_it_is(tmp_path, copies):
    save_google(tmp_path / "google", "BertForPreTraining")
    with tf.Graph().as_default():
        start_from(tmp_path / "google", pretraining_specs(OURS))
        assert not list(copies.iterdir())


def test_a_second_network_starts_from_a_checkpoint_of_its_own(tmp_path):
    google = tmp_path / "google"
    stored = save_google(google, "BertForPreTraining")
    specs = SpanTask(OURS).specs()
    frozen = frozen_specs(pretraining_specs(OURS), prefix="teacher")
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create_variables([*specs, *frozen], initializer_range=0.02)
        of_teacher = variables.frozen("teacher")
        report = loading.initialise_from_checkpoint(google, of_teacher, prefix="teacher/")
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        values = session.run({v.op.name: v for v in variables.all()})
    assert report.fresh == report.unexpected == ()
    assert set(report.restored) == set(stored)
    for name, value in stored.items():
        np.testing.assert_array_equal(values[f"teacher/{name}"], value)
    name = "bert/embeddings/word_embeddings"
    assert not np.any(values[name] == stored[name]), "the first network has read nothing"


def test_another_activation_is_told(theirs):
    google = dataclasses.replace(OURS, hidden_act="gelu")
    with tf.Graph().as_default():
        report = start_from(theirs, pretraining_specs(google), config=google)
    assert report.summary()[-1] == (
        f"warning: the checkpoint was made with gelu_erf ({theirs / 'config.json'}), but this "
        'network computes gelu_tanh; write "hidden_act": "gelu_erf" in its bert_config'
    )


def test_another_number_of_heads_has_the_same_shapes_and_is_refused(theirs):
    config = dataclasses.replace(OURS, num_attention_heads=2)
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        start_from(theirs, pretraining_specs(config), config=config)
    assert (
        f"{theirs / 'config.json'} differs from the network's: num_attention_heads 3 -> 2;"
        in str(error.value)
    )


def test_a_smaller_vocabulary_is_refused_before_anything_is_copied(theirs, copies):
    config = dataclasses.replace(OURS, vocab_size=39)
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        start_from(theirs, pretraining_specs(config), config=config)
    assert "bert/embeddings/word_embeddings has [40, 12], not [39, 12]" in str(error.value)
    assert not list(copies.iterdir())


WORDS = {"cls/predictions/bias": (2,), "cls/predictions/kernel": (2, 2)}
SENTENCES = {"cls/seq_relationship/weights": (2, 2), "cls/seq_relationship/bias": (2,)}
POOLER = {"bert/pooler/dense/kernel": (2, 2), "bert/pooler/dense/bias": (2,)}
ENCODER = {"bert/embeddings/word_embeddings": (5, 2), "bert/embeddings/token_types": (2, 2)}
ALL = {**ENCODER, **POOLER, **WORDS, **SENTENCES}
HEADS = [MASKED_LM_HEAD, NEXT_SENTENCE_HEAD]


@pytest.mark.parametrize(
    ("lacking", "named"),
    [
        (WORDS, ["masked-LM head"]),
        (SENTENCES, ["next-sentence head"]),
        ({**SENTENCES, **POOLER}, ["next-sentence head"]),
        ({**WORDS, **SENTENCES, **POOLER}, ["masked-LM head", "next-sentence head"]),
    ],
    ids=["BertForNextSentencePrediction", "span model", "BertForMaskedLM", "run_squad.py"],
)
def test_whole_heads_may_be_missing_and_are_named(tmp_path, lacking, named):
    path = save(tmp_path / "model.ckpt", without(ALL, *lacking))
    with tf.Graph().as_default():
        report = loading.initialise_from_checkpoint(path, create(ALL), heads=HEADS)
    assert set(report.fresh) == set(lacking)
    assert report.notes == tuple(
        f"the checkpoint has no {name}, so it starts from random weights" for name in named
    )


@pytest.mark.parametrize(
    "lacking",
    [
        ["cls/predictions/bias"],
        ["cls/seq_relationship/bias"],
        ["bert/pooler/dense/bias"],
        list(POOLER),
        [*SENTENCES, "bert/pooler/dense/bias"],
        ["bert/embeddings/token_types"],
        [*WORDS, "bert/embeddings/token_types"],
    ],
    ids=" ".join,
)
def test_parts_of_heads_and_of_the_encoder_may_not_be_missing(tmp_path, lacking):
    path = save(tmp_path / "model.ckpt", without(ALL, *lacking))
    with tf.Graph().as_default(), pytest.raises(UserError) as error:
        loading.initialise_from_checkpoint(path, create(ALL), heads=HEADS)
    expected = [name for name in lacking if name not in {**WORDS, **SENTENCES}] or lacking
    assert f"cannot start from {path}: it lacks {expected[0]}" in str(error.value)
