"""The operations of an update against float64, over odd sizes, threads and shared buffers."""

import hashlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.native import library
from tests.helpers.programs import run

pytestmark = pytest.mark.each_tensorflow

SIZES = [1, 7, 16, 1000003, 65536, 65537, 33]
BETA_1, BETA_2 = 0.9, 0.999
RATE, SCALE, EPSILON, DECAY, FACTOR = 0.01, 0.7, 1e-5, 0.1, 0.25
GRADIENT_SCALE = 0.3

# Of digest_of_two_updates, on every machine: a resumed run goes on with the bits that it had.
BITS_OF_TWO_UPDATES = "7dfb3ebdf4525765fb2690843f6d78e48587da128b90a1a54ba293ee31afcfe4"


def random_arrays(sizes, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size, np.float32) for size in sizes]


class Update:
    """Variables, moments and gradients in a graph, and an operation that moves them."""

    def __init__(self, operations, name, sizes, *, adapts=None, bounds=(0.0, np.inf)):
        self.weights = random_arrays(sizes, 1)
        self.m = random_arrays(sizes, 2)
        self.v = [0.01 + value**2 for value in random_arrays(sizes, 3)]
        self.gradients = random_arrays(sizes, 4)
        self.decays = [index % 2 == 0 for index in range(len(sizes))]
        self.adapts = self.decays if adapts is None else adapts
        self.bounds = bounds
        self.variables = {
            kind: [
                tf.get_variable(f"{kind}_{i}", initializer=value, use_resource=True)
                for i, value in enumerate(values)
            ]
            for kind, values in (("weights", self.weights), ("m", self.m), ("v", self.v))
        }
        self.state = [v for variables in self.variables.values() for v in variables]
        self._operations, self._name = operations, name
        self.expected_ratios = []

    def arguments(self):
        return {
            "weights": [variable.handle for variable in self.variables["weights"]],
            "first_moments": [variable.handle for variable in self.variables["m"]],
            "second_moments": [variable.handle for variable in self.variables["v"]],
            "gradients": self.gradients,
            "factor": FACTOR,
            "learning_rate": RATE,
            "scale": SCALE,
            "epsilon": EPSILON,
            "gain_1": 1 - BETA_1,
            "gain_2": 1 - BETA_2,
            "weight_decay": DECAY,
            "decays": self.decays,
        }

    def build(self, **changes):
        arguments = {**self.arguments(), **changes}
        if self._name == "adam_w":
            return self._operations.bert_tf_adam_w(**arguments)
        if self._name == "lans":
            sums = self._operations.bert_tf_sums_of_squares(values=arguments["gradients"])
            arguments.update(gradient_scale=GRADIENT_SCALE, gradient_squares=sums)
        moments, step = (
            getattr(self._operations, f"bert_tf_{self._name}_{half}")
            for half in ("moments", "step")
        )
        return step(**arguments, **self.ratios(), squares=moments(**arguments))

    def ratios(self):
        least, most = self.bounds
        return {"min_trust_ratio": least, "max_trust_ratio": most, "adapts": self.adapts}

    def expected(self, name):
        """Weights and moments after one update, in float64."""
        step = {"adam_w": self._adam_w, "lamb": self._lamb, "lans": self._lans}[name]
        result = {"weights": [], "m": [], "v": []}
        for index, arrays in enumerate(zip(self.weights, self.m, self.v, self.gradients)):
            w, m, v, g = (value.astype(np.float64) for value in arrays)
            g = g / np.linalg.norm(g) if name == "lans" else FACTOR * g
            m = BETA_1 * m + (1 - BETA_1) * g
            v = BETA_2 * v + (1 - BETA_2) * g**2
            root = np.sqrt(v) + EPSILON
            w = w - RATE * step(index, w, SCALE * m / root, GRADIENT_SCALE * g / root)
            for kind, value in (("weights", w), ("m", m), ("v", v)):
                result[kind].append(value)
        return result

    def _adam_w(self, index, w, of_momentum, of_gradient):
        return of_momentum + self.decays[index] * DECAY * w

    def _lamb(self, index, w, of_momentum, of_gradient):
        direction = of_momentum + self.decays[index] * DECAY * w
        ratio = np.linalg.norm(w) / np.linalg.norm(direction)
        self.expected_ratios.append(np.clip(ratio, *self.bounds) if self.adapts[index] else 1.0)
        return direction * self.expected_ratios[-1]

    def _lans(self, index, w, of_momentum, of_gradient):
        parts = self._lamb(index, w, of_momentum, None), self._lamb(index, w, of_gradient, None)
        return BETA_1 * parts[0] + (1 - BETA_1) * parts[1]


def in_new_session(threads=2):
    config = tf.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
    )
    return tf.Session(config=config)


def assert_close(found, expected):
    for kind, values in expected.items():
        for ours, theirs in zip(found[kind], values):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=3e-7, err_msg=kind)


UNBOUNDED = (0.0, np.inf)
# Neither those that decay nor all.
ADAPTED = [True, True, False, False, True, True, True]
CASES = [
    ("adam_w", UNBOUNDED, None),
    ("lamb", UNBOUNDED, None),
    ("lamb", (0.5, 0.9), ADAPTED),
    ("lans", UNBOUNDED, ADAPTED),
    ("lans", (0.5, 0.9), None),
]


