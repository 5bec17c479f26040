"""The sums of the pre-training heads, for tests of the layers below them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.sums import Sums
from bert_tf.tasks.pretraining.task import PretrainingTask
from tests.helpers.forward_passes import pretraining_outputs


class HeadSums(NamedTuple):
    """None for a missing head."""

    masked_lm: Sums | None
    next_sentence: Sums | None

    def total_loss(self) -> tf.Tensor:
        """Of both heads, not divided by any weight."""
        return self.masked_lm.loss + self.next_sentence.loss


def sums_of(outputs, config, features, options, **heads) -> HeadSums:
    """The sums of the heads from their outputs."""
    losses = PretrainingTask(config, **heads).losses(outputs, features, options)
    return HeadSums(losses.get("masked_lm"), losses.get("next_sentence"))


def sums_of_heads(variables, config, features, options, **heads) -> HeadSums:
    """The whole forward pass; ``heads`` as in ``pretraining_outputs``."""
    outputs = pretraining_outputs(variables, config, features, options, **heads)
    return sums_of(outputs, config, features, options, **heads)
