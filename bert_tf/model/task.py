"""The interface between tasks and the code that trains, evaluates and predicts.

A task is stateless. It keeps no tensors or variables: these are created once per graph and passed
in, so the same task serves training, evaluation during training, and prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, ClassVar, Protocol, TypeVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.heads import Head
from bert_tf.model.losses import Sums, Terms
from bert_tf.model.options import ForwardOptions
from bert_tf.model.variables import Variables, VariableSpec, create_variables

Features = Mapping[str, tf.Tensor]
Result = TypeVar("Result")


class Task(Protocol):
    """Variables, outputs, losses and predictions of a network.

    Training minimises the sum of ``loss / weight`` over the terms, with both summed over the global
    batch.
    """

    @property
    def config(self) -> BertConfig:
        """The trained network's configuration, for comparison with an initial checkpoint's."""

    @property
    def heads(self) -> Sequence[Head]:
        """Heads that may be missing from an initial checkpoint."""

    @property
    def inputs(self) -> Sequence[str]:
        """The features that ``outputs`` reads, each [B, ...] integers."""

    @property
    def terms(self) -> Terms:
        """The terms of the loss, each with its metrics."""

    def specs(self) -> list[VariableSpec]:
        """Every variable, trained or not."""

    def outputs(self, variables: Variables, features: Features, options: ForwardOptions) -> Any:
        """The forward pass of one micro batch, without labels."""

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """Each term's weight, a float32 scalar, from labels alone, before the forward pass."""

    def losses(self, outputs: Any, features: Features, options: ForwardOptions) -> dict[str, Sums]:
        """The sums of each term, from the result of ``outputs`` and the labels in ``features``."""

    def predictions(
        self, outputs: Any, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """Predictions for a batch without labels, [B, ...] each."""

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Scores computed from the sums of a whole evaluation, in addition to each term's means."""


def num_sequences(features: Features) -> tf.Tensor:
    """The number of sequences, float32: the weight of a term with one label per sequence."""
    return tf.cast(tf.shape(features["input_ids"])[0], tf.float32)


def _of_sequences(dropout: Dropout, features: Features) -> Dropout:
    """The dropout in whose place examples count as many times as each has sequences."""
    sequences = features.get("input_ids")
    if sequences is None or sequences.shape.rank == 2:
        return dropout
    data_position, first_example = dropout.place
    return dropout.at(data_position, first_example * sequences.shape[1])


@dataclasses.dataclass(frozen=True)
class Network:
    """A task with its variables and options in a graph."""

    task: Task
    variables: Variables
    options: ForwardOptions

    def losses(self, features: Features, *, dropout: Dropout | None = None) -> dict[str, Sums]:
        """The sums of each term over a labelled batch."""
        options = self.options.with_dropout(dropout and _of_sequences(dropout, features))
        outputs = self.task.outputs(self.variables, features, options)
        return self.task.losses(outputs, features, options)

    def predictions(self, features: Features) -> dict[str, tf.Tensor]:
        """The task's predictions for an unlabelled batch."""
        outputs = self.task.outputs(self.variables, features, self.options)
        return self.task.predictions(outputs, features, self.options)

    def reading(self) -> Network:
        """The network with its variables' current values, for a function that XLA compiles."""
        return dataclasses.replace(self, variables=self.variables.read())

    def forward(self, function: Callable[[Network], Result]) -> Result:
        """``function`` of this network, as one compiled function if the options ask for that."""
        if not self.options.compiled:
            return function(self)
        from bert_tf.model.compilation import compiled

        return compiled(lambda: function(self.reading()))()


def create_network(task: Task, options: ForwardOptions, *, seed: int = 0) -> Network:
    """Creates a task's variables in the current graph; ``seed`` seeds random initial values."""
    variables = create_variables(
        task.specs(), initializer_range=task.config.initializer_range, seed=seed
    )
    return Network(task, variables, options)


class EncoderTask:
    """The forward pass of a task that implements ``head_outputs``.

    See :class:`bert_tf.tasks.distillation.task.DistilledTask`.
    """

    config: BertConfig
    score_all_tokens: bool = False

    def outputs(self, variables: Variables, features: Features, options: ForwardOptions) -> Any:
        """The outputs of the heads."""
        read = self.positions_read(features)
        encoded = bert_output(variables, self.config, features, options, read=read)
        hidden = encoded.sequence_output
        return self.head_outputs(hidden, variables, features, options)

    def positions_read(self, features: Features) -> tf.Tensor | None:
        """Where the heads read the encoder's output, [B, S] integers; None means everywhere."""
        del features
        return None

    def head_outputs(
        self,
        sequence_output: tf.Tensor,
        variables: Variables,
        features: Features,
        options: ForwardOptions,
    ) -> Any:
        """Like :meth:`outputs`, from the encoder's output, [B, S, D] float32."""
        raise NotImplementedError

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty: what is scored needs all predictions."""
        del sums
        return {}


class PredictingTask:
    """A task that is not trained: it has no terms (see :class:`Task`)."""

    terms: ClassVar[Terms] = {}

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """Empty."""
        del features
        return {}

    def losses(self, outputs: Any, features: Features, options: ForwardOptions) -> dict[str, Sums]:
        """Empty."""
        del outputs, features, options
        return {}

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """Empty."""
        del sums
        return {}
