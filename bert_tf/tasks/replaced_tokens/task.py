"""The task of ELECTRA: replaced-token detection (Clark et al. 2020, section 2).

A generator, a small masked LM, samples words for the masked positions. The discriminator, which is
the network to keep, predicts for every token whether it was replaced. The two losses are added; no
gradient flows from one network to the other, but they share their embeddings.

Dimensions: B sequences, S positions, P predictions per sequence, V = vocab_size, D = the
discriminator's hidden_size, which is also the width of the embeddings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.derived import generator_specs
from bert_tf.checkpoint.names import EMBEDDINGS_PROJECT, GENERATOR
from bert_tf.input.pipeline import EXAMPLE_WEIGHTS
from bert_tf.model.bert import WORD_EMBEDDINGS, bert_output, bert_specs
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.dropout import Dropout, numbers_like
from bert_tf.model.encoder import encode
from bert_tf.model.flops import training_flops
from bert_tf.model.heads import (
    DISCRIMINATOR_HEAD,
    Head,
    discriminator_logits,
    discriminator_specs,
)
from bert_tf.model.layers import Dimension, computed_in, dense, shape_of
from bert_tf.model.losses import ACCURACY, LEAST_WEIGHT, Sums, Terms
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Features
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.tasks.pretraining.task import (
    MASKED_LM,
    PretrainingOutputs,
    PretrainingTask,
    masked_lm_logits,
)

_GENERATOR = GENERATOR.rstrip("/")

DISCRIMINATOR = "discriminator"
# In addition to accuracy: fractions of tokens that are replaced, flagged as replaced, and both.
_CROSS_ENTROPY, _REPLACED, _FLAGGED, _CAUGHT = "cross_entropy", "replaced", "flagged", "caught"

GENERATOR_HEAD = Head("generator", (_GENERATOR,), "run_electra.py")

# The generator's dropout uses data positions that no training run reaches.
_POSITIONS_OF_GENERATOR = 1 << 46

# A call site for random numbers. Dropout numbers layers from 0 and heads from the other end.
_SITE = (1 << 16) - 2
# Random bits per number: as many as float32 represents exactly below 1.
_BITS = 23
# The golden ratio's fraction of 2**23, odd: its multiples are spread evenly (Knuth 1998, "The art
# of computer programming", volume 3, section 6.4).
_GOLDEN = 5183737

# Two operations in each of three products; see ``model.flops``.
_FLOPS_OF_A_PRODUCT = 6


class ReplacedTokenOutputs(NamedTuple):
    """The outputs of both networks for a batch.

    Attributes:
      generator: the generator's outputs.
      input_ids: the discriminator's input, [B, S] integers.
      logits: [B, S] float32, positive for tokens predicted to be replaced.
    """

    generator: PretrainingOutputs
    input_ids: tf.Tensor
    logits: tf.Tensor


@dataclasses.dataclass(frozen=True)
class ReplacedTokenTask:
    """A generator and its discriminator; implements :class:`bert_tf.model.task.Task`.

    Attributes:
      config: the discriminator's configuration.
      generator: the generator's; vocabulary, positions and segments have the same sizes.
      discriminator_weight: weight of the discriminator's loss.
    """

    config: BertConfig
    generator: BertConfig
    discriminator_weight: float

    heads: ClassVar = (GENERATOR_HEAD, DISCRIMINATOR_HEAD)
    inputs: ClassVar = (*INPUTS, "masked_lm_positions")
    terms: ClassVar[Terms] = {
        MASKED_LM: (ACCURACY,),
        DISCRIMINATOR: (ACCURACY, _CROSS_ENTROPY, _REPLACED, _FLAGGED, _CAUGHT),
    }

    def specs(self) -> list[VariableSpec]:
        """The discriminator's variables under BERT's names, and the generator's own variables."""
        own = generator_specs(self.generator, embedding_size=self.config.hidden_size)
        return [
            *bert_specs(self.config, pooler=False),
            *discriminator_specs(self.config),
            *(spec._replace(name=f"{_GENERATOR}/{spec.name}") for spec in own),
        ]

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> ReplacedTokenOutputs:
        """The generator's outputs, and the discriminator's logits for a sample drawn from them."""
        words = self._generator_outputs(variables, features, options)
        with tf.name_scope("replaced_tokens"):
            positions = features["masked_lm_positions"]
            if options.dropout is None:
                uniform = uniform_numbers_of(features["input_ids"], positions)
            else:
                uniform = uniform_numbers(options.dropout, positions)
            sampled = sample_classes(
                masked_lm_logits(words.words, options), tf.reshape(uniform, [-1])
            )
            input_ids = with_tokens_at(
                features["input_ids"], positions, tf.reshape(sampled, tf.shape(positions))
            )
        corrupted = {**features, "input_ids": input_ids}
        encoded = bert_output(variables, self.config, corrupted, options).sequence_output
        logits = discriminator_logits(encoded, variables, config=self.config, policy=options.policy)
        return ReplacedTokenOutputs(words, input_ids, logits)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The number of masked tokens and the number of all tokens."""
        words = self._masked_lm.weights(features)
        return {**words, DISCRIMINATOR: tf.reduce_sum(_token_weights(features))}

    def losses(
        self, outputs: ReplacedTokenOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """Cross entropies of the masked words, and of replaced versus original for every token."""
        words = self._masked_lm.losses(outputs.generator, features, options)
        with tf.name_scope("cls/discriminator/loss"):
            return {**words, DISCRIMINATOR: self._discriminator_sums(outputs, features, options)}

    def predictions(
        self, outputs: ReplacedTokenOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """The discriminator's input, integers, and ``replaced_probabilities``; [B, S] each."""
        del features, options
        return {
            "sampled_ids": outputs.input_ids,
            "replaced_probabilities": tf.sigmoid(outputs.logits),
        }

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """The generator's perplexity; precision and recall of replaced tokens."""
        counts = sums[DISCRIMINATOR].metrics
        return {
            **self._masked_lm.scores(sums),
            f"{DISCRIMINATOR}_precision": counts[_CAUGHT] / max(counts[_FLAGGED], LEAST_WEIGHT),
            f"{DISCRIMINATOR}_recall": counts[_CAUGHT] / max(counts[_REPLACED], LEAST_WEIGHT),
        }

    def training_flops(self, *, length: int, predictions: int) -> float:
        """FLOPs of training both networks on one sequence, heads included."""
        width, of_generator = self.config.hidden_size, self.generator.hidden_size
        encoders = sum(
            training_flops(network, length=length, predictions=0, next_sentence=False)
            for network in (self.generator, self.config)
        )
        heads = length * width * (width + 1)
        heads += predictions * width * (of_generator + self.config.vocab_size)
        if of_generator != width:  # the embeddings are projected
            heads += length * width * of_generator
        return encoders + _FLOPS_OF_A_PRODUCT * heads

    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """The generator's sizes and the discriminator's weight."""
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        sizes = {f"generator_{name}": getattr(self.generator, name) for name in names}
        return {"replaced_tokens": {"discriminator_weight": self.discriminator_weight, **sizes}}

    @property
    def _masked_lm(self) -> PretrainingTask:
        """The generator's task; its head uses the exact GELU, as transformers' always does."""
        config = dataclasses.replace(self.generator, hidden_act="gelu_erf")
        return PretrainingTask(config, next_sentence=False, whole_scores=True)

    def _generator_outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> PretrainingOutputs:
        if options.dropout is not None:
            options = options.with_dropout(_of_generator(options.dropout))
        with variables.scope(_GENERATOR) as scoped:
            # Only the embeddings are read, so this layer is never computed.
            least = dataclasses.replace(self.config, num_hidden_layers=1)
            x = bert_output(variables, least, features, options).embedding_output
            if self.generator.hidden_size != self.config.hidden_size:
                x = dense(x, scoped, EMBEDDINGS_PROJECT, policy=options.policy)
            with scoped.scope("bert/encoder") as encoder:
                layers = encode(
                    x,
                    features["input_mask"],
                    encoder,
                    self.generator,
                    options,
                    read=self._masked_lm.positions_read(features),
                )
            shared = {WORD_EMBEDDINGS: variables[WORD_EMBEDDINGS]}
            read = Variables({**scoped.within(), **shared})
            return self._masked_lm.head_outputs(layers[-1].hidden, read, features, options)

    def _discriminator_sums(
        self, outputs: ReplacedTokenOutputs, features: Features, options: ForwardOptions
    ) -> Sums:
        # A word that the generator guesses correctly counts as original.
        original = with_tokens_at(
            features["input_ids"], features["masked_lm_positions"], features["masked_lm_ids"]
        )
        replaced = tf.cast(tf.not_equal(outputs.input_ids, original), tf.float32)
        flagged = tf.cast(outputs.logits > 0, tf.float32)
        losses = computed_in(
            options.policy.loss,
            lambda logits, labels: tf.nn.sigmoid_cross_entropy_with_logits(
                labels=labels, logits=logits
            ),
            outputs.logits,
            replaced,
        )
        weights = _token_weights(features)
        values = {
            ACCURACY: tf.cast(tf.equal(flagged, replaced), tf.float32),
            _CROSS_ENTROPY: losses,
            _REPLACED: replaced,
            _FLAGGED: flagged,
            _CAUGHT: flagged * replaced,
        }
        metrics = {name: tf.reduce_sum(weights * value) for name, value in values.items()}
        loss = self.discriminator_weight * metrics[_CROSS_ENTROPY]
        return Sums(loss, tf.reduce_sum(weights), metrics)


