"""What tasks with heads on BERT's encoder share, and those that only predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.sums import Sums, Terms
from bert_tf.model.task import Features
from bert_tf.model.variables import Variables


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
    """A task that is not trained: it has no terms (see :class:`bert_tf.model.task.Task`)."""

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
