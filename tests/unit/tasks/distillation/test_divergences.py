"""The divergences of distillation and their gradients against torch, in float64."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_tf.model.losses import ClassScores
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.tasks.distillation.task import (
    attention_distances,
    divergence_from_all,
    divergence_from_most_probable,
    most_probable,
)
from tests.helpers.native_ops import requires_native_ops

torch = pytest.importorskip("torch")

N, C = 7, 11
FP32 = ForwardOptions(policy_for("fp32"))
FORMS = [
    pytest.param(FP32, id="plain"),
    pytest.param(FP32.with_native_layers(), id="native", marks=requires_native_ops),
]
CLOSE = {"rtol": 1e-4, "atol": 2e-6}


def drawn(*shape, scale=2.0, seed=0):
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


def factors(shape):
    """Another factor for each loss, so that the gradient of each one counts."""
    return np.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape)


def ours(build, **given):
    """The losses that ``build`` makes of arrays, and the gradient of each; None where none is."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = {name: tf.constant(value) for name, value in given.items()}
        losses = build(**given)
        weighted = losses * factors(losses.shape.as_list()).astype(np.float32)
        gradients = tf.gradients(tf.reduce_sum(weighted), list(given.values()))
        found = {name: g for name, g in zip(given, gradients) if g is not None}
        losses, found = session.run(
            [losses, {n: tf.convert_to_tensor(g) for n, g in found.items()}]
        )
    return losses, {name: found.get(name) for name in given}


def theirs(build, **given):
    """The same of a program for torch."""
    given = {
        name: torch.tensor(np.asarray(value, np.float64), requires_grad=True)
        for name, value in given.items()
    }
    losses = build(**given)
    (losses * torch.tensor(factors(losses.shape))).sum().backward()
    found = {name: None if v.grad is None else v.grad.numpy() for name, v in given.items()}
    return losses.detach().numpy(), found


def assert_same(found, expected, *, learnt, **close):
    """Whether losses and gradients agree, and the teacher's tensors have none of ours."""
    close = close or CLOSE
    losses, gradients = found
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, expected[0], **close)
    for name, gradient in gradients.items():
        if name in learnt:
            np.testing.assert_allclose(gradient, expected[1][name], err_msg=name, **close)
        else:
            assert gradient is None, name


SCORES = {
    "product": drawn(N, C, seed=1),
    "bias": drawn(C, seed=2),
    "teacher": drawn(N, C, scale=3.0, seed=3),
}


def from_all(options, temperature):
    def build(product, bias, teacher):
        known = ClassScores(tf.cast(teacher, product.dtype), tf.zeros([C]))
        return divergence_from_all(
            ClassScores(product, bias), known, temperature=temperature, options=options
        )

    return build


def from_most(options, temperature, most, least):
    def build(product, bias, teacher):
        targets = most_probable(
            teacher, temperature=temperature, most=most, least_probability=least
        )
        return divergence_from_most_probable(
            ClassScores(product, bias), targets, temperature=temperature, options=options
        )

    return build


def torch_from_all(temperature):
    def build(product, bias, teacher):
        learnt = torch.log_softmax((product + bias) / temperature, -1)
        known = torch.softmax(teacher / temperature, -1)
        return torch.nn.functional.kl_div(learnt, known, reduction="none").sum(-1)

    return build


def kept_classes(known, most, least):
    """Of one decision's probabilities: the most probable ones, those of ``least`` or more."""
    return [c for c in np.argsort(-known)[:most] if known[c] >= least]


def torch_from_most(temperature, most, least):
    """Kept classes, and one class for all others."""

    def build(product, bias, teacher):
        rows = []
        for scores, known_scores in zip(product + bias, teacher):
            learnt = torch.softmax(scores / temperature, -1)
            known = torch.softmax(known_scores / temperature, -1)
            kept = kept_classes(known.detach().numpy(), most, least)
            rest = sorted(set(range(len(known))) - set(kept))
            pairs = [(known[c], learnt[c]) for c in kept]
            if rest:
                pairs.append((known[rest].sum(), learnt[rest].sum()))
            rows.append(sum(p * (p / q).log() for p, q in pairs))
        return torch.stack(rows)

    return build


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
def test_the_divergence_from_all_classes(options, temperature):
    found = ours(from_all(options, temperature), **SCORES)
    expected = theirs(torch_from_all(temperature), **SCORES)
    assert_same(found, expected, learnt={"product", "bias"})
    assert found[0].min() > 0


BOUNDS = {
    "one class": (1, 0.0),
    "some": (3, 0.0),
    "those above a bound": (C, 0.08),
    "some above a bound": (3, 0.08),
    "none or one": (1, 0.6),
    "all": (C, 0.0),
}


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
@pytest.mark.parametrize(("most", "least"), BOUNDS.values(), ids=BOUNDS)
def test_the_divergence_from_the_most_probable_classes(options, temperature, most, least):
    found = ours(from_most(options, temperature, most, least), **SCORES)
    expected = theirs(torch_from_most(temperature, most, least), **SCORES)
    assert_same(found, expected, learnt={"product", "bias"})
    if (most, least) == (C, 0.0):
        whole = theirs(torch_from_all(temperature), **SCORES)
        assert_same(found, whole, learnt={"product", "bias"})


