"""The operations between an encoder layer's matrix products, as TensorFlow and native operations.

Both implementations have the same methods and compute the same values. The native one reads and
writes each tensor once, while TensorFlow runs one operation per addition; it redraws dropout masks
in the backward pass instead of keeping them, and accumulates bias gradients in the same pass. It is
available on CPUs, for products in float32 or bfloat16 (``bert_tf/native/block_ops.cc``). It works
on rows and can leave out rows of padding (``token_rows.py``).

Dimensions: B sequences, S positions, R rows, N heads, H width of a head, D = N * H = hidden_size.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Draw, Dropout, apply_dropout, nothing_dropped
from bert_tf.model.layers import (
    GELUS,
    Dimension,
    activate,
    computed_in,
    layer_norm,
    operand,
    product,
    shape_of,
)
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.token_rows import TokenRows, all_rows, rows_of_tokens
from bert_tf.model.variables import Variables
from bert_tf.native import library

_SOURCE = library.SOURCE.with_name("block_ops.cc")

_PROJECTIONS = ("query", "key", "value")


class Stream(NamedTuple):
    """The hidden states between layers: [B, S, D] in plain blocks, [R, D] in native ones.

    Attributes:
      full: float32, for residual connections and as a layer's output.
      operand: the same values as operands of products, already cast if that costs nothing.
    """

    full: tf.Tensor
    operand: tf.Tensor


class DropoutSite(NamedTuple):
    """A call site of dropout.

    Attributes:
      dropout: draws the masks; None outside training.
      number: the site's number, in [0, 2**16).
      rate: fraction of elements to drop.
    """

    dropout: Dropout | None
    number: int
    rate: float

    def apply(self, x: tf.Tensor) -> tf.Tensor:
        """Dropout in training, ``x`` itself otherwise."""
        return apply_dropout(self.dropout, x, self.rate, site=self.number)

    def draw(self, elements: Dimension) -> Draw:
        """The source of masks for examples with this number of elements."""
        if self.dropout is None:
            return nothing_dropped()
        return self.dropout.draw(elements, self.rate, site=self.number)


class PlainBlocks:
    """TensorFlow operations, each in the dtype that the policy assigns to its class."""

    def __init__(self, policy: PrecisionPolicy) -> None:
        self._policy = policy

    def stream(self, x: tf.Tensor) -> Stream:
        """The initial stream from [B, S, D] float32 embeddings."""
        return Stream(x, x)

    def rebuilt(self, full: tf.Tensor) -> Stream:
        """The stream rebuilt from its ``full`` tensor."""
        return self.stream(full)

    def output(self, stream: Stream) -> tf.Tensor:
        """The output of a layer, [B, S, D] float32."""
        return stream.full

    def narrowed(self, read: tf.Tensor) -> PlainBlocks:
        """Blocks that compute at least the positions where ``read``, [B, S] integers, is not 0."""
        del read
        return self

    def handed_to(self, narrowed: PlainBlocks, stream: Stream) -> Stream:
        """Converts the stream to the input of these blocks or of narrowed ones."""
        del narrowed
        return stream

    def project_heads(self, x: Stream, variables: Variables, *, heads: int) -> list[tf.Tensor]:
        """Query, scaled by 1 / sqrt(H), key and value: [B, N, S, H] each, in attention's dtype.

        The query is scaled rather than the scores, which might overflow in float16.
        """
        policy = self._policy
        joined, bias = self._joined_product(x, variables)
        joined = computed_in(policy.activations, tf.nn.bias_add, joined, bias)
        query, key, value = tf.split(joined, len(_PROJECTIONS), axis=-1)
        query *= _query_scale(query.shape[-1] // heads)
        # Cast first, so that the transposition moves half the bytes.
        return [_split_heads(tf.cast(x, policy.attention), heads) for x in (query, key, value)]

    def _joined_product(self, x: Stream, variables: Variables) -> tuple[tf.Tensor, tf.Tensor]:
        """The product with all three projections, [..., 3 * D], and their bias, [3 * D]."""
        kernels = [operand(variables[f"{p}/kernel"], self._policy.dense) for p in _PROJECTIONS]
        biases = [variables[f"{p}/bias"] for p in _PROJECTIONS]
        joined = product(x.operand, tf.concat(kernels, axis=1), policy=self._policy)
        return joined, tf.concat(biases, axis=0)

    def attend(
        self,
        x: Stream,
        score_bias: tf.Tensor,
        variables: Variables,
        *,
        heads: int,
        closing: PlainBlocks,
        site: DropoutSite,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Self-attention: the means of the values, as operands of ``closing``, and the scores.

        The scores are [B, N, S, S] in attention's dtype, without ``score_bias``, which is [B, S]
        float32, the same for every head and query.
        """
        query, key, value = self.project_heads(x, variables, heads=heads)
        scores = tf.matmul(query, key, transpose_b=True)
        weights = self.attention_probabilities(scores, score_bias, site=site)
        return closing.merge_heads(tf.matmul(weights, value)), scores

    def attention_probabilities(
        self, scores: tf.Tensor, score_bias: tf.Tensor, *, site: DropoutSite
    ) -> tf.Tensor:
        """softmax(scores + score_bias), then dropout: [B, N, S, S] in attention's dtype."""
        policy = self._policy
        bias = score_bias[:, tf.newaxis, tf.newaxis, :]
        probabilities = computed_in(policy.softmax, _biased_softmax, scores, bias)
        dropped = site.apply(probabilities)
        return tf.cast(dropped, policy.attention)

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Concatenates the heads of [B, N, S, H] into an operand of the next product."""
        B, N, S, H = shape_of(x)
        return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [B, S, N * H])

    def activated(self, x: tf.Tensor, variables: Variables, activation: str) -> tf.Tensor:
        """Applies bias and activation to a product; returns an operand of the next product."""
        return activate(self._biased(x, variables), activation, policy=self._policy)

    def close_residual(
        self, x: tf.Tensor, residual: Stream, variables: Variables, *, site: DropoutSite
    ) -> Stream:
        """LayerNorm(dropout(x + bias) + residual), where ``x`` is a product with dense/kernel."""
        with variables.scope("dense") as dense:
            branch = self._biased(x, dense)
        branch = site.apply(branch)
        total = branch + residual.full
        return self.stream(layer_norm(total, variables, "LayerNorm", policy=self._policy))

    def _biased(self, x: tf.Tensor, variables: Variables) -> tf.Tensor:
        return computed_in(self._policy.activations, tf.nn.bias_add, x, variables["bias"])


class NativeBlocks(PlainBlocks):
    """Blocks that use the operations of ``bert_tf/native/block_ops.cc``.

    The policy must satisfy ``options.has_native_form``.
    """

    def __init__(self, policy: PrecisionPolicy, rows: TokenRows) -> None:
        """``rows`` are the rows to compute."""
        super().__init__(policy)
        self._operations = native_operations()
        self._rows = rows

    def stream(self, x: tf.Tensor) -> Stream:
        """See :meth:`PlainBlocks.stream`."""
        return self.rebuilt(self._rows.take(x))

    def rebuilt(self, full: tf.Tensor) -> Stream:
        """See :meth:`PlainBlocks.rebuilt`."""
        return Stream(full, tf.cast(full, self._policy.dense))

    def output(self, stream: Stream) -> tf.Tensor:
        """Like :meth:`PlainBlocks.output`, with zeros for rows that were not computed."""
        return self._rows.spread(stream.full)

    def narrowed(self, read: tf.Tensor) -> NativeBlocks:
        """Like :meth:`PlainBlocks.narrowed`, but leaves out most of the other rows."""
        return NativeBlocks(self._policy, rows_of_tokens(read))

    def handed_to(self, narrowed: PlainBlocks, stream: Stream) -> Stream:
        """See :meth:`PlainBlocks.handed_to`."""
        if narrowed is self or not isinstance(narrowed, NativeBlocks):
            return stream
        return self.rebuilt(self._rows.rows_at(narrowed._rows.places, stream.full))

    def attend(
        self, x: Stream, score_bias: tf.Tensor, variables: Variables, **how: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See :meth:`PlainBlocks.attend`."""
        joined, bias = self._joined_product(x, variables)
        context = self.attention(joined, bias, score_bias, **how)
        return context, self._scores(joined, bias, how["heads"])

    def attention(
        self,
        joined: tf.Tensor,
        bias: tf.Tensor,
        score_bias: tf.Tensor,
        *,
        heads: int,
        closing: PlainBlocks,
        site: DropoutSite,
    ) -> tf.Tensor:
        """The context alone, from the product with all projections, [R, 3 * D], and its bias."""
        assert isinstance(closing, NativeBlocks)
        S = shape_of(score_bias)[1]
        return self._operations.bert_tf_attention(
            joined=joined,
            bias=bias,
            score_bias=score_bias,
            heads=heads,
            scale=_query_scale(joined.shape[1] // (3 * heads)),
            read_places=closing._rows.places,
            read_row_of=closing._rows.row_of,
            **self._places(),
            **site.draw(heads * S * S)._asdict(),
        ).context

    def _scores(self, joined: tf.Tensor, bias: tf.Tensor, heads: int) -> tf.Tensor:
        # The operation keeps none. TensorFlow runs this only where a loss reads them.
        biased = tf.nn.bias_add(tf.cast(joined, tf.float32), bias)
        query, key, _ = tf.split(self._rows.spread(biased), 3, axis=2)
        query *= _query_scale(query.shape[2] // heads)
        dtype = self._policy.attention
        query, key = (_split_heads(tf.cast(part, dtype), heads) for part in (query, key))
        return tf.matmul(query, key, transpose_b=True)

    def activated(self, x: tf.Tensor, variables: Variables, activation: str) -> tf.Tensor:
        """See :meth:`PlainBlocks.activated`."""
        if activation not in GELUS:
            return super().activated(x, variables, activation)
        return self._operations.bert_tf_bias_gelu(
            product=x, bias=variables["bias"], exact=GELUS[activation]
        )

    def close_residual(
        self, x: tf.Tensor, residual: Stream, variables: Variables, *, site: DropoutSite
    ) -> Stream:
        """See :meth:`PlainBlocks.close_residual`."""
        # Each row gets the mask that its position would get in a batch with all rows.
        S, D = shape_of(self._rows.row_of)[1], shape_of(residual.full)[1]
        full, operand, _ = self._operations.bert_tf_residual_norm(
            product=x,
            bias=variables["dense/bias"],
            residual=residual.full,
            gamma=variables["LayerNorm/gamma"],
            beta=variables["LayerNorm/beta"],
            **self._places(),
            **site.draw(S * D)._asdict(),
        )
        return Stream(full, operand)

    def _places(self) -> dict[str, tf.Tensor]:
        return {"places": self._rows.places, "row_of": self._rows.row_of}


def blocks_for(options: ForwardOptions, input_mask: tf.Tensor) -> PlainBlocks:
    """The blocks for a batch with this mask, [B, S] integers.

    Plain blocks always compute padding; native blocks skip it if ``skip_padding`` is set.
    """
    if not options.native_layers:
        return PlainBlocks(options.policy)
    rows = rows_of_tokens if options.skip_padding else all_rows
    return NativeBlocks(options.policy, rows(input_mask))


@functools.lru_cache  # gradients can only be registered once
def native_operations() -> Any:
    """Loads the operations and registers their gradients, once; raises library.MissingLibrary."""
    operations = library.load(_SOURCE)

    @tf.RegisterGradient("BertTfAttention")
    def _attention(operation: tf.Operation, dcontext: tf.Tensor, _: tf.Tensor) -> object:
        djoined, dbias = operations.bert_tf_attention_grad(
            *operation.inputs,
            stats=operation.outputs[1],
            dcontext=dcontext,
            **{name: operation.get_attr(name) for name in ("heads", "scale", "threshold")},
        )
        return [djoined, dbias, *[None] * (len(operation.inputs) - 2)]

    @tf.RegisterGradient("BertTfBiasGelu")
    def _bias_gelu(operation: tf.Operation, dy: tf.Tensor) -> object:
        exact = operation.get_attr("exact")
        return operations.bert_tf_bias_gelu_grad(*operation.inputs, dy=dy, exact=exact)

    @tf.RegisterGradient("BertTfDivergence")
    def _divergence(operation: tf.Operation, dlosses: tf.Tensor, *_: tf.Tensor) -> object:
        dproduct, dbias = operations.bert_tf_divergence_grad(
            *operation.inputs,
            log_totals=operation.outputs[1],
            known_log_totals=operation.outputs[2],
            dlosses=dlosses,
            temperature=operation.get_attr("temperature"),
        )
        return dproduct, dbias, None, None

    @tf.RegisterGradient("BertTfResidualNorm")
    def _residual_norm(operation: tf.Operation, *gradients: tf.Tensor) -> object:
        dy, dhalf, _ = gradients
        product_, bias, residual, gamma, _, key, counter, places, row_of = operation.inputs
        dproduct, dbias, dresidual, dgamma, dbeta = operations.bert_tf_residual_norm_grad(
            product=product_,
            bias=bias,
            residual=residual,
            gamma=gamma,
            stats=operation.outputs[2],
            key=key,
            counter=counter,
            places=places,
            row_of=row_of,
            dy=dy,
            dhalf=dhalf,
            threshold=operation.get_attr("threshold"),
        )
        return dproduct, dbias, dresidual, dgamma, dbeta, None, None, None, None

    @tf.RegisterGradient("BertTfSoftmaxLoss")
    def _softmax_loss(operation: tf.Operation, dlosses: tf.Tensor, *_: tf.Tensor) -> object:
        dproduct, dbias = operations.bert_tf_softmax_loss_grad(
            *operation.inputs, log_totals=operation.outputs[2], dlosses=dlosses
        )
        return dproduct, dbias, None

    return operations


def _query_scale(size: int) -> float:
    return 1.0 / math.sqrt(size)


def _biased_softmax(scores: tf.Tensor, score_bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(scores + score_bias)


def _split_heads(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """[B, S, N * H] -> [B, N, S, H]."""
    B, S, width = shape_of(x)
    return tf.transpose(tf.reshape(x, [B, S, num_heads, width // num_heads]), [0, 2, 1, 3])
