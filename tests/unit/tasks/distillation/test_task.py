"""The distillation task against torch, where transformers' networks hold the same weights.

What the losses are is said here again as in Hugging Face's programs: DistilBERT's
``distillation/distiller.py``, ``run_squad_w_distillation.py``; and as in TinyBERT's paper.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.losses import means
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.model_directory.classes import REGRESSION, SINGLE_LABEL
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.classification.task import ClassificationLoss, ClassificationTask
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import TEACHER, DistillationTask, matching_layers
from bert_tf.tasks.distillation.teacher import initial_layers
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.torch_networks import (
    random_values,
    relative_errors,
    torch_gradients,
    torch_inputs,
    torch_network,
)

torch = pytest.importorskip("torch")
F = torch.nn.functional

TOLERANCE = 1e-5
B, S, P, V = 4, 9, 3, 37
STUDENT = BertConfig(
    vocab_size=V,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=11,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
TALLER = dataclasses.replace(STUDENT, num_hidden_layers=2, intermediate_size=16)
# TinyBERT's terms pair layers, so that one would not do.
OF_TWO_LAYERS = dataclasses.replace(STUDENT, num_hidden_layers=2)
WIDER = dataclasses.replace(STUDENT, num_hidden_layers=3, hidden_size=18)
FP32 = ForwardOptions(policy_for("fp32"))
# Words of one to three pieces, between [CLS] and [SEP].
WORD_STARTS = [
    [0, 1, 1, 0, 0, 1, 0, 1, 0],
    [0, 1, 0, 1, 1, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 1, 1, 0, 0, 0, 0, 0],
]
NATIVE = FP32.with_native_layers()
SKIPPING = dataclasses.replace(NATIVE, skip_padding=True)


def batch():
    """Four sequences of different lengths and numbers of masked words, one without any."""
    rng = np.random.RandomState(5)
    lengths = np.array([9, 6, 3, 7])
    is_mask = np.arange(P) < np.array([3, 1, 0, 2])[:, None]
    places = np.stack([rng.permutation(length)[:P] for length in lengths])
    return {
        "input_ids": rng.randint(0, V, [B, S]).astype(np.int32),
        "input_mask": (np.arange(S) < lengths[:, None]).astype(np.int32),
        "segment_ids": (np.arange(S) >= np.array([4, 6, 1, 5])[:, None]).astype(np.int32),
        "masked_lm_positions": np.where(is_mask, places, 0).astype(np.int32),
        "masked_lm_ids": np.where(is_mask, rng.randint(0, V, [B, P]), 0).astype(np.int32),
        "masked_lm_weights": is_mask.astype(np.float32),
        "start_positions": np.int32([[4], [0], [2], [1]]),
        "end_positions": np.int32([[6], [0], [2], [5]]),
        "labels": np.float32([2, 0, 1, 2]),
        "word_starts": np.int32(WORD_STARTS),
        "label_ids": np.int32(WORD_STARTS) * rng.randint(0, 3, [B, S]),
    }


BATCH = batch()


def values_of(task):
    """Values for the variables of both networks, by name."""
    return random_values(task.specs())


def of_teacher(values):
    prefix = f"{TEACHER}/"
    return {n[len(prefix) :]: v for n, v in values.items() if n.startswith(prefix)}


def of_student(values):
    """Without the projection, which transformers' networks do not have."""
    return {n: v for n, v in values.items() if not n.startswith((TEACHER, "distillation"))}


