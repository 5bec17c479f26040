"""AdamW, LAMB and LANS against numpy, step by step, in float64."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.update.gradients import clip_factor
from bert_tf.update.optimizer import UPDATE_COUNT, Optimizer, decays
from bert_tf.util.errors import UserError
from tests.helpers import rounding
from tests.helpers.optimizer_reference import (
    CASES,
    DECAY,
    EPSILON,
    FROZEN,
    SHAPES,
    Reference,
    global_norm,
    random_gradients,
    rate_factor,
    start_values,
)
from tests.helpers.updates import apply_gradients

STEPS = 50


class Graph:
    """Variables, placeholders for their gradients and for the rate, and an optimizer's update."""

    def __init__(self, make_optimizer, *, clip_norm=None, values=None):
        values = start_values() if values is None else values
        self.rate = tf.placeholder(tf.float32, [])
        self.variables = [
            tf.get_variable(name, initializer=value, use_resource=True)
            for name, value in values.items()
        ]
        self.feeds = {name: tf.placeholder(tf.float32, v.shape) for name, v in values.items()}
        gradients = list(self.feeds.values())
        self.optimizer = make_optimizer(self.rate)
        self.factor = None
        if clip_norm is not None:
            norm = self.optimizer.kernels.global_norm(gradients)
            self.factor = clip_factor(norm, clip_norm)
        self.grads_and_vars = list(zip(gradients, self.variables))

    def update(self):
        return apply_gradients(self.optimizer, self.grads_and_vars, self.factor)

    def feed(self, gradients, rate):
        return {self.rate: rate, **{self.feeds[name]: gradients[name] for name in self.feeds}}

    def state(self, session):
        """Weights and both moments by name; frozen variables have no moments."""
        trained = self.optimizer.trained(self.variables)
        slots = [{v.op.name: self.optimizer.slots_of(v)[kind] for v in trained} for kind in (0, 1)]
        return session.run([{v.op.name: v for v in self.variables}, *slots])


@pytest.mark.parametrize("case", CASES)
def test_fifty_updates_against_numpy(case, kernels):
    optimizer, options, reference_options, clip_norm = CASES[case]
    rng = np.random.RandomState(1)
    reference = Reference(start_values(), **reference_options)
    clipped = 0
    with tf.Graph().as_default(), tf.Session() as session:
        graph = Graph(
            lambda rate: Optimizer(optimizer, rate, kernels=kernels, **options), clip_norm=clip_norm
        )
        update = graph.update()
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            gradients, rate = random_gradients(rng), 0.01 * (1 - step / 100)
            session.run(update, graph.feed(gradients, rate))
            if clip_norm is not None:
                norm = global_norm(gradients)
                clipped += norm > clip_norm
                factor = min(1.0, clip_norm / norm)
                gradients = {name: gradient * factor for name, gradient in gradients.items()}
            reference.apply(gradients, rate)
            weights, m, v = graph.state(session)
            for name in SHAPES:
                if reference.rate_factor(name) == 0:
                    np.testing.assert_array_equal(weights[name], start_values()[name])
                    assert name not in m
                    assert name not in v
                    continue
                expected = (reference.weights[name], reference.m[name], reference.v[name])
                for ours, theirs in zip((weights[name], m[name], v[name]), expected):
                    error = np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))
                    assert error <= rounding.of_updates(step + 1), f"{name} at step {step}"
    if clip_norm is not None:
        assert 0 < clipped < STEPS  # both sides of the clip were seen


def test_bias_corrected_adamw_equals_torch(kernels):
    torch = pytest.importorskip("torch")
    rng = np.random.RandomState(2)
    start = start_values()["layer_0/dense/kernel"]
    theirs = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    their_optimizer = torch.optim.AdamW([theirs], lr=0.01, eps=EPSILON, weight_decay=DECAY)
    with tf.Graph().as_default(), tf.Session() as session:
        values = {"layer_0/dense/kernel": start}
        graph = Graph(
            lambda rate: Optimizer("adam", rate, bias_correction=True, kernels=kernels),
            values=values,
        )
        update = graph.update()
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            gradients = random_gradients(rng)
            session.run(update, graph.feed(gradients, 0.01))
            gradient = gradients["layer_0/dense/kernel"]
            theirs.grad = torch.tensor(gradient, dtype=torch.float64)
            their_optimizer.step()
        ours = session.run(graph.variables[0])
    theirs = theirs.detach().numpy()
    assert np.abs(ours - theirs).max() <= rounding.of_updates(STEPS) * np.abs(theirs).max()


