"""What a network is trained for and asked for: the seam between tasks and all that runs them.

A task is a value. It keeps no tensor and no variable: these are created once for each graph, and
passed in. So one task serves training, evaluation in the middle of it, and prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.config.bert_config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.heads import Head
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums, Terms
from bert_tf.model.variables import Variables, VariableSpec, create_variables

Features = Mapping[str, tf.Tensor]


class Task(Protocol):
    """Variables, outputs, losses and predictions of a network.

    What is minimised is the sum over the terms of ``loss / weight``, both summed over the global
    batch.

    Attributes:
      config: of the network that is trained; a checkpoint to start from is compared with it.
      heads: what such a checkpoint may lack as a whole.
      inputs: the features that ``outputs`` reads, each [B, ...] integers.
      terms: of the loss, each with its metrics.
    """

    config: BertConfig
    heads: Sequence[Head]
    inputs: Sequence[str]
    terms: Terms

    def specs(self) -> list[VariableSpec]:
        """Every variable, trained or not."""

    def outputs(self, variables: Variables, features: Features, options: ForwardOptions) -> Any:
        """The forward pass of one micro batch, without labels."""

    def weights(self, features: Features) -> dict[str, tf.Tensor]:
        """Each term's weight, a float32 scalar: from labels alone, before the forward pass."""

    def losses(self, outputs: Any, features: Features, options: ForwardOptions) -> dict[str, Sums]:
        """The sums of each term, from what ``outputs`` returned and the labels in ``features``."""

    def predictions(
        self, outputs: Any, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """What is said of a batch without labels, [B, ...] each."""

    def scores(self, sums: Mapping[str, Sums]) -> dict[str, float]:
        """What follows from the sums of a whole evaluation, beyond the means of each term."""


def num_sequences(features: Features) -> tf.Tensor:
    """The sequences of a batch, a float32 scalar: the weight of a term with one decision each."""
    return tf.cast(tf.shape(features["input_ids"])[0], tf.float32)


@dataclasses.dataclass(frozen=True)
class Network:
    """A task's variables in a graph, and how they are computed there."""

    task: Task
    variables: Variables
    options: ForwardOptions

    def losses(self, features: Features, *, dropout: Dropout | None = None) -> dict[str, Sums]:
        """The sums of each term over a batch with labels."""
        options = self.options.with_dropout(dropout)
        outputs = self.task.outputs(self.variables, features, options)
        return self.task.losses(outputs, features, options)

    def predictions(self, features: Features) -> dict[str, tf.Tensor]:
        """What the task says of a batch without labels."""
        outputs = self.task.outputs(self.variables, features, self.options)
        return self.task.predictions(outputs, features, self.options)


def create_network(task: Task, options: ForwardOptions, *, seed: int = 0) -> Network:
    """Creates the variables of a task in the current graph; ``seed`` decides random ones."""
    variables = create_variables(
        task.specs(), initializer_range=task.config.initializer_range, seed=seed
    )
    return Network(task, variables, options)