def losses_of(task, *, options=FP32, with_gradients=True):
    """The loss and the metrics of each term, and the gradient of each trained variable."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        network = create_network(task, options)
        trained = network.variables.trainable()
        sums = network.losses({name: tf.constant(value) for name, value in BATCH.items()})
        total = tf.add_n([term.loss / term.weight for term in sums.values()])
        gradients = tf.gradients(total, trained) if with_gradients else []
        load_values(session, network)
        sums, gradients = session.run([sums, [tf.convert_to_tensor(g) for g in gradients]])
        assert_teacher_is_only_read(graph, network)
    return means(sums), dict(zip([v.op.name for v in trained], gradients))


def update_of(task, *, options, accumulation_steps):
    """The same of a whole update, of several micro batches."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        network = create_network(task, options)
        rate = tf.constant(0.0)
        outputs = build_train_op(
            network,
            {name: tf.constant(value) for name, value in BATCH.items()},
            plan=BatchPlan(B // accumulation_steps, accumulation_steps, world_size=1),
            optimizer=Optimizer("adam", rate),
            learning_rate=rate,
            loss_scale=LossScale(),
            ranks=SingleProcess(1),
            settings=UpdateSettings(clip_norm=None),
        )
        load_values(session, network)
        sums, gradients = session.run([outputs.term_sums, outputs.gradients])
        assert_teacher_is_only_read(graph, network)
    return means(sums), dict(zip([v.op.name for v in network.variables.trainable()], gradients))


def load_values(session, network):
    """Instead of the random ones."""
    values = values_of(network.task)
    given = {v.initializer.inputs[1]: values[v.op.name] for v in network.variables.all()}
    variables = (*tf.global_variables(), *tf.local_variables())
    session.run([variable.initializer for variable in variables], given)


def assert_teacher_is_only_read(graph, network):
    """No gradient, no moment, nothing that is saved; and it is sent to other ranks once."""
    frozen = network.variables.frozen(TEACHER)
    assert frozen
    # Ranks share global variables and these; the former are what is trained and saved.
    assert [v for v in tf.model_variables() if v.op.name.startswith(TEACHER)] == frozen
    others = (*tf.trainable_variables(), *tf.global_variables())
    assert [v.op.name for v in others if TEACHER in v.op.name] == []
    operations = [operation.name for operation in graph.get_operations()]
    assert any(f"{TEACHER}/" in name for name in operations)
    backward = [name for name in operations if "gradients" in name and f"/{TEACHER}/" in name]
    assert backward == []


def assert_same(found, losses, gradients):
    terms, ours = found
    assert {name: term["loss"] for name, term in terms.items()} == pytest.approx(
        losses, rel=TOLERANCE
    )
    errors = relative_errors(ours, gradients)
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


def torch_networks(class_name, task, **settings):
    """Student and teacher, the latter without gradients."""
    values = values_of(task)
    student = torch_network(class_name, task.config, of_student(values), **settings)
    teacher = torch_network(class_name, task.teacher.config, of_teacher(values), **settings)
    return student, teacher.requires_grad_(False)


def expected_of(task, student, losses):
    """The values of torch's losses, and its gradients of their sum."""
    sum(losses.values()).backward()
    gradients = torch_gradients(student, of_student(values_of(task)))
    return {name: loss.item() for name, loss in losses.items()}, gradients


def kl_divergence(student, teacher, temperature):
    """Of [decisions, classes]; the mean over decisions, as in Hugging Face's programs."""
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    learnt = F.log_softmax(student / temperature, dim=-1)
    return divergence(learnt, F.softmax(teacher / temperature, dim=-1)) * temperature**2


def distilbert(**changes):
    """The task of the published run; ``changes`` replace settings."""
    settings = DistillationSettings("teacher", **changes)
    everywhere = not settings.restrict_ce_to_mask
    return DistillationTask(
        PretrainingTask(STUDENT, next_sentence=False, score_all_tokens=everywhere),
        PretrainingTask(TALLER, next_sentence=False, score_all_tokens=everywhere),
        settings,
    )


def distilbert_in_torch(task):
    """``Distiller.step``."""
    settings = task.settings
    student, teacher = torch_networks("BertForMaskedLM", task)
    inputs = torch_inputs(BATCH)
    labels = np.full([B, S], -100)
    for row, column in zip(*np.nonzero(BATCH["masked_lm_weights"])):
        place = BATCH["masked_lm_positions"][row, column]
        labels[row, place] = BATCH["masked_lm_ids"][row, column]
    lm_labels = torch.tensor(labels)
    learnt = student(**inputs, output_hidden_states=True)
    known = teacher(**inputs, output_hidden_states=True)
    attention_mask = inputs["attention_mask"].bool()
    mask = lm_labels > -1 if settings.restrict_ce_to_mask else attention_mask
    hidden = [out.hidden_states[-1][attention_mask] for out in (learnt, known)]
    ones = torch.ones(len(hidden[0]), dtype=torch.float64)
    losses = {
        "masked_lm": settings.alpha_label
        * F.cross_entropy(learnt.logits.view(-1, V), lm_labels.view(-1), ignore_index=-100),
        "soft_targets": settings.alpha_ce
        * kl_divergence(learnt.logits[mask], known.logits[mask], settings.temperature),
        "cosine": settings.alpha_cos
        * torch.nn.CosineEmbeddingLoss(reduction="mean")(*hidden, ones),
    }
    return expected_of(task, student, losses)


def test_the_published_run():
    """Its flags: --temperature 2.0 --alpha_ce 5.0 --alpha_mlm 2.0 --alpha_cos 1.0."""
    settings = DistillationSettings("teacher")
    assert (settings.temperature, settings.alpha_ce) == (2, 5)
    assert (settings.alpha_label, settings.alpha_cos) == (2, 1)
    assert (settings.alpha_hidden, settings.alpha_attention) == (0, 0)
    assert not settings.restrict_ce_to_mask
    assert (settings.min_target_probability, settings.top_k_targets) == (0, None)


def test_the_loss_of_distilbert():
    task = distilbert()
    assert_same(losses_of(task), *distilbert_in_torch(task))


@requires_native_ops
def test_as_many_targets_as_words_are_all_of_them():
    task = distilbert(top_k_targets=V, temperature=3.0)
    assert_same(losses_of(task, options=NATIVE), *distilbert_in_torch(task))


@pytest.mark.slow
@requires_native_ops
def test_the_loss_of_distilbert_over_micro_batches():
    """They have unequal numbers of tokens and of masked words, one of them none."""
    task = distilbert(restrict_ce_to_mask=True, alpha_ce=0.7, alpha_cos=3.0)
    found = update_of(task, options=SKIPPING, accumulation_steps=4)
    assert_same(found, *distilbert_in_torch(task))


def test_metrics_are_without_factors():
    """What is shown can be compared between runs with other weights and temperatures."""
    terms, _ = losses_of(distilbert(), with_gradients=False)
    metrics = {"masked_lm": "cross_entropy", "soft_targets": "divergence", "cosine": "distance"}
    factors = {"masked_lm": 2.0, "soft_targets": 5.0 * 2**2, "cosine": 1.0}
    assert list(terms) == list(metrics)
    for term, metric in metrics.items():
        shown = terms[term][metric]
        assert terms[term]["loss"] == pytest.approx(factors[term] * shown, rel=1e-6)


def test_fewer_targets_are_a_part_of_the_divergence():
    whole, _ = losses_of(distilbert(), with_gradients=False)
    fewer = distilbert(top_k_targets=3, min_target_probability=0.05)
    part, _ = losses_of(fewer, with_gradients=False)
    assert 0 < part["soft_targets"]["divergence"] < whole["soft_targets"]["divergence"]
    for term in ("masked_lm", "cosine"):
        assert part[term] == pytest.approx(whole[term], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, None),
        ({"top_k_targets": 5}, 5),
        ({"top_k_targets": 1000}, V),
        ({"min_target_probability": 0.3}, 3),
        ({"min_target_probability": 0.9}, 1),
        ({"min_target_probability": 1e-4}, V),
        ({"min_target_probability": 0.1, "top_k_targets": 20}, 10),
        ({"min_target_probability": 0.1, "top_k_targets": 2}, 2),
    ],
)
def test_no_more_targets_are_looked_up_than_there_can_be(changes, most):
    assert distilbert(**changes).most_targets() == most