@pytest.mark.parametrize(("name", "bounds", "adapts"), CASES)
def test_one_update_of_odd_sizes_against_float64(operations, name, bounds, adapts):
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, name, SIZES, bounds=bounds, adapts=adapts)
        operation = update.build()
        session.run(tf.global_variables_initializer())
        ratios = session.run(operation)
        assert_close(session.run(update.variables), update.expected(name))
        if name != "adam_w":  # those of a variable's directions follow each other in the reference
            expected = np.reshape(update.expected_ratios, [len(SIZES), -1]).T
            np.testing.assert_allclose(ratios, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam_w", "lamb", "lans", "global_norm"])
def test_gradients_in_bfloat16_are_their_values_in_float32(operations, name):
    def half(index, value):
        return tf.cast(value, tf.bfloat16) if index % 2 else tf.constant(value)

    def run_with(gradients):
        with tf.Graph().as_default(), in_new_session() as session:
            update = Update(operations, name if name != "global_norm" else "lamb", SIZES)
            halves = [half(i, value) for i, value in enumerate(update.gradients)]
            given = [tf.cast(g, tf.float32) for g in halves] if gradients == "float32" else halves
            if name == "global_norm":
                return [session.run(operations.bert_tf_global_norm(values=given))]
            operation = update.build(gradients=given)
            session.run(tf.global_variables_initializer())
            session.run(operation)
            return session.run(update.state)

    for in_half, widened in zip(run_with("mixed"), run_with("float32")):
        np.testing.assert_array_equal(in_half, widened)


def test_gradients_are_added_to_sums_that_others_may_read(operations):
    sums, gradients = random_arrays(SIZES, 1), random_arrays(SIZES, 2)
    with tf.Graph().as_default(), in_new_session() as session:
        read = [tf.constant(value) * 1.0 for value in sums]
        halves = [tf.cast(value, tf.bfloat16) for value in gradients]
        added = operations.bert_tf_add_gradients(sums=read, gradients=[gradients[0], *halves[1:]])
        with tf.control_dependencies(added):
            kept = [tf.identity(value) for value in read]
        added, kept, halves = session.run(
            [added, kept, [tf.cast(value, tf.float32) for value in halves]]
        )
    for total, value, gradient in zip(added, sums, [gradients[0], *halves[1:]]):
        np.testing.assert_array_equal(total, value + gradient)
    for value, expected in zip(kept, sums):
        np.testing.assert_array_equal(value, expected)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=5),
    name=st.sampled_from(["adam_w", "lamb", "lans"]),
)
def test_any_sizes(operations, sizes, name):
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, name, sizes)
        operation = update.build()
        session.run(tf.global_variables_initializer())
        session.run(operation)
        # Nothing divided by nothing: a variable without elements has no norms.
        with np.errstate(invalid="ignore"):
            expected = update.expected(name)
        assert_close(session.run(update.variables), expected)


def digest_of_two_updates(threads):
    """A hash of all bits after two updates by each optimizer, and of the gradients' norm."""
    digest = hashlib.sha256()
    for name in ("adam_w", "lamb", "lans"):
        with tf.Graph().as_default(), in_new_session(threads) as session:
            update = Update(library.load(), name, SIZES)
            norm = library.load().bert_tf_global_norm(values=update.gradients)
            operation = update.build()
            session.run(tf.global_variables_initializer())
            for _ in range(2):
                session.run(operation)
            for value in session.run([norm, *update.state]):
                digest.update(value.tobytes())
    return digest.hexdigest()


def test_what_is_not_a_number_stays_so(operations):
    """Of both types, whatever its bits are, and wherever it stands."""
    for bits, kind, dtype in (
        ([0x7F800001, 0xFF800001, 0x7FC001FF, 0xFFFFFFFF], np.uint32, tf.float32),
        ([0x7F81, 0xFF81, 0x7FC0, 0xFFFF], np.uint16, tf.bfloat16),
    ):
        for place, pattern in enumerate(np.array(bits, kind)):
            values = np.zeros(65539, kind)
            values[[0, 9, 65536, 65538][place]] = pattern
            with tf.Graph().as_default(), tf.Session() as session:
                gradient = tf.bitcast(tf.constant(values), dtype)
                norm = operations.bert_tf_global_norm(values=[gradient])
                [added] = operations.bert_tf_add_gradients(
                    sums=[tf.zeros([values.size])], gradients=[gradient]
                )
                norm, added = session.run([norm, added])
            assert np.isnan(norm)
            assert np.isnan(added).sum() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("operations")
def test_the_number_of_threads_changes_no_bit():
    # TensorFlow makes a process's threads once, for its first session.
    code = "from tests.unit.native import test_update_ops as t; print(t.digest_of_two_updates({}))"
    one, three = (run("-c", code.format(threads)).stdout for threads in (1, 3))
    assert one.strip() == BITS_OF_TWO_UPDATES
    assert one == three


