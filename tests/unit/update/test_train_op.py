"""One update against numpy: of a network with one vector of weights, and of a small BERT.

The small problem has two terms, squared errors of a linear model and its absolute size, with
weights that differ from example to example, so that a wrong denominator or order shows.
"""

import functools
import types
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.model.config import BertConfig
from bert_tf.model.losses import Sums, flatten
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.model.variables import VariableSpec, frozen_specs
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.update import train_op
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.gradients import Gradients
from bert_tf.update.loss_scale import DynamicLossScale, LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.schedules import polynomial
from bert_tf.update.train_op import UpdateSettings, build_train_op
from tests.helpers import rounding
from tests.helpers.native_ops import kernels_named

EXAMPLES, WIDTH = 8, 3
START = np.array([0.5, -1.0, 2.0], np.float32)
RATE, DECAY, EPSILON = 0.1, 0.01, 1e-6
BETA_1, BETA_2 = 0.9, 0.999


def small_data():
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=[EXAMPLES, WIDTH]).astype(np.float32),
        "y": rng.normal(size=[EXAMPLES]).astype(np.float32),
        "fit_weights": np.array([1, 5, 0, 2, 9, 1, 0, 3], np.float32),
    }


class VectorTask:
    """What all tasks with one vector of weights have; it starts as ``START``."""

    config = types.SimpleNamespace(initializer_range=0.02)
    heads = inputs = ()

    def specs(self):
        return [VariableSpec("w", (WIDTH,), 0.0)]


class SmallTask(VectorTask):
    """``fit``: weighted squared errors; ``size``: w.w for each example, as far as x[:, 0] goes."""

    terms: ClassVar = {"fit": ("one",), "size": ("two", "three")}

    def weights(self, features):
        examples = tf.cast(tf.shape(features["y"])[0], tf.float32)
        return {"size": examples, "fit": tf.reduce_sum(features["fit_weights"])}

    def outputs(self, variables, features, options):
        return tf.linalg.matvec(features["x"], variables["w"]), tf.reduce_sum(variables["w"] ** 2)

    def losses(self, outputs, features, options):
        found, size = outputs
        errors = found - features["y"]
        return {
            "fit": Sums(
                loss=tf.reduce_sum(features["fit_weights"] * errors**2),
                weight=tf.reduce_sum(features["fit_weights"]),
                metrics={"one": tf.constant(1.0)},
            ),
            "size": Sums(
                loss=tf.reduce_sum(features["x"][:, 0] ** 2) * size,
                weight=tf.cast(tf.shape(features["y"])[0], tf.float32),
                metrics={"three": tf.constant(3.0), "two": tf.constant(2.0)},
            ),
        }


class RecordingTask(SmallTask):
    """Records the position of the micro batch that dropout is given."""

    def __init__(self):
        self.dropouts = []

    def outputs(self, variables, features, options):
        self.dropouts.append(options.dropout)
        return super().outputs(variables, features, options)


class FactorTask(SmallTask):
    """The same with twice another variable, which is one, as a factor of the errors' terms."""

    def specs(self):
        return [*super().specs(), VariableSpec("frozen", (), 1.0)]

    def outputs(self, variables, features, options):
        return super().outputs(variables, features, options), variables["frozen"]

    def losses(self, outputs, features, options):
        of_small, factor = outputs
        terms = super().losses(of_small, features, options)
        return {**terms, "fit": terms["fit"]._replace(loss=terms["fit"].loss * 2 * factor)}


def numpy_gradient(data, w, micro_batches=None):
    """Float64 gradient of the summed terms; averaged over micro batches where they are given."""
    if micro_batches is not None:
        parts = [
            {k: v[part] for k, v in data.items()} for part in np.split(np.arange(8), micro_batches)
        ]
        return np.mean([numpy_gradient(part, w) for part in parts], axis=0)
    x, y, weights = (data[k].astype(np.float64) for k in ("x", "y", "fit_weights"))
    fit = 2 * (weights * (x @ w - y)) @ x / weights.sum()
    size = 2 * w * np.sum(x[:, 0] ** 2) / len(y)
    return fit + size