FINETUNING = DistillationSettings("teacher", alpha_ce=0.5, alpha_label=0.5, alpha_cos=2.0)


@requires_native_ops
def test_question_answering():
    """``(loss_start + loss_end) / 2`` of the teacher's, and of the labels'; over tokens only."""
    task = DistillationTask(SpanTask(STUDENT), SpanTask(TALLER), FINETUNING)
    student, teacher = torch_networks("BertForQuestionAnswering", task)
    inputs = {**torch_inputs(BATCH), "output_hidden_states": True}
    learnt, known = student(**inputs), teacher(**inputs)
    padding = ~inputs["attention_mask"].bool()
    divergences, entropies = [], []
    for logits, positions in (("start_logits", "start_positions"), ("end_logits", "end_positions")):
        scores = [out[logits].masked_fill(padding, -1e4) for out in (learnt, known)]
        divergences.append(kl_divergence(*scores, FINETUNING.temperature))
        entropies.append(F.cross_entropy(scores[0], torch.tensor(BATCH[positions][:, 0]).long()))
    losses = {
        "position": 0.5 * sum(entropies) / 2,
        "soft_targets": 0.5 * sum(divergences) / 2,
        "cosine": 2 * distances_of_angles(learnt, known, ~padding),
    }
    assert_same(losses_of(task, options=SKIPPING), *expected_of(task, student, losses))