def test_google_s_formula_in_float64_over_violent_updates(kernels):
    """google-research/bert's optimization.py from weights of zero, so that no digit is theirs."""
    rng = np.random.RandomState(5)
    shape, rate = (40, 5), 0.01
    w, m, v = np.zeros([3, *shape])
    with tf.Graph().as_default(), tf.Session() as session:
        values = {"layer_0/dense/kernel": np.zeros(shape, np.float32)}
        graph = Graph(lambda rate: Optimizer("adam", rate, kernels=kernels), values=values)
        update = graph.update()
        session.run(tf.global_variables_initializer())
        for number in range(1, 21):
            gradient = (rng.randn(*shape) * 10 ** rng.uniform(-4, 4, shape)).astype(np.float32)
            session.run(update, graph.feed({"layer_0/dense/kernel": gradient}, rate))
            m = 0.9 * m + 0.1 * gradient
            v = 0.999 * v + 0.001 * gradient.astype(np.float64) ** 2
            w = w - rate * (m / (np.sqrt(v) + EPSILON) + DECAY * w)
            weights, *moments = (kind["layer_0/dense/kernel"] for kind in graph.state(session))
            bound = rounding.of_updates(number)
            assert np.abs(weights - w).max() <= bound * np.abs(w).max(), number
            np.testing.assert_allclose(moments[1], v, rtol=bound)
            sizes = np.maximum(np.abs(m), np.abs(gradient))  # a moment may cancel to nearly zero
            assert (np.abs(moments[0] - m) <= bound * np.maximum.reduce([sizes, np.sqrt(v)])).all()


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_first_corrected_update_counts_from_one(optimizer, kernels):
    """At t = 1 the corrected moments are g and g**2: every weight moves by the rate."""
    values = {"layer_0/dense/bias": np.zeros(3, np.float32)}
    with tf.Graph().as_default(), tf.Session() as session:
        graph = Graph(
            lambda rate: Optimizer(optimizer, rate, bias_correction=True, kernels=kernels),
            values=values,
        )
        update = graph.update()
        session.run(tf.global_variables_initializer())
        gradients = {"layer_0/dense/bias": np.array([3.0, -0.5, 20.0])}
        session.run(update, graph.feed(gradients, 0.125))
        np.testing.assert_allclose(
            session.run(graph.variables[0]), [-0.125, 0.125, -0.125], rtol=1e-5
        )


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lans"])
def test_a_skipped_update_leaves_everything_alone(optimizer, kernels):
    rng = np.random.RandomState(3)
    gradients = [random_gradients(rng) for _ in range(3)]

    def weights_after(take, given):
        with tf.Graph().as_default(), tf.Session() as session:
            graph = Graph(
                lambda rate: Optimizer(optimizer, rate, bias_correction=True, kernels=kernels)
            )
            is_finite = tf.placeholder(tf.bool, [])
            graph.optimizer.create_slots(graph.variables)
            update = tf.cond(is_finite, graph.update, tf.no_op)
            session.run(tf.global_variables_initializer())
            states = [session.run(tf.global_variables())]
            for takes, values in zip(take, given):
                session.run(update, {is_finite: takes, **graph.feed(values, 0.01)})
                states.append(session.run(tf.global_variables()))
            names = [variable.op.name for variable in tf.global_variables()]
            return names, states

    nan = {name: np.full_like(value, np.nan) for name, value in gradients[0].items()}
    names, states = weights_after([True, False, True], [gradients[0], nan, gradients[1]])
    _, straight = weights_after([True, True], gradients[:2])
    for name, before, skipped, after, expected in zip(names, *states[1:], straight[2]):
        np.testing.assert_array_equal(skipped, before, err_msg=name)
        np.testing.assert_array_equal(after, expected, err_msg=name)
    final = dict(zip(names, states[3]))
    assert final[UPDATE_COUNT] == 2


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (functools.partial(Optimizer, "adam", 0.1), False),
        (functools.partial(Optimizer, "adam", 0.1, bias_correction=True), True),
        (functools.partial(Optimizer, "lamb", 0.1), True),
        (functools.partial(Optimizer, "lans", 0.1), True),
    ],
)
def test_names_of_slots_and_counter_and_their_place_in_checkpoints(tmp_path, make, counts, kernels):
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.name_scope("any_scope"):
            kernel = tf.get_variable("bert/pooler/dense/kernel", [2, 2], use_resource=True)
            apply_gradients(make(kernels=kernels), [(tf.ones([2, 2]), kernel)])
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    saved = {name for name, _ in tf.train.list_variables(path)}
    name = "bert/pooler/dense/kernel"
    assert saved == {name, f"{name}/adam_m", f"{name}/adam_v"} | (
        {UPDATE_COUNT} if counts else set()
    )


