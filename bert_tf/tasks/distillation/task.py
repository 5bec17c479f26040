"""The distillation task: a student learns from labels and from a frozen teacher network.

Sources: Hinton et al. 2015, "Distilling the knowledge in a neural network" (soft targets); Sanh et
al. 2019, "DistilBERT" (soft targets, masked LM and cosine of the hidden states); Jiao et al. 2020,
"TinyBERT", section 3.1 (hidden states through a projection, and attention).

No gradient flows into the teacher's tensors. Dimensions: N targets, C classes, K of them kept, B
sequences, S positions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import BertOutput, bert_output, bert_specs
from bert_tf.model.blocks import native_operations
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import Head
from bert_tf.model.layers import rows_of_sequences
from bert_tf.model.losses import ClassScores, Decisions, Sums, Terms
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Features, Task
from bert_tf.model.variables import Variables, VariableSpec, frozen_specs
from bert_tf.tasks.distillation.settings import DistillationSettings

# The prefix of the teacher's variables.
TEACHER = "teacher"

# The teacher's loss terms and the metric of each, reported without temperature and weight.
SOFT_TARGETS, COSINE, HIDDEN, ATTENTION = "soft_targets", "cosine", "hidden", "attention"
_METRICS = {
    SOFT_TARGETS: "divergence",
    COSINE: "distance",
    HIDDEN: "squared_error",
    ATTENTION: "squared_error",
}

# Features that hold cached soft targets, [B, P, K] each.
CLASSES, PROBABILITIES = "soft_target_classes", "soft_target_probabilities"

# Lower bound of a probability before its logarithm is taken.
_LEAST_PROBABILITY = 1e-6

_PROJECTION = "distillation/projection/kernel"
PROJECTION_HEAD = Head("projection of the hidden states", ("distillation",), "run_distillation.py")


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


class DistillationOutputs(NamedTuple):
    """The outputs of both networks; None for parts of the teacher that are not used."""

    student: Any
    student_encoder: BertOutput
    teacher: Any
    teacher_encoder: BertOutput | None


@dataclasses.dataclass(frozen=True)
class DistillationTask:
    """The student's own task, with additional loss terms that compare it with the teacher.

    Implements :class:`bert_tf.model.task.Task`. Predictions and scores are the student's; both
    networks have the same task.
    """

    student: DistilledTask
    teacher: DistilledTask
    settings: DistillationSettings

    @property
    def config(self) -> BertConfig:
        """The student's configuration."""
        return self.student.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """The student's heads, plus the projection of its hidden states if there is one."""
        return (*self.student.heads, *([PROJECTION_HEAD] if self._projects else []))

    @property
    def inputs(self) -> Sequence[str]:
        """The student's inputs."""
        return self.student.inputs

    @property
    def terms(self) -> Terms:
        """The student's terms, plus those of the teacher that have a nonzero weight."""
        name = self.student.loss_name
        labels = {term: (*metrics, name) for term, metrics in self.student.terms.items()}
        return {**labels, **{term: (_METRICS[term],) for term in self.factors}}

    def specs(self) -> list[VariableSpec]:
        """The variables of the student, of the projection and of the teacher.

        The teacher has no heads if there are no soft targets, no variables if they are cached.
        """
        width, teacher = self.config.hidden_size, self.teacher.config
        specs = self.student.specs()
        if self._projects:
            specs = [*specs, VariableSpec(_PROJECTION, (width, teacher.hidden_size))]
        if self.settings.teacher_cache:
            return specs
        has_heads = SOFT_TARGETS in self.factors
        frozen = self.teacher.specs() if has_heads else bert_specs(teacher, pooler=False)
        return [*specs, *frozen_specs(frozen, prefix=TEACHER)]

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> DistillationOutputs:
        """The forward passes of both networks; the teacher runs without dropout."""
        # Where the encoders are read: at the positions of the heads, or at all if compared.
        reads_all = COSINE in self.factors or HIDDEN in self.factors
        read = None if reads_all else self.student.positions_read(features)
        encoded = bert_output(variables, self.config, features, options, read=read)
        heads = self.student.head_outputs(encoded.sequence_output, variables, features, options)
        if self.settings.teacher_cache:
            return DistillationOutputs(heads, encoded, None, None)
        options = options.with_dropout(None)
        teacher_heads = None
        with variables.scope(TEACHER) as scoped:
            teacher = bert_output(scoped, self.teacher.config, features, options, read=read)
            if SOFT_TARGETS in self.factors:
                teacher_heads = self.teacher.head_outputs(
                    teacher.sequence_output, scoped, features, options
                )
        if self._projects:
            encoded = _projected(encoded, variables[_PROJECTION])
        return DistillationOutputs(heads, encoded, teacher_heads, teacher)

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """The student's weights, and the numbers of targets, tokens or token pairs."""
        weights = self.student.weights(features)
        decided = weights[next(iter(self.student.terms))]
        tokens = tf.reduce_sum(tf.cast(features["input_mask"], tf.float32), axis=-1)
        numbers = {
            SOFT_TARGETS: tf.reduce_sum(tokens) if self.student.score_all_tokens else decided,
            COSINE: tf.reduce_sum(tokens),
            HIDDEN: tf.reduce_sum(tokens),
            ATTENTION: tf.reduce_sum(tf.square(tokens)),
        }
        return {**weights, **{term: numbers[term] for term in self.factors}}

    def losses(
        self, outputs: DistillationOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, Sums]:
        """The student's losses and the teacher's terms, each times its factor."""
        alpha, name = self.settings.alpha_label, self.student.loss_name
        labels = self.student.losses(outputs.student, features, options)
        losses = {
            term: Sums(alpha * sums.loss, sums.weight, {**sums.metrics, name: sums.loss})
            for term, sums in labels.items()
        }
        totals = self.weights(features)
        for term, factor in self.factors.items():
            values, weights = self._compared(term, outputs, features, options)
            loss = tf.reduce_sum(values if weights is None else values * weights)
            losses[term] = Sums(factor * loss, totals[term], {_METRICS[term]: loss})
        return losses

    def predictions(
        self, outputs: DistillationOutputs, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """The student's predictions."""
        return self.student.predictions(outputs.student, features, options)

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty: the student is evaluated by its own task."""
        del sums
        return {}

    def _compared(
        self,
        term: str,
        outputs: DistillationOutputs,
        features: Features,
        options: ForwardOptions,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The losses of one term and their weights, None if all are equal.

        Losses of hidden states are [B, S] float32, of attention [B], of soft targets [N].
        """
        student, teacher = outputs.student_encoder, outputs.teacher_encoder
        with tf.name_scope(f"distillation/{term}"):
            if term == SOFT_TARGETS or teacher is None:  # targets on disk have no other term
                return self._divergences(outputs, features, options)
            input_mask = rows_of_sequences(features["input_mask"])
            mask = tf.cast(input_mask, tf.float32)
            if term == COSINE:
                target = tf.stop_gradient(teacher.sequence_output)
                unit = tf.nn.l2_normalize(student.sequence_output, -1)
                return 1.0 - tf.reduce_sum(unit * tf.nn.l2_normalize(target, -1), -1), mask
            layers = matching_layers(self.config, self.teacher.config)
            if term == HIDDEN:
                pairs = [
                    (student.embedding_output, teacher.embedding_output),
                    *zip(student.layer_outputs, [teacher.layer_outputs[n] for n in layers]),
                ]
                distances = [
                    tf.reduce_mean(tf.squared_difference(hidden, tf.stop_gradient(target)), axis=-1)
                    for hidden, target in pairs
                ]
                return tf.add_n(distances), mask
            targets = [teacher.attention_scores[layer] for layer in layers]
            return attention_distances(student.attention_scores, targets, input_mask), None

    def _divergences(
        self, outputs: DistillationOutputs, features: Features, options: ForwardOptions
    ) -> tuple[tf.Tensor, tf.Tensor]:
        scores, weights = self.student.decisions(outputs.student, features, options)
        temperature, most = self._temperature, self.most_targets()
        if self.settings.teacher_cache:
            K = features[CLASSES].shape[-1]
            flat = (tf.reshape(features[name], [-1, K]) for name in (CLASSES, PROBABILITIES))
            targets = SoftTargets(*flat)
        elif most is not None:
            targets = self.soft_targets(outputs.teacher, features, options, most=most)
        else:
            teacher, _ = self.teacher.decisions(outputs.teacher, features, options)
            if self.student.num_classes == 1:
                target = teacher.logits(options.policy)
                score = tf.cast(scores.product, tf.float32) + scores.bias
                return tf.reduce_sum(tf.square(score - tf.stop_gradient(target)), -1), weights
            values = divergence_from_all(scores, teacher, temperature=temperature, options=options)
            return values, weights
        values = divergence_from_most_probable(
            scores, targets, temperature=temperature, options=options
        )
        return values, weights

    def soft_targets(
        self, teacher_outputs: Any, features: Features, options: ForwardOptions, *, most: int
    ) -> SoftTargets:
        """The teacher's soft targets with ``most`` classes, from the outputs of its heads."""
        teacher, _ = self.teacher.decisions(teacher_outputs, features, options)
        return most_probable(
            teacher.logits(options.policy),
            temperature=self._temperature,
            most=most,
            least_probability=self.settings.min_target_probability,
        )

    def most_targets(self) -> int | None:
        """Maximum number of classes in soft targets; None for all."""
        settings, bounds = self.settings, [self.student.num_classes]
        if settings.top_k_targets:
            bounds.append(settings.top_k_targets)
        if settings.min_target_probability:
            # At most 1/p classes can have a probability of p or more.
            bounds.append(int(1 / settings.min_target_probability))
        return None if len(bounds) == 1 else min(filter(None, bounds))

    @functools.cached_property
    def factors(self) -> dict[str, float]:
        """The factors of the terms that compare the student with its teacher; none is 0."""
        settings = self.settings
        # Gradients of soft targets shrink with the square of the temperature (Hinton et al. 2015,
        # section 2.1).
        factors = {
            SOFT_TARGETS: settings.alpha_ce * self._temperature**2,
            COSINE: settings.alpha_cos,
            HIDDEN: settings.alpha_hidden,
            ATTENTION: settings.alpha_attention,
        }
        return {term: factor for term, factor in factors.items() if factor}

    @property
    def _temperature(self) -> float:
        is_regression = self.student.num_classes == 1
        return 1.0 if is_regression else self.settings.temperature

    @property
    def _projects(self) -> bool:
        """Whether hidden states are compared and have different widths."""
        is_wider = self.teacher.config.hidden_size != self.config.hidden_size
        return is_wider and (COSINE in self.factors or HIDDEN in self.factors)


def matching_layers(student: BertConfig, teacher: BertConfig) -> list[int]:
    """For each of the student's layers, the teacher's layer to compare it with, evenly spaced.

    The last layers match (Jiao et al. 2020, section 3.1: the uniform strategy).
    """
    layers, of_teacher = student.num_hidden_layers, teacher.num_hidden_layers
    return [math.ceil((layer + 1) * of_teacher / layers) - 1 for layer in range(layers)]


def _projected(encoded: BertOutput, kernel: tf.Tensor) -> BertOutput:
    """Projects the hidden states to the teacher's width, with one kernel for all layers."""

    def project(hidden: tf.Tensor) -> tf.Tensor:
        return tf.tensordot(hidden, kernel, 1)

    layers = [project(hidden) for hidden in encoded.layer_outputs]
    return encoded._replace(
        sequence_output=layers[-1],
        layer_outputs=layers,
        embedding_output=project(encoded.embedding_output),
    )


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