def distances_of_angles(learnt, known, tokens):
    """Of the last hidden states, the mean over tokens."""
    hidden = [out.hidden_states[-1][tokens] for out in (learnt, known)]
    return (1 - F.cosine_similarity(*hidden)).mean()


def classification(num_classes):
    loss = ClassificationLoss(SINGLE_LABEL if num_classes > 1 else REGRESSION)
    student, teacher = (ClassificationTask(c, num_classes, loss=loss) for c in (STUDENT, TALLER))
    return DistillationTask(student, teacher, FINETUNING)


@pytest.mark.parametrize("num_classes", [3, 1], ids=["classes", "a regression"])
def test_classification(num_classes):
    task = classification(num_classes)
    student, teacher = torch_networks("BertForSequenceClassification", task, num_labels=num_classes)
    inputs = {**torch_inputs(BATCH), "output_hidden_states": True}
    learnt, known = student(**inputs), teacher(**inputs)
    tokens = inputs["attention_mask"].bool()
    labels = torch.tensor(BATCH["labels"]).double()
    if num_classes == 1:
        of_labels = F.mse_loss(learnt.logits[:, 0], labels)
        of_scores = F.mse_loss(learnt.logits, known.logits)
    else:
        of_labels = F.cross_entropy(learnt.logits, labels.long())
        of_scores = kl_divergence(learnt.logits, known.logits, 2.0)
    losses = {
        "label": 0.5 * of_labels,
        "soft_targets": 0.5 * of_scores,
        "cosine": 2 * distances_of_angles(learnt, known, tokens),
    }
    assert_same(losses_of(task), *expected_of(task, student, losses))