@pytest.mark.parametrize(
    ("weight", "gradient", "weight_decay"),
    [(0.0, 1.0, 0.01), (1.0, 0.0, 0.0)],
)
def test_trust_ratio_of_nothing_is_one(weight, gradient, weight_decay, kernels):
    values = {"layer_0/dense/kernel": np.full([4, 3], weight, np.float32)}
    with tf.Graph().as_default(), tf.Session() as session:
        graph = Graph(
            lambda rate: Optimizer(
                "lamb", rate, weight_decay=weight_decay, min_trust_ratio=5.0, kernels=kernels
            ),
            values=values,
        )
        update = graph.update()
        session.run(tf.global_variables_initializer())
        gradients = {"layer_0/dense/kernel": np.full([4, 3], gradient)}
        session.run(update, graph.feed(gradients, 0.5))
        result = session.run(graph.variables[0])
    np.testing.assert_allclose(result, np.full([4, 3], weight - 0.5 * gradient), rtol=1e-5)


def test_decay_mask_is_an_argument(kernels):
    values = {"a/kernel": np.ones(2, np.float32), "b/kernel": np.ones(2, np.float32)}
    with tf.Graph().as_default(), tf.Session() as session:
        graph = Graph(
            lambda rate: Optimizer(
                "adam",
                rate,
                weight_decay=0.5,
                decay_mask=lambda name: name[0] == "a",
                kernels=kernels,
            ),
            values=values,
        )
        update = graph.update()
        session.run(tf.global_variables_initializer())
        session.run(update, graph.feed({name: np.zeros(2) for name in values}, 0.5))
        a, b = session.run(graph.variables)
    np.testing.assert_allclose(a, [0.75, 0.75])
    np.testing.assert_allclose(b, [1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert/encoder/layer_0/attention/self/query/kernel", True),
        ("bert/embeddings/word_embeddings", True),
        ("cls/seq_relationship/output_weights", True),
        ("bert/encoder/layer_0/attention/self/query/bias", False),
        ("cls/predictions/output_bias", False),
        ("bert/embeddings/LayerNorm/gamma", False),
        ("bert/embeddings/LayerNorm/beta", False),
    ],
)
def test_default_decay_mask(name, expected):
    assert decays(name) == expected


def test_a_norm_within_the_limit_is_not_clipped_at_all():
    with tf.Graph().as_default(), tf.Session() as session:
        norm = tf.constant(5.0 / 7.0)
        same, half = session.run([clip_factor(norm, 1.0), clip_factor(norm, 2.5 / 7.0)])
    assert same == 1.0
    assert half == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lans"])
