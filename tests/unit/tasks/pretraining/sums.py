"""The sums of the pre-training heads, for tests of the layers below them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.model.sums import Sums
from bert_tf.tasks.pretraining.graph import masked_lm_sums, next_sentence_sums
from tests.helpers.forward_passes import pretraining_outputs


class HeadSums(NamedTuple):
    """None for a missing head."""

    masked_lm: Sums | None
    next_sentence: Sums | None

    def total_loss(self) -> tf.Tensor:
        """Of both heads, not divided by any weight."""
        return self.masked_lm.loss + self.next_sentence.loss


def sums_of_heads(variables, config, features, options, **heads) -> HeadSums:
    """The whole forward pass; ``heads`` as in ``pretraining_outputs``."""
    outputs = pretraining_outputs(variables, config, features, options, **heads)
    return HeadSums(
        None if outputs.masked_lm is None else masked_lm_sums(outputs, features, options),
        None if outputs.next_sentence is None else next_sentence_sums(outputs, features, options),
    )