def test_the_most_probable_classes():
    with tf.Graph().as_default(), tf.Session() as session:
        targets = session.run(
            most_probable(
                tf.constant(SCORES["teacher"]), temperature=2.0, most=4, least_probability=0.08
            )
        )
    known = torch.softmax(torch.tensor(SCORES["teacher"]).double() / 2, -1).numpy()
    numbers = set()
    for classes, probabilities, row in zip(*targets, known):
        kept = kept_classes(row, 4, 0.08)
        assert classes.tolist()[: len(kept)] == kept
        np.testing.assert_allclose(probabilities[: len(kept)], row[kept], rtol=1e-5)
        assert not probabilities[len(kept) :].any()
        numbers.add(len(kept))
    assert len(numbers) > 1, "a bound that leaves out as many everywhere shows little"


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("temperature", [2.0, 3.0])
def test_products_in_half_precision(options, temperature):
    """Of the same rounded products: scores of up to 8 are off by 2^-9 of that, and the losses."""
    rounded = SCORES["product"].astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)

    def in_half(build):
        return lambda product, **others: build(product=tf.cast(product, tf.bfloat16), **others)

    values = {**SCORES, "product": rounded}
    loose = {"rtol": 0.05, "atol": 0.02}
    learnt = {"product", "bias"}
    for build, reference in (
        (from_all(options, temperature), torch_from_all(temperature)),
        (from_most(options, temperature, 3, 0.05), torch_from_most(temperature, 3, 0.05)),
    ):
        found = ours(in_half(build), **values)
        assert_same(found, theirs(reference, **values), learnt=learnt, **loose)


@pytest.fixture(name="divergences", scope="module")
def session_of_divergences():
    """Both divergences of one decision among six classes, from scores and bounds."""
    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(tf.float32, [1, 6]) for name in ("student", "teacher")}
        most, least = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [])
        student, teacher = (
            ClassScores(fed[name], tf.zeros([6])) for name in ("student", "teacher")
        )
        targets = most_probable(fed["teacher"], temperature=2.0, most=most, least_probability=least)
        both = [
            divergence_from_all(student, teacher, temperature=2.0, options=FP32),
            divergence_from_most_probable(student, targets, temperature=2.0, options=FP32),
        ]
        yield lambda s, t, k, p: session.run(
            both, {fed["student"]: s, fed["teacher"]: t, most: k, least: p}
        )


SIX_SCORES = hnp.arrays(np.float32, (1, 6), elements=st.floats(-15, 15, width=32))


@settings(max_examples=100, deadline=None)
@given(SIX_SCORES, SIX_SCORES, st.integers(1, 6), st.sampled_from([0.0, 0.01, 0.2, 0.5]))
def test_one_class_for_the_rest_hides_a_part_of_the_divergence(
    divergences, student, teacher, most, least
):
    [whole], [part] = divergences(student, teacher, most, least)
    assert np.isfinite([whole, part]).all()
    learnt, known = (torch.softmax(torch.tensor(x[0]).double() / 2, -1) for x in (student, teacher))
    rest = learnt.sum() - learnt[kept_classes(known.numpy(), most, least)].sum()
    # What is left of 1 has the rounding of 1, and that is what its logarithm is off by.
    rounding = 4 * np.finfo(np.float32).eps / max(float(rest), 1e-6)
    assert -1e-5 - rounding <= part <= whole + 1e-5 + rounding


@pytest.mark.parametrize("options", FORMS)
def test_a_student_that_agrees_has_no_divergence(options):
    same = {**SCORES, "product": SCORES["teacher"] - SCORES["bias"]}
    for build in (from_all(options, 2.0), from_most(options, 2.0, 3, 0.01)):
        losses, gradients = ours(build, **same)
        np.testing.assert_allclose(losses, np.zeros(N), atol=1e-5)
        np.testing.assert_allclose(gradients["product"], np.zeros([N, C]), atol=1e-5)


@pytest.mark.parametrize("options", FORMS)
def test_words_that_the_student_holds_for_impossible(options):
    """No logarithm of 0, whether they are among the most probable ones or the rest."""
    certain = np.full([2, C], -500, np.float32)
    certain[0, 0] = certain[1, C - 1] = 500
    likely = np.zeros([2, C], np.float32)
    likely[:, 0] = 1
    given = {"product": certain, "bias": np.zeros(C, np.float32), "teacher": likely}
    for build in (from_all(options, 1.0), from_most(options, 1.0, 1, 0.0)):
        losses, gradients = ours(build, **given)
        assert np.isfinite(losses).all()
        assert losses.min() > 5
        assert np.isfinite(gradients["product"]).all()


def test_scores_of_attention_in_half_precision_are_compared_in_float32():
    s, t = (drawn(1, 1, 2, 2, seed=n).astype(np.float16) * np.float16(200) for n in (0, 10))
    with tf.Graph().as_default(), tf.Session() as session:
        given = [[tf.constant(x)] for x in (s, t)]
        found = session.run(attention_distances(*given, tf.ones([1, 2])))
    expected = ((s.astype(np.float64) - t) ** 2).sum()
    assert expected > 2 * float(np.finfo(np.float16).max), "float16 would overflow"
    np.testing.assert_allclose(found, [expected], rtol=1e-5)
