"""Vectors of texts from a model that is kept in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_tf.inference.sequences import SequencePredictor, Text, listed, parts_of
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.chosen import ChosenVectors, choose_vectors
from bert_tf.tasks.vectors.settings import TOKENS, VECTORS, VectorSettings
from bert_tf.tasks.vectors.texts import TokenSequence
from bert_tf.util.console import say
from bert_tf.util.errors import UserError


class TextEncoder(SequencePredictor):
    """A network with its weights; ``maker`` makes sequences of texts, of which it makes vectors."""

    def __init__(
        self,
        model: CompleteModel,
        settings: VectorSettings | ChosenVectors | None = None,
        *,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          settings: which vectors; what they leave open is as the model's directory says, or else
            the mean of the last layer's. With a choice that has been made, ``max_seq_length`` is
            not read.
          max_seq_length: tokens to which longer texts are cut; None for what the directory says, or
            else the network's positions.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: the weights do not belong to the model, it has fewer positions, or it lacks a
            layer.
        """
        if isinstance(settings, ChosenVectors):
            chosen = settings
        else:
            wanted = settings or VectorSettings()
            chosen = choose_vectors(model, wanted, max_seq_length=max_seq_length)
            for note in chosen.notes:
                say(note, stream=sys.stderr)
        self.maker = chosen.maker(model)
        self._chosen = chosen
        self._no_vectors = 0, len(chosen.layers), chosen.width(model.config)
        super().__init__(chosen.task(model), model.checkpoint, chosen.max_seq_length, **options)

    def encode(self, texts: Sequence[Text]) -> np.ndarray:
        """The pooled vectors of texts or pairs, in their order.

        Returns: float32 [texts, D], or [texts, layers, D] for several layers. Raises UserError if
        tokens are not pooled (``tokens`` has their vectors).
        """
        if not self._chosen.is_pooled:
            raise UserError(
                f"pooling={TOKENS!r} gives every token vectors: use TextEncoder.tokens, or choose "
                "another pooling."
            )
        vectors = self.vectors(self._sequences(texts))
        found = np.stack(vectors) if vectors else np.zeros(self._no_vectors, np.float32)
        return found[:, 0] if len(self._chosen.layers) == 1 else found

    def predict(self, texts: Sequence[Text]) -> Sequence[np.ndarray]:
        """The vectors of each text, as :meth:`encode` or, unpooled, :meth:`tokens` gives them."""
        return list(self.encode(texts)) if self._chosen.is_pooled else self.tokens(texts)

    def tokens(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """The vectors of every token, [CLS] and [SEP] included: float32 [tokens, layers, D] each.

        Raises UserError if tokens are pooled.
        """
        if self._chosen.is_pooled:
            raise UserError(
                f"pooling={','.join(self._chosen.pooling)!r} gives every text one vector: use "
                f"TextEncoder.encode, or choose pooling={TOKENS!r}."
            )
        return self.vectors(self._sequences(texts))

    def _sequences(self, texts: Sequence[Text]) -> list[TokenSequence]:
        return [self.maker.sequence(parts_of(text)) for text in listed(texts)]

    def vectors(self, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
        """The vectors of sequences, in their order: [layers, D], or [tokens, layers, D], each.

        Sequences of similar length share batches.
        """
        lengths = np.array([len(sequence.ids) for sequence in sequences], np.int64)
        width = self.padded(int(lengths.max(initial=0)))
        features = self.maker.batch(sequences, width)
        found: list[np.ndarray] = [np.empty(0)] * len(sequences)
        for numbers, predictions in self.batches(features):
            values = predictions[VECTORS]
            ends = np.cumsum(lengths[numbers])[:-1]
            parts: Iterable[np.ndarray] = (
                values if self._chosen.is_pooled else np.split(values, ends)
            )
            for number, part in zip(numbers, parts):
                found[number] = part
        return found