@requires_native_ops
@pytest.mark.parametrize("accumulation_steps", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_labels_of_words(accumulation_steps):
    """Both losses are means over the words of the global batch, hidden states' over all tokens."""
    task = DistillationTask(TaggingTask(STUDENT, 3), TaggingTask(TALLER, 3), FINETUNING)
    student, teacher = torch_networks("BertForTokenClassification", task, num_labels=3)
    inputs = {**torch_inputs(BATCH), "output_hidden_states": True}
    learnt, known = student(**inputs), teacher(**inputs)
    is_word = torch.tensor(BATCH["word_starts"]).bool()
    labels = torch.tensor(BATCH["label_ids"]).long()
    losses = {
        "label": 0.5 * F.cross_entropy(learnt.logits[is_word], labels[is_word]),
        "soft_targets": 0.5 * kl_divergence(learnt.logits[is_word], known.logits[is_word], 2.0),
        "cosine": 2 * distances_of_angles(learnt, known, inputs["attention_mask"].bool()),
    }
    found = update_of(task, options=SKIPPING, accumulation_steps=accumulation_steps)
    assert_same(found, *expected_of(task, student, losses))


def scores_of_attention(network):
    """A list that gets what each layer multiplies: its queries and keys, [B, S, D]."""
    found = []
    for layer in network.bert.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.register_forward_hook(lambda module, inputs, output: found.append(output))
    return found


def in_heads(hidden, heads):
    return hidden.view(*hidden.shape[:2], heads, -1).transpose(1, 2)


@requires_native_ops
def test_hidden_states_and_attention_of_tinybert():
    """Through one projection for all layers; layers 1 and 2 of three, and the embeddings."""
    settings = DistillationSettings(
        "teacher", alpha_ce=0.0, alpha_cos=1.0, alpha_hidden=3.0, alpha_attention=0.25
    )
    task = DistillationTask(
        PretrainingTask(OF_TWO_LAYERS, next_sentence=False),
        PretrainingTask(WIDER, next_sentence=False),
        settings,
    )
    values = values_of(task)
    kernel = torch.tensor(values["distillation/projection/kernel"]).double().requires_grad_()
    student = torch_network("BertForMaskedLM", OF_TWO_LAYERS, of_student(values))
    assert not any(n.startswith("cls") for n in of_teacher(values)), "no soft targets, no head"
    teacher = torch_network("BertForMaskedLM", WIDER, of_teacher(values)).requires_grad_(False)
    parts = [scores_of_attention(network) for network in (student, teacher)]
    inputs = {**torch_inputs(BATCH), "output_hidden_states": True}
    learnt, known = student(**inputs), teacher(**inputs)
    tokens = inputs["attention_mask"].bool()

    projected = [hidden @ kernel for hidden in learnt.hidden_states]
    chosen = [known.hidden_states[0], *known.hidden_states[2:]]
    hidden = sum(F.mse_loss(s[tokens], t[tokens]) for s, t in zip(projected, chosen))

    def scores(of_network, config, layer):
        query, key = (
            in_heads(x, config.num_attention_heads) for x in of_network[2 * layer : 2 * layer + 2]
        )
        return query @ key.transpose(2, 3) / query.shape[-1] ** 0.5

    pairs = (tokens[:, :, None] & tokens[:, None, :])[:, None].expand(-1, 3, -1, -1)
    attention = 0.0
    for layer, of_teachers in ((0, 1), (1, 2)):
        both = scores(parts[0], STUDENT, layer), scores(parts[1], WIDER, of_teachers)
        attention = attention + F.mse_loss(*(x[pairs] for x in both))
    labels = torch.tensor(BATCH["masked_lm_ids"]).long()
    rows = torch.arange(B)[:, None]
    at_masks = learnt.logits[rows, torch.tensor(BATCH["masked_lm_positions"]).long()]
    is_mask = torch.tensor(BATCH["masked_lm_weights"]).bool()
    last = projected[-1][tokens], known.hidden_states[-1][tokens]
    losses = {
        "masked_lm": 2 * F.cross_entropy(at_masks[is_mask], labels[is_mask]),
        "cosine": (1 - F.cosine_similarity(*last)).mean(),
        "hidden": 3 * hidden,
        "attention": 0.25 * attention,
    }

    expected, gradients = expected_of(task, student, losses)
    gradients["distillation/projection/kernel"] = kernel.grad.numpy()
    assert_same(losses_of(task, options=SKIPPING), expected, gradients)


def test_networks_of_one_width_need_no_projection():
    specs = {spec.name: spec.trainable for spec in distilbert(alpha_hidden=1.0).specs()}
    assert not any(name.startswith("distillation") for name in specs)
    assert [name for name, trained in specs.items() if trained] == [
        spec.name for spec in PretrainingTask(STUDENT, next_sentence=False).specs()
    ]
    assert all(name.startswith(f"{TEACHER}/") for name, trained in specs.items() if not trained)


@pytest.mark.parametrize(
    "task", [distilbert(), distilbert(restrict_ce_to_mask=True)], ids=["tokens", "masked words"]
)
def test_weights_before_the_forward_pass_are_those_of_the_losses(task):
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(task, FP32)
        features = {name: tf.constant(value) for name, value in BATCH.items()}
        sums = network.losses(features)
        weights = task.weights(features)
        assert list(weights) == list(sums) == list(task.terms)
        for term, metrics in task.terms.items():
            assert list(sums[term].metrics) == list(metrics)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        weights, sums = session.run([weights, sums])
    assert weights == {term: found.weight for term, found in sums.items()}
    assert weights["cosine"] == BATCH["input_mask"].sum()


def test_predictions_are_the_students():
    """Of a student whose words are scored everywhere, at the masked positions."""
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(value) for name, value in BATCH.items()}
        task = distilbert()
        network = create_network(task, FP32)
        found = network.predictions(features)
        plain = PretrainingTask(STUDENT, next_sentence=False)
        outputs = plain.outputs(network.variables, features, FP32)
        expected = plain.predictions(outputs, features, FP32)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        found, expected = session.run([found, expected])
    assert found.keys() == expected.keys()
    assert found["masked_lm_probabilities"].shape == (B, P, V)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def of_layers(number):
    return dataclasses.replace(STUDENT, num_hidden_layers=number)


@pytest.mark.parametrize(
    ("layers", "known", "initial", "matching"),
    [
        (6, 12, [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]),
        (4, 12, [0, 3, 6, 9], [2, 5, 8, 11]),
        (3, 12, [0, 4, 8], [3, 7, 11]),
        (1, 2, [0], [1]),
        (1, 1, [0], [0]),
        (12, 12, list(range(12)), list(range(12))),
        (8, 12, [0, 1, 3, 4, 6, 7, 9, 10], [1, 2, 4, 5, 7, 8, 10, 11]),
    ],
)
def test_layers_of_the_teacher(layers, known, initial, matching):
    student, teacher = of_layers(layers), of_layers(known)
    assert initial_layers(student, teacher) == initial
    assert matching_layers(student, teacher) == matching
