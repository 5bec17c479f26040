"""Distillation losses, and the interface that a task must implement to use them.

Sources: Hinton et al. 2015, "Distilling the knowledge in a neural network" (soft targets); Sanh et
al. 2019, "DistilBERT" (soft targets, masked LM and cosine of the hidden states); Jiao et al. 2020,
"TinyBERT", section 3.1 (hidden states through a projection, and attention).

No gradient flows into the teacher's tensors. Dimensions: N targets, C classes, K of them kept, B
sequences, S positions, L pairs of layers, D width of the student.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.model.blocks import native_operations
from bert_tf.model.losses import ClassScores, Decisions
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Features, Task
from bert_tf.model.variables import Variables

# Lower bound of a probability before its logarithm is taken.
_LEAST_PROBABILITY = 1e-6


class DistilledTask(Task, Protocol):
    """A task that supports distillation: an encoder with heads on top of its output."""

    @property
    def loss_name(self) -> str:
        """Name of the loss on labels, for metrics."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes of a target; 1 for regression, None if it varies, as of positions."""

    @property
    def score_all_tokens(self) -> bool:
        """Whether every token has a target, rather than every label."""

    def positions_read(self, features: Features) -> tf.Tensor | None:
        """The positions at which the heads read the encoder, [B, S] integers; None for all."""

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> Any:
        """Computes what ``outputs`` returns from the encoder's output, [B, S, D] float32."""

    def decisions(self, outputs: Any, features: Features, options: ForwardOptions) -> Decisions:
        """Returns the class scores in ``outputs`` and their weights."""


class SoftTargets(NamedTuple):
    """The most probable classes of a teacher.

    Attributes:
      classes: [N, K] int32.
      probabilities: [N, K] float32, 0 for classes that are left out.
    """

    classes: tf.Tensor
    probabilities: tf.Tensor


def most_probable(
    scores: tf.Tensor, *, temperature: float, most: int, least_probability: float
) -> SoftTargets:
    """Returns up to ``most`` classes per target, each with at least ``least_probability``.

    ``scores`` are [N, C] float32. Probabilities are taken at the given temperature and normalised
    over all classes, so those of one target may sum to less than 1.
    """
    scores = tf.stop_gradient(scores) / temperature
    values, classes = tf.math.top_k(scores, k=most)
    log_totals = tf.reduce_logsumexp(scores, axis=-1, keepdims=True)
    probabilities = tf.exp(values - log_totals)
    kept = tf.cast(probabilities >= least_probability, tf.float32)
    return SoftTargets(classes, probabilities * kept)


def divergence_from_all(
    student: ClassScores, teacher: ClassScores, *, temperature: float, options: ForwardOptions
) -> tf.Tensor:
    """The KL divergence of the student's classes from the teacher's, [N] float32.

    Both are taken at the given temperature. With native layers one operation reads both products,
    [N, C] each, and keeps two numbers per target for the backward pass.
    """
    if student.have_native_losses(options) and teacher.product.dtype == student.product.dtype:
        divergences, _, _ = native_operations().bert_tf_divergence(
            product=student.product,
            bias=student.bias,
            known_product=tf.stop_gradient(teacher.product),
            known_bias=tf.stop_gradient(teacher.bias),
            temperature=temperature,
        )
        return divergences
    targets = tf.stop_gradient(teacher.logits(options.policy)) / temperature
    logits = student.logits(options.policy) / temperature
    probabilities = tf.nn.softmax(targets)
    cross_entropy = tf.nn.softmax_cross_entropy_with_logits_v2(probabilities, logits)
    entropy = tf.nn.softmax_cross_entropy_with_logits_v2(probabilities, targets)
    return cross_entropy - tf.stop_gradient(entropy)


def divergence_from_most_probable(
    student: ClassScores, targets: SoftTargets, *, temperature: float, options: ForwardOptions
) -> tf.Tensor:
    """Like :func:`divergence_from_all`, with all classes that were not kept merged into one.

    Returns [N] float32, a lower bound of the divergence over all classes. The student keeps the
    total probability that the teacher gives to the other classes; renormalised targets would teach
    it that these are impossible.
    """
    scaled = ClassScores(student.product / temperature, student.bias / temperature)
    scores = _scores_of(scaled, targets.classes)
    log_student = scores - _log_totals(scaled, targets.classes[:, 0], scores[:, :1], options)
    teacher = targets.probabilities
    is_kept = tf.cast(teacher > 0, tf.float32)
    among_kept = tf.reduce_sum(teacher * (_safe_log(teacher) - log_student), axis=-1)
    # Rounded targets may sum to slightly more than 1.
    teacher_rest = tf.nn.relu(1.0 - tf.reduce_sum(teacher, axis=-1))
    student_rest = 1.0 - tf.reduce_sum(is_kept * tf.exp(log_student), axis=-1)
    return among_kept + teacher_rest * (_safe_log(teacher_rest) - _safe_log(student_rest))


def _scores_of(scores: ClassScores, classes: tf.Tensor) -> tf.Tensor:
    """Gathers the scores of [N, K] classes, [N, K] float32."""
    products = tf.gather(scores.product, classes, batch_dims=1)
    return tf.cast(products, tf.float32) + tf.gather(scores.bias, classes)


def _log_totals(
    scores: ClassScores, label: tf.Tensor, score: tf.Tensor, options: ForwardOptions
) -> tf.Tensor:
    """The log-sum-exp of the scores over all classes, [N, 1] float32.

    The native operation never materialises the scores: it returns the cross entropy of one
    ``label`` [N], and adding its ``score`` [N, 1] gives the log-sum-exp.
    """
    if not scores.have_native_losses(options):
        return tf.reduce_logsumexp(scores.logits(options.policy), axis=-1, keepdims=True)
    losses, _, _ = native_operations().bert_tf_softmax_loss(
        product=scores.product, bias=scores.bias, labels=label
    )
    return losses[:, tf.newaxis] + score


def _safe_log(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.log(tf.maximum(probabilities, _LEAST_PROBABILITY))


def attention_distances(
    student: Sequence[tf.Tensor], teacher: Sequence[tf.Tensor], input_mask: tf.Tensor
) -> tf.Tensor:
    """Squared differences of attention scores: mean over heads, sum over pairs of layers.

    Scores are [B, N, S, S] for each of L layers, before the softmax; only those between two tokens
    of ``input_mask`` [B, S] count. Returns [B] float32, summed over pairs of tokens.
    """
    mask = tf.cast(input_mask, tf.float32)
    pairs = mask[:, :, tf.newaxis] * mask[:, tf.newaxis, :]

    def distance(scores: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        scores, target = tf.cast(scores, tf.float32), tf.cast(tf.stop_gradient(target), tf.float32)
        squares = tf.reduce_mean(tf.squared_difference(scores, target), axis=1)
        return tf.reduce_sum(squares * pairs, axis=[1, 2])

    return tf.add_n([distance(*layers) for layers in zip(student, teacher)])