class Built(NamedTuple):
    outputs: train_op.TrainOutputs
    fed: dict
    session: tf.Session

    def run(self, fetches, data):
        return self.session.run(fetches, {self.fed[name]: data[name] for name in self.fed})

    def state(self):
        """Every variable that would be saved."""
        return self.session.run({v.op.name: v for v in tf.global_variables()})


@pytest.fixture(params=["native", pytest.param("tensorflow", marks=pytest.mark.exhaustive)])
def kernels(request):
    """The form that a run takes; test_updates_against_numpy.py has both."""
    return kernels_named(request.param)


@pytest.fixture(name="build")
def builder(kernels):
    """Builds an update in a separate graph; ``loss_scale`` is made within it."""
    with tf.Graph().as_default(), tf.Session() as session:

        def build(
            task,
            data,
            *,
            options=None,
            micro=EXAMPLES,
            steps=1,
            world_size=1,
            rate=None,
            ranks=None,
            loss_scale=LossScale,
            bias_correction=False,
            rate_factor=lambda name: 1.0,
            sizes=None,
            **settings,
        ):
            rows = len(next(iter(data.values()))) if sizes is None else None
            fed = {
                name: tf.placeholder(value.dtype, [rows, *value.shape[1:]])
                for name, value in data.items()
            }
            network = create_network(task, options or ForwardOptions(), seed=3)
            step = tf.train.get_or_create_global_step().read_value()
            learning_rate = tf.constant(RATE) if rate is None else rate(step)
            outputs = build_train_op(
                network,
                fed,
                plan=BatchPlan(micro, steps, world_size, sizes=sizes),
                optimizer=Optimizer(
                    "adam",
                    learning_rate,
                    weight_decay=DECAY,
                    bias_correction=bias_correction,
                    rate_factor=rate_factor,
                    kernels=kernels,
                ),
                learning_rate=learning_rate,
                loss_scale=loss_scale(),
                ranks=ranks or SingleProcess(),
                settings=UpdateSettings(**settings),
            )
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            if isinstance(task, VectorTask):
                network.variables["w"].load(START, session)
            return Built(outputs, fed, session)

        yield build