def _of_generator(dropout: Dropout) -> Dropout:
    """Masks that differ from the discriminator's, whose call sites have the same numbers."""
    position, first_example = dropout.place
    return dropout.at(position + _POSITIONS_OF_GENERATOR, first_example)


def _token_weights(features: Features) -> tf.Tensor:
    """[B, S] float32: 1 for tokens, 0 for padding and for sequences that only fill a batch."""
    tokens = tf.cast(features["input_mask"], tf.float32)
    weights = features.get(EXAMPLE_WEIGHTS)
    return tokens if weights is None else tokens * weights[:, tf.newaxis]


def uniform_numbers(dropout: Dropout, like: tf.Tensor) -> tf.Tensor:
    """Draws a float32 in [0, 1) for each prediction of a micro batch, ``like`` [B, P]: [B, P].

    As with dropout, numbers depend only on the seed and on the place in the global batch.
    """
    return _as_uniform(_random_bits(dropout, *shape_of(like)))


def uniform_numbers_of(input_ids: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Like :func:`uniform_numbers`, but dependent only on the sequences ``input_ids`` [B, S].

    For evaluations, whose results must not depend on batches or ranks. All sequences use the same
    random numbers, each shifted by its checksum (a rotation, Cranley and Patterson 1976).
    """
    nowhere = tf.constant(0, tf.int64)
    dropout = Dropout(0, data_position=nowhere, first_example=nowhere)
    bits = _random_bits(dropout, 1, shape_of(like)[1])
    ids = tf.cast(input_ids, tf.int64)
    places = tf.range(1, tf.cast(tf.shape(ids)[1], tf.int64) + 1)
    shift = tf.reduce_sum(ids * places, axis=1, keepdims=True) * _GOLDEN
    return _as_uniform(bits + tf.cast(tf.math.floormod(shift, 1 << _BITS), tf.int32))


def _random_bits(dropout: Dropout, examples: Dimension, predictions: Dimension) -> tf.Tensor:
    """Draws [examples, predictions] int32 in [0, 2**23)."""
    halves = tf.zeros([examples, predictions, 2], tf.uint16)
    numbers = numbers_like(halves, dropout.draw(predictions * 2, 0.0, site=_SITE))
    return tf.bitwise.bitwise_and(tf.bitcast(numbers, tf.int32), (1 << _BITS) - 1)


def _as_uniform(bits: tf.Tensor) -> tf.Tensor:
    """Converts the lowest 23 bits of integers to float32 in [0, 1)."""
    lowest = tf.bitwise.bitwise_and(bits, (1 << _BITS) - 1)
    return tf.cast(lowest, tf.float32) * 2.0**-_BITS


def sample_classes(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Samples a class from each row's softmax: int32 [N]; no gradient flows through it.

    Clark et al. 2020 add Gumbel noise to every logit; inverting the cumulative distribution gives
    the same distribution with a single random number per row.

    Args:
      logits: [N, V] float32.
      uniform: [N] float32 in [0, 1), in steps of 2**-23.
    """
    cumulative = tf.cumsum(tf.nn.softmax(tf.stop_gradient(logits)), axis=-1)
    # At least one step below the total, so that a class is always found.
    wanted = uniform[:, tf.newaxis] * cumulative[:, -1:]
    return tf.searchsorted(cumulative, wanted, side="right")[:, 0]


def with_tokens_at(input_ids: tf.Tensor, positions: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Puts ``tokens`` [B, P] into ``input_ids`` [B, S] at ``positions`` [B, P]; all are integers.

    Padding predictions have position 0, that of [CLS], whose token is kept.
    """
    B, S = shape_of(input_ids)
    there = tf.gather(input_ids, positions, batch_dims=1)
    tokens = tf.where(positions > 0, tf.cast(tokens, input_ids.dtype), there)
    rows = tf.range(B, dtype=positions.dtype)[:, tf.newaxis] * tf.cast(S, positions.dtype)
    places = tf.reshape(rows + positions, [-1, 1])
    flat = tf.tensor_scatter_nd_update(
        tf.reshape(input_ids, [-1]), places, tf.reshape(tokens, [-1])
    )
    return tf.reshape(flat, [B, S])
