"""Short timings of how fast this processor computes a job's products and layers.

A processor's feature flags are not enough: on some processors with bfloat16 instructions, products
take twice as long in bfloat16 as in float32. So parts of one layer are timed, in the shapes of the
job but with few enough tokens to be quick: the products of a dense layer with those of its
gradients, the casts of kernels, attention, and the operations between products. Training adds
the update of a layer's weights (``update_probe.py``).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import Callable, TypeVar

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import DropoutSite, NativeBlocks, PlainBlocks, blocks_for
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import encode, encoder_specs
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.variables import Variables, create_variables
from bert_tf.tuning.session import SessionSettings, session_config

# Operations per thread and turn in a dense product and the products of its gradients, roughly.
_OPERATIONS_A_THREAD = 1_000_000_000
_FEWEST_TOKENS = 64
_TURNS, _FEWEST_TURNS = 5, 3
_SECONDS = 0.25  # no turn starts after this time
# Emulated types can take hundreds of times as long, which small products show quickly.
_SMALL_TOKENS, _SMALL_WIDTH, _SMALL_TURNS = 64, 256, 3
_HOPELESS = 2.0
# A factor by which products alone must be slower than float32's whole layer not to be noise.
_CLEARLY = 1.5

_DROPOUT_RATE = 0.1

PRODUCTS = "products"

# Precision -> seconds per layer and micro batch: of its dense products, and of all else by form. A
# precision that is clearly too slow has no forms.
Figures = dict[str, dict[str, float]]

# Operations, each with the number of times that a layer contains it.
Pieces = list[tuple[tf.Operation, float]]
_Key = TypeVar("_Key")


@dataclasses.dataclass(frozen=True)
class JobShapes:
    """The numbers that determine the shapes of a job's products.

    Attributes:
      sequences: sequences per micro batch.
      length: positions per sequence.
      accumulation_steps: micro batches per update; 0 for a job that does not train.
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
        """The shapes for a network; the other arguments are the attributes of that name."""
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
        """Whether gradients are computed."""
        return self.accumulation_steps > 0

    @property
    def passes(self) -> int:
        """Products per product of the forward pass: itself and both operands' gradients."""
        return 3 if self.trains else 1

    def timed_tokens(self, threads: int) -> int:
        """The number of tokens to time: enough to measure, but at most a micro batch."""
        operations = 2 * self.passes * self.hidden_size * self.intermediate_size
        moment = max(_FEWEST_TOKENS, threads * _OPERATIONS_A_THREAD // operations)
        return min(moment, self.tokens)

    @property
    def tokens(self) -> int:
        """Number of tokens per micro batch."""
        return self.sequences * self.length

    @property
    def operations(self) -> int:
        """Number of multiplications and additions in a layer's dense products for a micro batch."""
        return 2 * self.passes * self.tokens * self.kernel_weights

    @property
    def kernel_weights(self) -> int:
        """Number of weights in the kernels of a layer."""
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def __str__(self) -> str:
        pass_ = f"training, {self.accumulation_steps} steps" if self.trains else "prediction"
        return (
            f"{self.sequences} x {self.length} tokens, {pass_}, {self.hidden_size}/"
            f"{self.intermediate_size} wide, {self.heads} heads, {self.activation}"
        )


# Makes the pieces of a layer's update from shapes, policy, whether it is native, and tokens.
UpdatePieces = Callable[[JobShapes, PrecisionPolicy, bool, int], Pieces]


def gflops(figures: Figures, shapes: JobShapes) -> dict[str, float]:
    """Precision -> rate of its products including casts, in 10**9 operations per second."""
    return {name: shapes.operations / found[PRODUCTS] / 1e9 for name, found in figures.items()}


def measure(
    shapes: JobShapes,
    policies: Mapping[str, PrecisionPolicy],
    forms: Mapping[str, bool],
    *,
    settings: SessionSettings,
    update: UpdatePieces | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Figures:
    """Times the pieces of a layer in turn, so that other load on the machine affects all equally.

    Args:
      shapes: the job's shapes.
      policies: by precision; the others are compared with the first.
      forms: name -> whether native operations compute the update and the parts between products.
      settings: the job's session settings.
      update: makes the pieces of the update, for training.
      clock: returns seconds.
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
    candidates = {name: policy for name, policy in policies.items() if name not in hopeless}
    tokens = shapes.timed_tokens(settings.threads)
    with tf.Graph().as_default(), tf.Session(config=_config(settings)) as session:
        pieces = {}
        for name, policy in candidates.items():
            pieces[name, PRODUCTS] = _products(shapes, policy, tokens)
            for form, is_native in forms.items():
                options = ForwardOptions(policy).with_native_layers(is_native)
                pieces[name, form] = _between_products(shapes, options, tokens)
                if update is not None:
                    pieces[name, form] += update(shapes, policy, is_native, tokens)
        session.run(tf.global_variables_initializer())
        figures = _medians(session, pieces, first, clock)
    for name, ratio in hopeless.items():
        figures[name] = {PRODUCTS: ratio * figures[first][PRODUCTS]}
    micro_batch = shapes.tokens / tokens  # hosts may time different numbers of tokens
    return {
        name: {piece: micro_batch * seconds for piece, seconds in found.items()}
        for name, found in figures.items()
    }


def _time_once(
    runs: Mapping[_Key, list[tuple[Callable[[], None], float]]],
    found: Mapping[_Key, list[float]],
    clock: Callable[[], float],
) -> None:
    """Runs each of ``runs`` in turn, and appends the total seconds of its pieces to ``found``."""
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
    """Seconds by precision and piece; only products for a precision that is clearly slower."""
    runs = {
        key: [(session.make_callable(operation), share) for operation, share in listed]
        for key, listed in pieces.items()
    }
    found: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    _time_once(runs, found, clock)
    began = clock()
    for turn in range(_TURNS):
        if turn >= _FEWEST_TURNS and clock() - began > _SECONDS:
            break
        _time_once(runs, found, clock)
        # Products that take longer than the first precision's whole layer cannot win, however
        # little time all else takes.
        products = found[first, PRODUCTS][-1]
        rest = max(s[-1] for (name, piece), s in found.items() if name == first != piece)
        limit = _CLEARLY * (products + rest)
        slower = {name for name, piece in runs if found[name, PRODUCTS][-1] > limit}
        found = {key: s for key, s in found.items() if key[0] not in slower or key[1] == PRODUCTS}
        runs = {key: run for key, run in runs.items() if key[0] not in slower}
    figures: Figures = {}
    for (name, piece), seconds in found.items():
        figures.setdefault(name, {})[piece] = statistics.median(seconds[1:])  # without warm-up
    return figures


def _small_products(
    policies: Mapping[str, PrecisionPolicy], settings: SessionSettings, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of small products in each policy's data type, the best of several turns."""
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


def layer(shapes: JobShapes, options: ForwardOptions, sequences: int) -> tf.Operation:
    """An encoder layer on ``sequences`` full sequences, with gradients of all its variables."""
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
    x = ones([sequences, shapes.length, shapes.hidden_size])
    mask = tf.ones([sequences, shapes.length], tf.int32)
    with variables.scope("layers") as in_scope:
        layers = encode(x, mask, in_scope, config, options)
        outputs = [layer.hidden for layer in layers]
    return _with_gradients(outputs, [x, *variables.all()], shapes)


def _dropout(shapes: JobShapes) -> Dropout | None:
    if not shapes.trains:
        return None
    zero = tf.zeros([], tf.int64)
    return Dropout(1, data_position=zero, first_example=zero)


def _products(shapes: JobShapes, policy: PrecisionPolicy, tokens: int) -> Pieces:
    hidden, intermediate = shapes.hidden_size, shapes.intermediate_size
    dense = _dense(tokens, hidden, intermediate, policy.dense, passes=shapes.passes)
    share = shapes.kernel_weights / (hidden * intermediate)
    pieces = [(dense, share)]
    if shapes.trains and policy.dense != tf.float32:
        cast = tf.cast(ones([hidden, intermediate]), policy.dense)
        pieces.append((cast.op, share * num_updates(shapes, tokens)))
    return pieces


def _between_products(shapes: JobShapes, options: ForwardOptions, tokens: int) -> Pieces:
    """All else in a layer, with gradients; TensorFlow's form without transposing heads."""
    policy, hidden = options.policy, shapes.hidden_size
    blocks = blocks_for(options, tf.ones([1, tokens], tf.int32))
    rows = [tokens] if options.native_layers else [1, tokens]
    site = DropoutSite(_dropout(shapes), 1, _DROPOUT_RATE)
    widened, closed = (
        ones([*rows, width], policy.dense) for width in (shapes.intermediate_size, hidden)
    )
    residual = PlainBlocks(policy).stream(ones([*rows, hidden]))
    wide, narrow = ones([shapes.intermediate_size]), ones([hidden])
    narrow_variables = dict.fromkeys(("dense/bias", "LayerNorm/gamma", "LayerNorm/beta"), narrow)
    variables = Variables({"bias": wide, **narrow_variables})
    activated = blocks.activated(widened, variables, shapes.activation)
    output = blocks.close_residual(closed, residual, variables, site=site)
    # In the plain form, casts to the data type of the next product are part of its cost.
    activated, operand = (tf.cast(x, policy.dense) for x in (activated, output.operand))
    attention = _native_attention if options.native_layers else _plain_attention
    return [
        (_with_gradients([activated], [widened, wide], shapes), 1.0),
        (_with_gradients([output.full, operand], [closed, residual.full, narrow], shapes), 2.0),
        *attention(shapes, options, tokens, site),
    ]


def num_updates(shapes: JobShapes, tokens: int) -> float:
    """The number of updates, usually a fraction, that ``tokens`` tokens correspond to."""
    return tokens / (shapes.tokens * shapes.accumulation_steps)


def _dense(tokens: int, inputs: int, outputs: int, dtype: tf.DType, *, passes: int) -> tf.Operation:
    x, kernel = ones([tokens, inputs], dtype), ones([inputs, outputs], dtype)
    dy = ones([tokens, outputs], dtype)
    products = [
        lambda: tf.matmul(x, kernel),
        lambda: tf.matmul(dy, kernel, transpose_b=True),
        lambda: tf.matmul(x, dy, transpose_a=True),
    ]
    return tf.group(*(product() for product in products[:passes]))


def _native_attention(
    shapes: JobShapes, options: ForwardOptions, tokens: int, site: DropoutSite
) -> Pieces:
    sequences = max(1, round(tokens / shapes.length))
    mask = tf.ones([sequences, shapes.length], tf.int32)
    blocks = blocks_for(options, mask)
    assert isinstance(blocks, NativeBlocks)
    joined = ones([sequences * shapes.length, 3 * shapes.hidden_size], options.policy.attention)
    bias, score_bias = ones([3 * shapes.hidden_size]), tf.zeros(mask.shape)
    context = blocks.attention(
        joined, bias, score_bias, heads=shapes.heads, closing=blocks, site=site
    )
    share = tokens / (sequences * shapes.length)
    return [(_with_gradients([context], [joined, bias], shapes), share)]


def _plain_attention(
    shapes: JobShapes, options: ForwardOptions, tokens: int, site: DropoutSite
) -> Pieces:
    dtype, length = options.policy.attention, shapes.length
    exact = shapes.heads * tokens / length
    matrices = max(1, round(exact))
    rows = ones([1, matrices, length, shapes.hidden_size // shapes.heads], dtype)
    scores = tf.matmul(rows, rows, transpose_b=True)
    softmax = PlainBlocks(options.policy).attention_probabilities(
        scores, ones([1, length]), site=site
    )
    context = tf.matmul(softmax, rows)
    return [(_with_gradients([context], [rows], shapes), exact / matrices)]


def _with_gradients(
    results: list[tf.Tensor], sources: list[tf.Tensor], shapes: JobShapes
) -> tf.Operation:
    gradients = tf.gradients(results, sources) if shapes.trains else []
    return tf.group(*results, *gradients)


def ones(shape: list[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    """A tensor of ones stored in a variable, shared by calls with equal arguments."""
    return tf.convert_to_tensor(ones_variable(shape, dtype, "ones"))


def ones_variable(shape: list[int], dtype: tf.DType, kind: str) -> tf.Variable:
    """A variable of ones, shared by calls with equal arguments."""
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        name = "_".join([kind, dtype.name, *map(str, shape)])
        initializer = tf.ones_initializer()
        return tf.get_variable(name, shape, dtype, initializer, trainable=False, use_resource=True)


def _config(settings: SessionSettings) -> tf.ConfigProto:
    """The job's configuration without graph optimisations, which would prune unused results."""
    config = session_config(settings)
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config