@pytest.mark.parametrize("clip_norm", [None, 0.25, 1e6, np.inf])
def test_two_updates_against_numpy(build, clip_norm):
    data = small_data()
    built = build(SmallTask(), data, clip_norm=clip_norm)
    w, m, v = START.astype(np.float64), np.zeros(WIDTH), np.zeros(WIDTH)
    for update in range(2):
        gradient = numpy_gradient(data, w)
        norm = np.linalg.norm(gradient)
        found_norm, found_gradients, finite, _ = built.run(
            [
                built.outputs.gradient_norm,
                built.outputs.gradients,
                built.outputs.is_finite,
                built.outputs.train_op,
            ],
            data,
        )
        if clip_norm is not None:
            gradient = gradient * min(1, clip_norm / norm)
        m = BETA_1 * m + (1 - BETA_1) * gradient
        v = BETA_2 * v + (1 - BETA_2) * gradient**2
        w = w - RATE * (m / (np.sqrt(v) + EPSILON) + DECAY * w)
        assert finite
        # The reported norm is that before clipping. All is float32 arithmetic.
        assert found_norm == pytest.approx(norm, rel=1e-5)
        np.testing.assert_allclose(found_gradients[0], gradient, rtol=1e-5)
        state = built.state()
        np.testing.assert_allclose(state["w"], w, rtol=1e-5)
        np.testing.assert_allclose(state["w/adam_m"], m, rtol=1e-5)
        np.testing.assert_allclose(state["w/adam_v"], v, rtol=1e-5)
        assert state["global_step"] == update + 1
        assert state["training/skipped_updates"] == 0


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("scaled", [False, True])
def test_normalised_by_the_global_batch_the_cut_does_not_matter(build, steps, scaled):
    data = small_data()
    scale = (lambda: DynamicLossScale(2.0**10)) if scaled else LossScale
    built = build(
        SmallTask(),
        data,
        micro=EXAMPLES // steps,
        steps=steps,
        loss_scale=scale,
        clip_norm=None,
    )
    [gradient] = built.run(built.outputs.gradients, data)
    np.testing.assert_allclose(gradient, numpy_gradient(data, START), rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_normalised_by_the_micro_batch_it_is_the_mean_of_their_gradients(build, steps):
    data = small_data()
    built = build(
        SmallTask(),
        data,
        micro=EXAMPLES // steps,
        steps=steps,
        clip_norm=None,
        loss_normalization="micro_batch",
    )
    [gradient] = built.run(built.outputs.gradients, data)
    np.testing.assert_allclose(gradient, numpy_gradient(data, START, steps), rtol=1e-5)
    if steps > 1:
        assert not np.allclose(gradient, numpy_gradient(data, START), rtol=1e-2)


@pytest.mark.parametrize("normalization", ["global_batch", "micro_batch"])
def test_features_decide_how_many_micro_batches_a_growing_update_has(build, normalization):
    data = small_data()
    built = build(
        SmallTask(),
        data,
        micro=2,
        steps=4,
        sizes=Ramp((2, 6, 8), (1, 2)),
        clip_norm=None,
        loss_normalization=normalization,
    )
    for size, consumed in [(2, 2), (6, 8), (8, 16)]:
        part = {name: value[:size] for name, value in data.items()}
        weights = built.state()["w"]
        found, gradients, _ = built.run(
            [built.outputs.num_sequences, built.outputs.gradients, built.outputs.train_op], part
        )
        assert found == size
        micro_batches = [{k: v[i : i + 2] for k, v in part.items()} for i in range(0, size, 2)]
        expected = numpy_gradient(part, weights)
        if normalization == "micro_batch":
            expected = np.mean([numpy_gradient(m, weights) for m in micro_batches], axis=0)
        np.testing.assert_allclose(gradients[0], expected, rtol=1e-5)
        assert built.state()["training/consumed_sequences"] == consumed


def test_another_clip_is_a_function_of_gradients(build, monkeypatch):
    def by_value(gradients, limit):
        values = [tf.clip_by_value(value, -limit, limit) for value in gradients.tensors()]
        return Gradients(gradients.variables, values, tf.linalg.global_norm(values))

    monkeypatch.setattr(train_op, "clipped", by_value)
    data = small_data()
    built = build(SmallTask(), data, clip_norm=0.5, loss_scale=lambda: DynamicLossScale(4.0))
    gradients, _ = built.run([built.outputs.gradients, built.outputs.train_op], data)
    expected = np.clip(numpy_gradient(data, START), -0.5, 0.5)
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-5)
    np.testing.assert_allclose(built.state()["w/adam_m"], (1 - BETA_1) * expected, rtol=1e-5)


class SecondOfTwoRanks(SingleProcess):
    """The other rank has the same numbers, ten times over in its weights."""

    rank, world_size = 1, 2

    def __init__(self):
        super().__init__(num_threads=1)
        self.summed, self.reductions = [], 0

    def sum_over_ranks(self, tensor, name):
        self.summed.append(name)
        return tensor * 11.0

    def sum_gradients(self, gradients, variables, **_):
        self.reductions += 1
        return [g + 1.0 for g in gradients]


class ManyRanks(SingleProcess):
    """Ranks of nearly the same data, whose shares are added one by one in float16."""

    world_size = 512

    def sum_over_ranks(self, tensor, name):
        return tensor * float(self.world_size)

    def sum_gradients(self, gradients, variables, **_):
        return [tf.numpy_function(self._add_up, [g], tf.float32) for g in gradients]

    def _add_up(self, share):
        noise = np.random.default_rng(5).normal(1, 0.3, [self.world_size, *share.shape])
        total = np.zeros(share.shape, np.float16)
        for factors in noise:
            total += (share * factors).astype(np.float16)
        return total.astype(np.float32)


def test_512_ranks_cannot_overflow_in_float16(build):
    data, scale = small_data(), 8192.0
    expected = numpy_gradient(data, START)
    largest = np.abs(expected).max() * scale
    assert 0.4 * 65504 < largest < 65504, "near the largest float16, or the test shows nothing"
    built = build(
        SmallTask(),
        data,
        world_size=512,
        ranks=ManyRanks(num_threads=1),
        loss_scale=lambda: DynamicLossScale(scale),
        clip_norm=None,
    )
    finite, gradients = built.run([built.outputs.is_finite, built.outputs.gradients], data)
    assert finite
    np.testing.assert_allclose(gradients[0], expected, rtol=0.1)