def test_a_factor_for_all_is_another_learning_rate_and_one_costs_nothing(optimizer, kernels):
    def after(rate, **options):
        """All bits after some updates, and the kinds of operations that an update takes."""
        rng = np.random.RandomState(6)
        with tf.Graph().as_default() as built, tf.Session() as session:
            graph = Graph(
                lambda rate: Optimizer(
                    optimizer, rate, bias_correction=True, kernels=kernels, **options
                )
            )
            update = graph.update()
            kinds = sorted(operation.type for operation in built.get_operations())
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(update, graph.feed(random_gradients(rng), rate))
            state = session.run({v.op.name: v for v in tf.global_variables()})
        return {name: value.tobytes() for name, value in state.items()}, kinds

    plain = after(0.01)
    assert after(0.01, rate_factor=lambda name: 1.0) == plain
    halved, _ = after(0.02, rate_factor=lambda name: 0.5)
    assert halved == plain[0]
    assert after(0.01, rate_factor=lambda name: 0.5)[0] != plain[0]


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_what_is_trained_later_begins_as_if_training_began_there(optimizer, kernels):
    """Nothing moves before, not even by decay, and no moment of a gradient remains."""

    def states(progress, gradients, **options):
        """Weights and moments after each update."""
        with tf.Graph().as_default(), tf.Session() as session:
            done = tf.placeholder(tf.float64, [])
            graph = Graph(
                lambda rate: Optimizer(optimizer, rate, kernels=kernels, progress=done, **options)
            )
            values = [gradient for gradient, _ in graph.grads_and_vars]
            held = graph.optimizer.held_back(values, graph.variables)
            graph.grads_and_vars = list(zip(held, graph.variables))
            update = graph.update()
            session.run(tf.global_variables_initializer())
            found = []
            for part, given in zip(progress, gradients):
                session.run(update, {**graph.feed(given, 0.01), done: part})
                found.append(graph.state(session))
        return found

    rng = np.random.RandomState(6)
    gradients = [random_gradients(rng) for _ in range(4)]
    late = next(iter(SHAPES))
    starts = {late: 0.5}
    held = states([0, 0.25, 0.5, 0.75], gradients, trained_from=lambda name: starts.get(name, 0.0))
    from_there = states([0.5, 0.75], gradients[2:])
    plain = states([0, 0.25, 0.5, 0.75], gradients)
    for number, (weights, *moments) in enumerate(held):
        for name, weight in weights.items():
            expected = plain[number]
            if name == late and number < 2:
                np.testing.assert_array_equal(weight, start_values()[name])
                assert not any(moment[name].any() for moment in moments)
                continue
            if optimizer == "lamb":  # it counts updates, and all variables share a norm
                continue
            if name == late:
                expected = from_there[number - 2]
            for value, known in zip((weights, *moments), expected):
                np.testing.assert_array_equal(value[name], known[name], err_msg=name)


def test_frozen_variables_are_known_before_anything_is_built():
    with tf.Graph().as_default():
        variables = [tf.get_variable(n, s, use_resource=True) for n, s in SHAPES.items()]
        optimizer = Optimizer("adam", 0.1, rate_factor=rate_factor)
        trained = [variable.op.name for variable in optimizer.trained(variables)]
        assert trained == [name for name in SHAPES if name not in FROZEN]
        optimizer.create_slots(variables)
        slots = {v.op.name for v in tf.global_variables()} - set(SHAPES)
        assert slots == {f"{name}/{slot}" for name in trained for slot in ("adam_m", "adam_v")}


@pytest.mark.parametrize("factor", [-1.0, float("nan")])
def test_a_factor_that_is_none(factor):
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2], use_resource=True)
        optimizer = Optimizer("adam", 0.1, rate_factor=lambda name: factor)
        with pytest.raises(ValueError, match=f"learning-rate factor of w is {factor}"):
            optimizer.trained([weight])


def test_a_misspelt_optimizer_is_no_other_one():
    with pytest.raises(UserError, match=r"optimizer 'lam' is not one of adam, lamb, lans, muon\."):
        Optimizer("lam", 0.1)
    with pytest.raises(TypeError, match="AdamW has no option prenormalise"):
        Optimizer("adam", 0.1, prenormalise=True)
