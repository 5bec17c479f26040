"""How fast this processor computes a job's products and layers, timed for a moment.

What a processor's features are called does not tell: there are processors with bfloat16
instructions on which products in bfloat16 take twice as long as in float32. So pieces of one layer
are timed, in the shapes of the job but for as many tokens as take a moment: the products of a dense
layer and of attention with those of their gradients, the casts of kernels, and what lies between
the products. A training adds the update of a layer's weights (``update_probe.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Callable, TypeVar

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.blocks import DropoutSite, PlainBlocks, blocks_for
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import encode, encoder_specs
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables, create_variables
from bert_tf.tuning.session import SessionSettings, session_config

# A dense product with those of its gradients makes about so many operations a thread and turn.
_OPERATIONS_A_THREAD = 1_000_000_000
_FEWEST_TOKENS = 64
_TURNS, _FEWEST_TURNS = 5, 3
_SECONDS = 0.25  # after which no further turn begins
# What is only emulated may take hundreds of times as long, which small products show in no time.
_SMALL_TOKENS, _SMALL_WIDTH, _SMALL_TURNS = 64, 256, 3
_HOPELESS = 2.0
# Products that alone take longer than float32's whole layer by this factor: that is no noise.
_CLEARLY = 1.5

_DROPOUT_RATE = 0.1

PRODUCTS = "products"

# Precision -> seconds of a layer and a micro batch: of its products, and of all else in each form.
# A precision that is hopeless has no forms.
Figures = dict[str, dict[str, float]]

# An operation, and how many of it a layer has.
Pieces = list[tuple[tf.Operation, float]]
_Key = TypeVar("_Key")


@dataclasses.dataclass(frozen=True)
class JobShapes:
    """What decides the shapes of a job's products.

    Attributes:
      sequences: of a micro batch.
      length: positions of a sequence.
      accumulation_steps: micro batches of an update; 0 for a job that trains nothing.
    """

    sequences: int
    length: int
    accumulation_steps: int
    hidden_size: int
    intermediate_size: int
    heads: int
    activation: str

    @classmethod
    def of(
        cls, config: BertConfig, *, sequences: int, length: int, accumulation_steps: int
    ) -> JobShapes:
        """The shapes of a network; the other arguments are those of the class."""
        return cls(
            sequences=sequences,
            length=length,
            accumulation_steps=accumulation_steps,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=config.num_attention_heads,
            activation=config.hidden_act,
        )

    @property
    def trains(self) -> bool:
        """Whether there are gradients."""
        return self.accumulation_steps > 0

    @property
    def passes(self) -> int:
        """Products for each one of the forward pass: it and those of both sides' gradients."""
        return 3 if self.trains else 1

    def timed_tokens(self, threads: int) -> int:
        """As many as take a moment, at most those of a micro batch."""
        operations = 2 * self.passes * self.hidden_size * self.intermediate_size
        moment = max(_FEWEST_TOKENS, threads * _OPERATIONS_A_THREAD // operations)
        return min(moment, self.tokens)

    @property
    def tokens(self) -> int:
        """Those of a micro batch."""
        return self.sequences * self.length

    @property
    def operations(self) -> int:
        """Multiplications and additions of a layer's products for a micro batch."""
        numbers = self.kernel_numbers + 2 * self.length * self.hidden_size
        return 2 * self.passes * self.tokens * numbers

    @property
    def kernel_numbers(self) -> int:
        """Numbers in the kernels of a layer."""
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def __str__(self) -> str:
        pass_ = f"training, {self.accumulation_steps} steps" if self.trains else "prediction"
        return (
            f"{self.sequences} x {self.length} tokens, {pass_}, {self.hidden_size}/"
            f"{self.intermediate_size} wide, {self.heads} heads, {self.activation}"
        )


# The pieces of an update of a layer for a policy, native or not, and a number of tokens.
UpdatePieces = Callable[[JobShapes, PrecisionPolicy, bool, int], Pieces]


def gflops(figures: Figures, shapes: JobShapes) -> dict[str, float]:
    """Precision -> rate of its products, with the casts that they need, in 10**9 a second."""
    return {name: shapes.operations / found[PRODUCTS] / 1e9 for name, found in figures.items()}


def measure(
    shapes: JobShapes,
    policies: Mapping[str, PrecisionPolicy],
    forms: Mapping[str, bool],
    *,
    native_layers: bool,
    settings: SessionSettings,
    update: UpdatePieces | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Figures:
    """Times the pieces of a layer in turn, so that what else the machine does hits all alike.

    Args:
      shapes: the job's.
      policies: by precision; the others are compared with the first.
      forms: name -> whether native operations compute what lies between the products, and the
        update.
      native_layers: whether layers have the form of the update at all.
      settings: of the job's session.
      update: what a training times too.
      clock: tells seconds.
    """
    first, *others = policies
    hopeless: dict[str, float] = {}
    if others:
        small = _small_products(policies, settings, clock)
        hopeless = {
            name: small[name] / small[first]
            for name in others
            if small[name] > _HOPELESS * small[first]
        }
    tried = {name: policy for name, policy in policies.items() if name not in hopeless}
    tokens = shapes.timed_tokens(settings.threads)
    with tf.Graph().as_default(), tf.Session(config=_config(settings)) as session:
        pieces = {}
        for name, policy in tried.items():
            pieces[name, PRODUCTS] = _products(shapes, policy, tokens)
            for form, is_native in forms.items():
                options = ForwardOptions(policy).with_native_layers(is_native and native_layers)
                pieces[name, form] = _between(shapes, options, tokens)
                if update is not None:
                    pieces[name, form] += update(shapes, policy, is_native, tokens)
        session.run(tf.global_variables_initializer())
        figures = _medians(session, pieces, first, clock)
    for name, ratio in hopeless.items():
        figures[name] = {PRODUCTS: ratio * figures[first][PRODUCTS]}
    micro_batch = shapes.tokens / tokens  # ranks of unequal hosts time unequal numbers of tokens
    return {
        name: {piece: micro_batch * seconds for piece, seconds in found.items()}
        for name, found in figures.items()
    }


def time_threads(
    shapes: JobShapes,
    options: ForwardOptions,
    numbers: Sequence[int],
    *,
    update: UpdatePieces,
    native_update: bool,
    is_disturbed: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float] | None:
    """Seconds of a layer and a micro batch by number of threads, the best of some turns.

    The layer is a whole one, with its gradients: how much threads are worth depends on what of it
    runs side by side, which pieces do not tell.

    Args:
      shapes: the job's.
      options: how its layers are computed.
      numbers: of threads, the largest first; ``environment.give_sessions_their_own_threads`` was
        called.
      update: what to time too.
      native_update: whether native operations compute it.
      is_disturbed: asked after each turn; where it says so, nothing more is timed.
      clock: tells seconds.

    Returns: None where it was disturbed.
    """
    sequences = max(1, shapes.timed_tokens(numbers[0]) // shapes.length)
    found: dict[int, list[float]] = {number: [] for number in numbers}
    with contextlib.ExitStack() as stack:
        runs = {}
        for number in numbers:
            with tf.Graph().as_default() as graph:
                pieces = [(_layer(shapes, options, sequences), 1.0)]
                tokens = sequences * shapes.length
                pieces += update(shapes, options.policy, native_update, tokens)
                initial_values = tf.global_variables_initializer()
            config = _config(SessionSettings(threads=number))
            session = tf.Session(graph=graph, config=config)
            stack.enter_context(contextlib.closing(session))
            session.run(initial_values)
            runs[number] = [(session.make_callable(piece), share) for piece, share in pieces]
        for _ in range(1 + _TURNS):
            _time_once(runs, found, clock)
            if is_disturbed():
                return None
    micro_batch = shapes.sequences / sequences
    return {number: micro_batch * min(seconds[1:]) for number, seconds in found.items()}


def _time_once(
    runs: Mapping[_Key, list[tuple[Callable[[], None], float]]],
    found: Mapping[_Key, list[float]],
    clock: Callable[[], float],
) -> None:
    """Adds to ``found`` the seconds of all pieces of each of ``runs``, one after the other."""
    for key, pieces in runs.items():
        total = 0.0
        for run, share in pieces:
            started = clock()
            run()
            total += share * (clock() - started)
        found[key].append(total)


def _medians(
    session: tf.Session,
    pieces: Mapping[tuple[str, str], Pieces],
    first: str,
    clock: Callable[[], float],
) -> Figures:
    """Seconds by precision and piece; of a precision that is clearly slower, its products' only."""
    runs = {
        key: [(session.make_callable(operation), share) for operation, share in of_key]
        for key, of_key in pieces.items()
    }
    found: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    _time_once(runs, found, clock)
    began = clock()
    for turn in range(_TURNS):
        if turn >= _FEWEST_TURNS and clock() - began > _SECONDS:
            break
        _time_once(runs, found, clock)
        # Whatever is gained between the products, products that take longer than all of the
        # first one's layer lose.
        products = found[first, PRODUCTS][-1]
        rest = max(s[-1] for (name, piece), s in found.items() if name == first != piece)
        limit = _CLEARLY * (products + rest)
        slower = {name for name, piece in runs if found[name, PRODUCTS][-1] > limit}
        found = {key: s for key, s in found.items() if key[0] not in slower or key[1] == PRODUCTS}
        runs = {key: run for key, run in runs.items() if key[0] not in slower}
    figures: Figures = {}
    for (name, piece), seconds in found.items():
        figures.setdefault(name, {})[piece] = statistics.median(seconds[1:])  # no warm-up
    return figures


def _small_products(
    policies: Mapping[str, PrecisionPolicy], settings: SessionSettings, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of small products in the type of each policy, the best of some turns."""
    with tf.Graph().as_default(), tf.Session(config=_config(settings)) as session:
        operations = {
            name: _dense(_SMALL_TOKENS, _SMALL_WIDTH, _SMALL_WIDTH, policy.dense, passes=3)
            for name, policy in policies.items()
        }
        session.run(tf.global_variables_initializer())
        found: dict[str, list[float]] = {name: [] for name in operations}
        for _ in range(1 + _SMALL_TURNS):
            for name, operation in operations.items():
                started = clock()
                session.run(operation)
                found[name].append(clock() - started)
    return {name: min(seconds[1:]) for name, seconds in found.items()}


def _layer(shapes: JobShapes, options: ForwardOptions, sequences: int) -> tf.Operation:
    """A layer of the encoder for so many full sequences, and the gradients of all its variables."""
    config = BertConfig(
        vocab_size=1,
        hidden_size=shapes.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=shapes.heads,
        intermediate_size=shapes.intermediate_size,
        hidden_act=shapes.activation,
        hidden_dropout_prob=_DROPOUT_RATE,
        attention_probs_dropout_prob=_DROPOUT_RATE,
    )
    variables = create_variables(
        encoder_specs(config, scope="layers"), initializer_range=config.initializer_range
    )
    options = options.with_dropout(_dropout(shapes))
    x = held([sequences, shapes.length, shapes.hidden_size])
    mask = tf.ones([sequences, shapes.length], tf.int32)
    with variables.scope("layers") as in_scope:
        outputs = encode(x, mask, in_scope, config, options)
    return _with_gradients(outputs, [x, *variables.all()], shapes)


def _dropout(shapes: JobShapes) -> Dropout | None:
    if not shapes.trains:
        return None
    place = tf.zeros([], tf.int64)
    return Dropout(1, data_position=place, first_example=place)


def _products(shapes: JobShapes, policy: PrecisionPolicy, tokens: int) -> Pieces:
    hidden, intermediate = shapes.hidden_size, shapes.intermediate_size
    dense = _dense(tokens, hidden, intermediate, policy.dense, passes=shapes.passes)
    share = shapes.kernel_numbers / (hidden * intermediate)
    matrices, share_of_matrices = _matrices(shapes, tokens)
    attention = _attention(shapes, matrices, policy.attention)
    pieces = [(dense, share), (attention, share_of_matrices)]
    if shapes.trains and policy.dense != tf.float32:
        cast = tf.cast(held([hidden, intermediate]), policy.dense)
        pieces.append((cast.op, share * updates(shapes, tokens)))
    return pieces


def _between(shapes: JobShapes, options: ForwardOptions, tokens: int) -> Pieces:
    """What lies between a layer's products, and its gradients; heads are not moved.

    Softmax is timed for as many matrices as the products of attention are.
    """
    policy, hidden, length = options.policy, shapes.hidden_size, shapes.length
    matrices, share = _matrices(shapes, tokens)
    blocks = blocks_for(options, tf.ones([1, tokens], tf.int32))
    rows = [tokens] if options.native_layers else [1, tokens]
    site = DropoutSite(_dropout(shapes), 1, _DROPOUT_RATE)
    widened, closed = (
        held([*rows, width], policy.dense) for width in (shapes.intermediate_size, hidden)
    )
    residual = PlainBlocks(policy).stream(held([*rows, hidden]))
    wide, narrow = held([shapes.intermediate_size]), held([hidden])
    of_residual = dict.fromkeys(("dense/bias", "LayerNorm/gamma", "LayerNorm/beta"), narrow)
    variables = Variables({"bias": wide, **of_residual})
    activated = blocks.activated(widened, variables, shapes.activation)
    output = blocks.close_residual(closed, residual, variables, site=site)
    scores = held([1, matrices, length, length], policy.attention)
    softmax = blocks.attention_probabilities(scores, held([1, length]), site=site)
    # In the plain form casts to the type of the next product are a price of that type.
    activated, operand = (tf.cast(x, policy.dense) for x in (activated, output.operand))
    return [
        (_with_gradients([activated], [widened, wide], shapes), 1.0),
        (_with_gradients([output.full, operand], [closed, residual.full, narrow], shapes), 2.0),
        (_with_gradients([softmax], [scores], shapes), share),
    ]


def updates(shapes: JobShapes, tokens: int) -> float:
    """How many updates there are for ``tokens`` tokens."""
    return tokens / (shapes.tokens * shapes.accumulation_steps)


def _matrices(shapes: JobShapes, tokens: int) -> tuple[int, float]:
    """How many of attention's matrices stand for those of so many tokens, and their share."""
    exact = shapes.heads * tokens / shapes.length
    return max(1, round(exact)), exact / max(1, round(exact))


def _dense(tokens: int, inputs: int, outputs: int, dtype: tf.DType, *, passes: int) -> tf.Operation:
    x, kernel = held([tokens, inputs], dtype), held([inputs, outputs], dtype)
    dy = held([tokens, outputs], dtype)
    products = [
        lambda: tf.matmul(x, kernel),
        lambda: tf.matmul(dy, kernel, transpose_b=True),
        lambda: tf.matmul(x, dy, transpose_a=True),
    ]
    return tf.group(*(product() for product in products[:passes]))


def _attention(shapes: JobShapes, matrices: int, dtype: tf.DType) -> tf.Operation:
    width = shapes.hidden_size // shapes.heads
    rows = held([matrices, shapes.length, width], dtype)  # of queries, keys and values alike
    scores = held([matrices, shapes.length, shapes.length], dtype)
    forward = [tf.matmul(rows, rows, transpose_b=True), tf.matmul(scores, rows)]
    if not shapes.trains:
        return tf.group(*forward)
    of_scores = [tf.matmul(scores, rows), tf.matmul(scores, rows, transpose_a=True)]
    of_context = [
        tf.matmul(rows, rows, transpose_b=True),
        tf.matmul(scores, rows, transpose_a=True),
    ]
    return tf.group(*forward, *of_scores, *of_context)


def _with_gradients(
    results: list[tf.Tensor], sources: list[tf.Tensor], shapes: JobShapes
) -> tf.Operation:
    gradients = tf.gradients(results, sources) if shapes.trains else []
    return tf.group(*results, *gradients)


def held(shape: list[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Ones that the session keeps; equal requests share them."""
    return tf.convert_to_tensor(variable(shape, dtype, "ones"))


def variable(shape: list[int], dtype: tf.DType, kind: str) -> tf.Variable:
    """Ones; equal requests share a variable."""
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        name = "_".join([kind, dtype.name, *map(str, shape)])
        ones = tf.ones_initializer()
        return tf.get_variable(name, shape, dtype, ones, trainable=False, use_resource=True)


def _config(settings: SessionSettings) -> tf.ConfigProto:
    """As the job's, but nothing is left out because nobody reads it."""
    config = session_config(settings)
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config