@pytest.mark.parametrize("every_micro_batch", [False, True])
def test_ranks_are_summed_before_unscaling_and_clipping(build, every_micro_batch):
    data, ranks, steps = small_data(), SecondOfTwoRanks(), 2
    built = build(
        SmallTask(),
        data,
        micro=EXAMPLES // steps,
        steps=steps,
        world_size=2,
        ranks=ranks,
        loss_scale=lambda: DynamicLossScale(4.0),
        clip_norm=0.25,
        allreduce_every_micro_batch=every_micro_batch,
    )
    # The other rank adds 1 to each scaled gradient, once or for each micro batch.
    reductions = steps if every_micro_batch else 1
    expected = (4.0 * numpy_gradient(data, START) / 11.0 + reductions) / 4.0
    norm, [gradient] = built.run([built.outputs.gradient_norm, built.outputs.gradients], data)
    assert norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected * 0.25 / np.linalg.norm(expected), rtol=1e-5)
    assert ranks.summed == ["term_weights"]
    assert ranks.reductions == 1, "one place in the graph, whether within the loop or after it"


def test_dropout_is_given_the_position_of_the_micro_batch(build):
    data, task = small_data(), RecordingTask()
    data = {name: value[:4] for name, value in data.items()}
    built = build(task, data, micro=4, steps=1, world_size=2, ranks=SecondOfTwoRanks(), seed=3)
    [dropout] = task.dropouts
    assert dropout._seed == 3
    for skipped, position in [(0, 0), (5, 5)]:
        [count] = [v for v in tf.global_variables() if v.op.name == train_op.SKIPPED_UPDATES]
        built.session.run(count.assign(skipped))
        found = built.run([dropout._first_example, dropout._data_position], data)
        assert found == [4, position]
    built.session.run(tf.train.get_global_step().assign(100))
    assert built.run(dropout._data_position, data) == 105


def test_sums_of_terms_are_added_over_micro_batches(build):
    data = small_data()
    built = build(SmallTask(), data, micro=2, steps=4)
    found = built.run(built.outputs.term_sums, data)
    x, y, weights = data["x"], data["y"], data["fit_weights"]
    assert list(found) == ["fit", "size"]
    assert found["fit"].loss == pytest.approx(np.sum(weights * (x @ START - y) ** 2), rel=1e-5)
    assert found["fit"].weight == weights.sum()
    assert found["fit"].metrics == {"one": 4}
    assert found["size"].weight == EXAMPLES
    assert found["size"].metrics == {"two": 8, "three": 12}


