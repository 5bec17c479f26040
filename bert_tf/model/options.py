"""How a forward pass is computed: what may change speed, memory and rounding, and dropout."""

from __future__ import annotations

import dataclasses

from bert_tf.model.dropout import Dropout
from bert_tf.model.precision import PrecisionPolicy


@dataclasses.dataclass(frozen=True)
class ForwardOptions:
    """Handed through all layers of a network.

    Attributes:
      policy: precision of each class of operation.
      dropout: source of masks; None outside training.
      recompute: keep only the layers' inputs for the backward pass, which computes each layer again
        and has the same bits. Without effect outside training.
      skip_padding: leave out what padding costs outside of the attention, where native operations
        run; the encoder's outputs at padding mean nothing then. Those of tokens are the same, but
        for rounding.
    """

    policy: PrecisionPolicy = dataclasses.field(default_factory=PrecisionPolicy)
    dropout: Dropout | None = None
    recompute: bool = False
    skip_padding: bool = False

    def with_dropout(self, dropout: Dropout | None) -> ForwardOptions:
        """The same with another source of masks."""
        return dataclasses.replace(self, dropout=dropout)
