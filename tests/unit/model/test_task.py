"""Heads that read a few positions: what nothing reads of the last layer is not computed."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import DistillationTask
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.tagging.task import TaggingTask
from tests.helpers.native_ops import requires_native_ops

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    initializer_range=0.2,
)
LENGTHS = np.array([40, 3, 17, 9, 22])
B, S, P = len(LENGTHS), LENGTHS.max(), 3
BOTH = "words and sentences"
STEP = 64  # the number of rows is a multiple

CLASSES = ClassificationTask(CONFIG, num_classes=3)
WORDS = PretrainingTask(CONFIG, next_sentence=False)
TASKS = {
    "words": WORDS,
    "sentences": PretrainingTask(CONFIG, masked_lm=False),
    BOTH: PretrainingTask(CONFIG),
    "classes": CLASSES,
    "labels": TaggingTask(CONFIG, 3),
    "distilled words": DistillationTask(
        WORDS, WORDS, DistillationSettings("", restrict_ce_to_mask=True, alpha_cos=0.0)
    ),
    "distilled classes": DistillationTask(
        CLASSES, CLASSES, DistillationSettings("", alpha_cos=0.0)
    ),
}
READING_EVERYTHING = {
    "answers": SpanTask(CONFIG),
    "all words": PretrainingTask(CONFIG, score_all_tokens=True),
    "compared hidden states": DistillationTask(
        WORDS, WORDS, DistillationSettings("", restrict_ce_to_mask=True, alpha_cos=1.0)
    ),
}


def features():
    draw = np.random.default_rng(0)
    mask = (np.arange(S) < LENGTHS[:, None]).astype(np.int32)
    # The last prediction only fills up, as its position and weight of 0 say.
    positions = np.array([[1, 38, 0], [1, 2, 0], [5, 16, 0], [8, 3, 0], [20, 21, 0]], np.int32)
    return {
        "input_ids": draw.integers(50, size=(B, S), dtype=np.int32),
        "input_mask": mask,
        "segment_ids": draw.integers(2, size=(B, S), dtype=np.int32) * mask,
        "masked_lm_positions": positions,
        "masked_lm_ids": draw.integers(50, size=(B, P), dtype=np.int32),
        "masked_lm_weights": np.float32([[1, 1, 0]] * B),
        "next_sentence_labels": draw.integers(2, size=(B, 1), dtype=np.int32),
        "labels": draw.integers(3, size=B).astype(np.float32),
        "word_starts": mask * (np.arange(S) % 4 == 1),
        "label_ids": mask * (np.arange(S) % 3),
        "start_positions": np.ones([B, 1], np.int32),
        "end_positions": np.full([B, 1], 2, np.int32),
    }


def computed(task, options):
    """The loss, the gradients, and the rows of what follows the attention in each layer."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        given = {name: tf.placeholder_with_default(v, v.shape) for name, v in features().items()}
        network = create_network(task, options, seed=3)
        place = tf.constant(3, tf.int64), tf.constant(7, tf.int64)
        dropout = Dropout(5, data_position=place[0], first_example=place[1])
        sums = network.losses(given, dropout=dropout)
        loss = tf.add_n([s.loss / s.weight for s in sums.values()])
        trained = network.variables.trainable()
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, trained)]
        merged = [op for op in graph.get_operations() if op.type == "BertTfAttention"]
        rows = [tf.shape(op.outputs[0])[0] for op in merged]
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        loss, gradients, rows = session.run([loss, gradients, rows])
    return loss, dict(zip((v.op.name for v in trained), gradients)), rows


@requires_native_ops
@pytest.mark.parametrize(
    ("name", "precision", "skip_padding"),
    [
        *((name, "fp32", True) for name in TASKS if not name.startswith("distilled")),
        *(
            pytest.param(name, "fp32", True, marks=pytest.mark.slow)
            for name in TASKS
            if name.startswith("distilled")
        ),
        pytest.param(BOTH, "fp32", False, marks=pytest.mark.slow),
        (BOTH, "bf16", True),
    ],
)
def test_what_no_head_reads_changes_nothing(name, precision, skip_padding, monkeypatch):
    """Dropout included: every position draws the same numbers."""
    tolerance = {"fp32": 1e-5, "bf16": 2.0**-6}[precision]
    options = ForwardOptions(policy_for(precision), native_layers=True, skip_padding=skip_padding)
    loss, gradients, rows = computed(TASKS[name], options)
    layers = [2 * STEP if skip_padding else B * S, STEP]
    assert rows == layers * (len(rows) // 2)
    for task in (PretrainingTask, ClassificationTask, TaggingTask):
        monkeypatch.setattr(task, "positions_read", lambda *_: None)
    expected_loss, expected, all_rows = computed(TASKS[name], options)
    assert all_rows == [layers[0]] * len(rows)
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    whole = np.sqrt(sum(np.square(g).sum() for g in expected.values()))
    assert whole > 0
    for variable, gradient in expected.items():
        difference = np.linalg.norm(gradients[variable] - gradient)
        assert difference <= tolerance * whole, variable


@requires_native_ops
@pytest.mark.parametrize("name", READING_EVERYTHING)
def test_where_everything_is_read_all_layers_are_whole(name):
    _, _, rows = computed(READING_EVERYTHING[name], ForwardOptions(native_layers=True))
    assert set(rows) == {B * S}


def test_the_plain_form_computes_everything(monkeypatch):
    found = computed(TASKS["words"], ForwardOptions())
    monkeypatch.setattr(PretrainingTask, "positions_read", lambda *_: None)
    expected = computed(TASKS["words"], ForwardOptions())
    assert found[0] == expected[0]
    for name, gradient in expected[1].items():
        np.testing.assert_array_equal(found[1][name], gradient, err_msg=name)
