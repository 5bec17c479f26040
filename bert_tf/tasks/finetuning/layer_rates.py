"""Which layers a fine-tuning trains, from when on, and how fast.

The layers of a network are, from below, its embeddings and the layers of its encoder; the pooler
and the head are above them and are always trained, at the full rate unless the task has its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_tf.config.declared import Settings, setting
from bert_tf.config.settings import OptimizationSettings
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

_EMBEDDINGS, _ENCODER = "embeddings", "encoder"


@dataclasses.dataclass(frozen=True)
class LayerSettings(Settings):
    """Frozen layers and the learning rates of the others."""

    freeze: str = setting(
        "",
        "Keep the lower part of the network as it is: embeddings; a number of layers and the "
        "embeddings; or encoder, all but pooler and head.",
    )
    layerwise_lr_decay: float = setting(
        1.0,
        "Multiply the learning rate by this for each layer from the top layer, which has the full "
        "rate, down to the embeddings (Sun et al. 2019, section 5.3.4: 0.95).",
        bounds=Interval(0, 1, open_low=True),
    )
    gradual_unfreezing: float = setting(
        0.0,
        "Train only the head at first, and one more layer from the top at a time, until all are "
        "trained after this fraction of the steps (Howard and Ruder 2018, section 3.3).",
        bounds=Interval(0, 1, open_high=True),
    )

    def contradictions(self) -> Iterator[str]:
        """What cannot be frozen, and layers that are frozen and yet have rates."""
        if self.freeze not in ("", _EMBEDDINGS, _ENCODER) and not self._num_layers:
            yield (
                f"--freeze={self.freeze} must be {_EMBEDDINGS}, {_ENCODER} or a number of layers, "
                "at least 1."
            )
        for name in ("layerwise_lr_decay", "gradual_unfreezing"):
            if self.freeze == _ENCODER and getattr(self, name) != getattr(LayerSettings, name):
                yield f"--freeze={_ENCODER} leaves no layer for {self.given(name)}; drop one."

    @property
    def _num_layers(self) -> int:
        """The number that ``freeze`` is; 0 if it is none."""
        return int(self.freeze) if self.freeze.isascii() and self.freeze.isdigit() else 0

    def applied_to(
        self, optimization: OptimizationSettings, num_layers: int
    ) -> OptimizationSettings:
        """The optimization settings for an encoder with ``num_layers`` layers.

        Raises UserError if ``freeze`` names more layers.
        """
        layers = ["^bert/embeddings", *(f"^bert/encoder/layer_{n}/" for n in range(num_layers))]
        if self._num_layers > num_layers:
            raise UserError(
                f"--freeze={self.freeze}: the network has {num_layers} layers; give at most that "
                f"many, or {_ENCODER}."
            )
        frozen = {"": 0, _EMBEDDINGS: 1, _ENCODER: len(layers)}.get(
            self.freeze, 1 + self._num_layers
        )
        factors = [(layer, 0.0) for layer in layers[:frozen]]
        if self.layerwise_lr_decay != 1:
            factors += [
                (layer, self.layerwise_lr_decay ** (num_layers - number))
                for number, layer in enumerate(layers[frozen:], frozen)
            ]
        opens = []
        if self.gradual_unfreezing:
            trained = layers[frozen:]
            opens = [
                (layer, self.gradual_unfreezing * (len(trained) - number) / len(trained))
                for number, layer in enumerate(trained)
            ]
        return dataclasses.replace(
            optimization, rate_factors=tuple(factors), trained_from=tuple(opens)
        )