def test_learning_rate_and_loss_scale_are_those_of_this_update(build):
    data = small_data()
    rates = [polynomial(s, peak_rate=0.1, total_steps=4, warmup_steps=2) for s in range(4)]
    built = build(
        SmallTask(),
        data,
        rate=lambda step: polynomial(step, peak_rate=0.1, total_steps=4, warmup_steps=2),
        loss_scale=lambda: DynamicLossScale(8.0, period=1),
    )
    for update in range(4):
        before = built.state()["w"]
        rate, scale, _ = built.run(
            [built.outputs.learning_rate, built.outputs.loss_scale, built.outputs.train_op], data
        )
        assert rate == pytest.approx(rates[update])
        assert scale == 8.0 * 2**update
        if update == 0:
            # Adam's first direction without bias correction is 0.1 / sqrt(0.001) of the sign.
            gradient = numpy_gradient(data, START)
            direction = 0.1 / np.sqrt(0.001) * np.sign(gradient)
            expected = before - rates[0] * (direction + DECAY * before)
            np.testing.assert_allclose(built.state()["w"], expected, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("steps", [1, 4])
def test_an_update_that_is_not_finite_changes_nothing_but_its_count(build, bad, steps):
    data = small_data()
    built = build(SmallTask(), data, micro=EXAMPLES // steps, steps=steps, bias_correction=True)
    built.run(built.outputs.train_op, data)
    before = built.state()
    assert before["optimizer/update_count"] == 1
    spoilt = {**data, "y": data["y"].copy()}
    spoilt["y"][5] = bad
    finite, _ = built.run([built.outputs.is_finite, built.outputs.train_op], spoilt)
    assert not finite
    after = built.state()
    assert after.pop("training/skipped_updates") == before.pop("training/skipped_updates") + 1
    assert before.pop("training/consumed_sequences") == EXAMPLES
    assert after.pop("training/consumed_sequences") == 2 * EXAMPLES
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    built.run(built.outputs.train_op, data)
    assert built.state()["global_step"] == 2
    assert built.state()["optimizer/update_count"] == 2


class GivenGradient(VectorTask):
    """A task whose gradient is the features' mean."""

    terms: ClassVar = {"given": ()}

    def weights(self, features):
        return {"given": tf.cast(tf.shape(features["g"])[0], tf.float32)}

    def outputs(self, variables, features, options):
        return tf.reduce_sum(features["g"] * variables["w"])

    def losses(self, outputs, features, options):
        return {"given": Sums(outputs, self.weights(features)["given"], {})}


@pytest.mark.parametrize("clip_norm", [None, 1.0, 1e38])
def test_finite_gradients_whose_squares_are_not_change_nothing(build, clip_norm):
    """The second moment would be infinite, and the weight stand still for ever."""
    data = {"g": np.full([EXAMPLES, WIDTH], 1e20, np.float32)}
    built = build(GivenGradient(), data, clip_norm=clip_norm)
    finite, _ = built.run([built.outputs.is_finite, built.outputs.train_op], data)
    assert not finite
    state = built.state()
    np.testing.assert_array_equal(state["w"], START)
    np.testing.assert_array_equal(state["w/adam_v"], np.zeros(WIDTH))
    assert (state["global_step"], state["training/skipped_updates"]) == (0, 1)


@pytest.mark.parametrize("gradient", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, np.nan])
def test_a_factor_that_is_no_number_changes_nothing(build, gradient, scale):
    """Whatever the norm is: 0 times infinity is no number."""

    class SpoiltLossScale(LossScale):
        def inverse(self):
            return tf.divide(1.0, tf.constant(scale))

    data = {"g": np.full([EXAMPLES, WIDTH], gradient, np.float32)}
    built = build(GivenGradient(), data, loss_scale=SpoiltLossScale)
    finite, _ = built.run([built.outputs.is_finite, built.outputs.train_op], data)
    assert not finite
    assert all(np.isfinite(value).all() for value in built.state().values())


@pytest.mark.parametrize("normalization", ["global_batch", "micro_batch"])
def test_a_term_without_weight_has_no_loss(build, normalization):
    data = {**small_data(), "fit_weights": np.zeros(EXAMPLES, np.float32)}
    built = build(SmallTask(), data, clip_norm=None, loss_normalization=normalization)
    [gradient] = built.run(built.outputs.gradients, data)
    # What is left is the other term's.
    np.testing.assert_allclose(gradient, 2 * START * np.mean(data["x"][:, 0] ** 2), rtol=1e-5)


class Distillation(VectorTask):
    """Learns what a second network says of ``x``, which has the same vector and stays as it is."""

    terms: ClassVar = {"match": ()}

    def specs(self):
        return [*super().specs(), *frozen_specs(super().specs(), prefix="teacher")]

    def weights(self, features):
        return {"match": tf.cast(tf.shape(features["x"])[0], tf.float32)}

    def outputs(self, variables, features, options):
        with variables.scope("teacher") as of_teacher:
            wanted = tf.linalg.matvec(features["x"], of_teacher["w"])
        return tf.linalg.matvec(features["x"], variables["w"]), wanted

    def losses(self, outputs, features, options):
        found, wanted = outputs
        loss = tf.reduce_sum((found - wanted) ** 2)
        return {"match": Sums(loss, self.weights(features)["match"], {})}


@pytest.mark.parametrize("steps", [1, 4])
def test_a_second_network_is_read_and_not_trained(build, steps):
    data, teacher = {"x": small_data()["x"]}, np.float32([0.25, 1.5, -0.5])
    built = build(Distillation(), data, micro=EXAMPLES // steps, steps=steps, clip_norm=None)
    [of_teacher] = [v for v in tf.local_variables() if v.op.name == "teacher/w"]
    of_teacher.load(teacher, built.session)
    w, x = START, data["x"].astype(np.float64)
    for _ in range(2):
        norm, gradients, _ = built.run(
            [built.outputs.gradient_norm, built.outputs.gradients, built.outputs.train_op], data
        )
        expected = 2 * (x @ w - x @ teacher) @ x / EXAMPLES
        assert norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)
        np.testing.assert_allclose(gradients, [expected], rtol=1e-5)
        state = built.state()
        assert not np.any(state["w"] == w)
        w = state["w"]
    np.testing.assert_array_equal(built.session.run(of_teacher), teacher)
    assert not [name for name in state if "teacher" in name], "checkpoints need not hold it"


def test_variables_of_others_in_the_graph_are_left_alone(build):
    data = small_data()
    alone = tf.get_variable("elsewhere/w", initializer=START, use_resource=True)
    built = build(SmallTask(), data, clip_norm=None)
    assert alone in tf.trainable_variables()
    gradients, _ = built.run([built.outputs.gradients, built.outputs.train_op], data)
    np.testing.assert_allclose(gradients, [numpy_gradient(data, START)], rtol=1e-5)
    state = built.state()
    assert "w/adam_m" in state
    assert not np.any(state["w"] == START)
    np.testing.assert_array_equal(state["elsewhere/w"], START)  # no weight decay either
    assert [name for name in state if name.startswith("elsewhere/")] == ["elsewhere/w"]


COUNTS = (train_op.SKIPPED_UPDATES, train_op.CONSUMED_SEQUENCES)
S, P, V = 8, 3, 30


def bert_batch():
    """Eight sequences with unequal numbers of masked words, one of them without any."""
    rng = np.random.default_rng(7)
    lengths = np.array([8, 3, 5, 8, 6, 4, 7, 8])
    predictions = np.array([3, 1, 0, 2, 1, 1, 3, 2])
    places = np.arange(S)
    return {
        "input_ids": rng.integers(5, V, [EXAMPLES, S]).astype(np.int32),
        "input_mask": (places < lengths[:, None]).astype(np.int32),
        "segment_ids": (places >= lengths[:, None] // 2).astype(np.int32),
        "masked_lm_positions": np.sort(rng.integers(0, 3, [EXAMPLES, P])).astype(np.int32),
        "masked_lm_ids": rng.integers(5, V, [EXAMPLES, P]).astype(np.int32),
        "masked_lm_weights": (np.arange(P) < predictions[:, None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [EXAMPLES, 1]).astype(np.int32),
    }


def bert_task(*, dropout=0.0):
    config = BertConfig(
        vocab_size=V,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=S,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.2,
    )
    return PretrainingTask(config)


@functools.cache
def bert_gradients(*, steps, dropout):
    """Gradients and term sums of an update of the small BERT in so many micro batches."""
    data = bert_batch()
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = build_train_op(
            create_network(bert_task(dropout=dropout), ForwardOptions(), seed=3),
            {name: tf.constant(value) for name, value in data.items()},
            plan=BatchPlan(EXAMPLES // steps, steps, 1),
            optimizer=Optimizer("adam", 1e-3),
            learning_rate=tf.constant(1e-3),
            loss_scale=LossScale(),
            ranks=SingleProcess(),
            settings=UpdateSettings(clip_norm=None, seed=5),
        )
        session.run(tf.global_variables_initializer())
        return session.run([outputs.gradients, outputs.term_sums])


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_bert_has_the_same_gradients_and_masks_however_it_is_cut(dropout):
    # With dropout this holds only if each example has the same masks in every cut.
    expected, expected_sums = bert_gradients(steps=1, dropout=dropout)
    found, found_sums = bert_gradients(steps=4, dropout=dropout)
    whole = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in expected))
    for a, b in zip(found, expected):
        # Relative to all gradients: some of their sums cancel, such as those of keys' biases.
        bound = rounding.of_products(16, EXAMPLES * S) * whole
        assert np.linalg.norm(a - b) <= bound
    terms = bert_task().terms
    assert found_sums.keys() == expected_sums.keys() == {"masked_lm", "next_sentence"}
    np.testing.assert_allclose(flatten(found_sums, terms), flatten(expected_sums, terms), rtol=1e-5)


def test_dropout_does_something():
    without, with_dropout = (bert_gradients(steps=1, dropout=d)[0] for d in (0.0, 0.3))
    assert not np.allclose(without[0], with_dropout[0], rtol=1e-2)


def test_a_global_batch_without_a_masked_word(build):
    data = bert_batch()
    data["masked_lm_weights"] = np.zeros_like(data["masked_lm_weights"])
    built = build(bert_task(), data, micro=2, steps=4)
    sums, finite, norm, _ = built.run(
        [
            built.outputs.term_sums,
            built.outputs.is_finite,
            built.outputs.gradient_norm,
            built.outputs.train_op,
        ],
        data,
    )
    assert finite
    assert sums["masked_lm"] == (0, 0, {"accuracy": 0})
    assert norm > 0, "next sentences are still learnt"
    state = built.state()
    assert state["global_step"] == 1
    assert all(np.isfinite(value).all() for value in state.values())
    np.testing.assert_array_equal(state["cls/predictions/output_bias"], np.zeros(V))


def test_float16_overflows_skips_and_continues(build):
    """The scale starts far above what a float16 gradient can hold, and comes down by itself."""
    data = bert_batch()
    initial = 2.0**32
    built = build(
        bert_task(),
        data,
        options=ForwardOptions(policy_for("fp16")),
        micro=4,
        steps=2,
        bias_correction=True,
        loss_scale=lambda: DynamicLossScale(initial),
    )
    fetches = [built.outputs.is_finite, built.outputs.loss_scale, built.outputs.train_op]
    start = built.state()
    skipped = 0
    while True:
        finite, scale, _ = built.run(fetches, data)
        assert scale == initial / 2**skipped, "the scale of this update, not of the next one"
        if finite:
            break
        skipped += 1
        state = built.state()
        assert state["loss_scale/scale"] == initial / 2**skipped
        assert state["training/skipped_updates"] == skipped
        for name, value in start.items():
            if name not in ("loss_scale/scale", *COUNTS):
                np.testing.assert_array_equal(state[name], value, err_msg=name)
    assert 1 <= skipped < 32
    state = built.state()
    assert (state["global_step"], state["training/skipped_updates"]) == (1, skipped)
    assert state["optimizer/update_count"] == 1
    assert state["loss_scale/scale"] == scale
    assert state["loss_scale/good_updates"] == 1
    moved = [n for n, v in start.items() if not np.array_equal(state[n], v)]
    assert "bert/embeddings/word_embeddings" in moved
    assert "bert/embeddings/word_embeddings/adam_m" in moved


@pytest.mark.parametrize("steps", [1, 2])
def test_a_frozen_variable_has_no_part_in_an_update(build, steps):
    """Its gradient is neither computed nor in the norm that the others are clipped by."""
    data = small_data()
    built = build(
        FactorTask(),
        data,
        micro=EXAMPLES // steps,
        steps=steps,
        rate_factor=lambda name: float(name != "frozen"),
        clip_norm=0.5,
    )
    gradients, norm, _ = built.run(
        [built.outputs.gradients, built.outputs.gradient_norm, built.outputs.train_op], data
    )
    # Twice the errors' term: the frozen variable is its factor.
    size = 2 * START.astype(np.float64) * np.sum(data["x"][:, 0].astype(np.float64) ** 2)
    fit_twice = 2 * numpy_gradient(data, START) - size / EXAMPLES
    np.testing.assert_allclose(norm, np.linalg.norm(fit_twice), rtol=1e-5)
    assert len(gradients) == 1
    np.testing.assert_allclose(gradients[0], fit_twice * 0.5 / norm, rtol=1e-5)
    state = built.state()
    assert state["frozen"] == 1.0
    assert "w/adam_m" in state
    assert not any(name.startswith("frozen/") for name in state)