def test_the_norm_is_that_of_float64(operations):
    # Large beside small, where float32 sums lose the small ones.
    values = [*random_arrays(SIZES, 5), np.full(3_000_001, 1e-3, np.float32), np.float32(1e3)]
    expected = np.sqrt(sum(np.sum(value.astype(np.float64) ** 2) for value in values))
    with tf.Graph().as_default(), in_new_session() as session:
        found = session.run(operations.bert_tf_global_norm(values=values))
    assert found == np.float32(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.inf, np.inf), (np.nan, np.nan), (1e30, 1e30 * np.sqrt(2)), (1e-30, 1e-30 * np.sqrt(2))],
)
def test_the_norm_of_extremes(operations, value, expected):
    with tf.Graph().as_default(), in_new_session() as session:
        values = [np.full(1, value, np.float32), np.full([1, 1], value, np.float32)]
        found = session.run(operations.bert_tf_global_norm(values=values))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["adam_w", "lamb", "lans"])
def test_a_tensor_that_was_read_before_keeps_its_value(operations, name):
    """A read may share the variable's buffer, which must not be written to then."""
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, name, [1000])
        [variable], [m] = update.variables["weights"], update.variables["m"]
        before = [variable.read_value(), m.read_value()]
        with tf.control_dependencies(before):
            operation = update.build()
        with tf.control_dependencies([operation]):
            held = [tf.identity(tensor) for tensor in before]
        session.run(tf.global_variables_initializer())
        held = session.run(held)
        np.testing.assert_array_equal(held, [update.weights[0], update.m[0]])
        assert_close(session.run(update.variables), update.expected(name))


def test_a_table_that_is_looked_up_while_it_is_updated(operations):
    """Lookups switch a variable to another mode of sharing."""
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, "adam_w", [1000])
        [table] = update.variables["weights"]
        rows = tf.nn.embedding_lookup(table, tf.range(1000))
        with tf.control_dependencies([rows]):
            operation = update.build()
        session.run(tf.global_variables_initializer())
        found, _ = session.run([rows, operation])
        np.testing.assert_array_equal(found, update.weights[0])
        assert_close(session.run(update.variables), update.expected("adam_w"))


@pytest.mark.parametrize("value", [0.0, 1e-45])
def test_lans_divides_by_no_norm_that_is_too_small(operations, value):
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, "lans", [3])
        operation = update.build(gradients=[np.full(3, value, np.float32)])
        session.run(tf.global_variables_initializer())
        session.run(operation)
        found = session.run(update.variables)
    np.testing.assert_allclose(found["m"][0], BETA_1 * update.m[0], rtol=1e-6)
    np.testing.assert_allclose(found["v"][0], BETA_2 * update.v[0], rtol=1e-6)
    assert np.isfinite(found["weights"]).all()


def test_within_a_loop_and_a_condition(operations):
    def weights_after(make_step):
        with tf.Graph().as_default(), in_new_session() as session:
            update = Update(operations, "adam_w", [7, 70000])
            step = make_step(update)
            session.run(tf.global_variables_initializer())
            step(session)
            return session.run(update.state)

    def one_by_one(update):
        operation = update.build()
        return lambda session: [session.run(operation) for _ in range(3)]

    def in_a_loop(update):
        def body(index):
            # Every other turn updates.
            def apply():
                with tf.control_dependencies([update.build()]):
                    return tf.constant(1)

            return index + tf.cond(tf.equal(index % 2, 0), apply, lambda: tf.constant(1))

        count = tf.while_loop(lambda index: index < 6, body, [tf.constant(0)])
        return lambda session: session.run(count)

    for ours, theirs in zip(weights_after(in_a_loop), weights_after(one_by_one)):
        np.testing.assert_array_equal(ours, theirs)


def test_what_does_not_fit_is_an_error(operations):
    with tf.Graph().as_default(), in_new_session() as session:
        update = Update(operations, "adam_w", [3, 4])
        twice = [update.variables["weights"][0].handle] * 2
        squares = np.ones([2, 2])
        cases = {
            "weights_0": (update.build(), tf.errors.NotFoundError),  # nothing is initialised yet
            r"shape \[3\].* shape \[5\]": (
                update.build(gradients=[np.ones(5, np.float32), np.ones(4, np.float32)]),
                tf.errors.InvalidArgumentError,
            ),
            "given twice": (update.build(weights=twice), tf.errors.InvalidArgumentError),
            "1 entries of decays": (update.build(decays=[True]), tf.errors.InvalidArgumentError),
            "factor is not a scalar": (update.build(factor=[1.0, 2.0]), tf.errors.OpError),
            "1 entries of adapts for 2": (
                operations.bert_tf_lamb_step(
                    **update.arguments(), **{**update.ratios(), "adapts": [True]}, squares=squares
                ),
                tf.errors.InvalidArgumentError,
            ),
            "squares has shape": (
                operations.bert_tf_lamb_step(
                    **update.arguments(), **update.ratios(), squares=squares[:1]
                ),
                tf.errors.InvalidArgumentError,
            ),
        }
        for message, (failing, error) in cases.items():
            with pytest.raises(error, match=message):
                session.run(failing)
            session.run(tf.global_variables_initializer())
