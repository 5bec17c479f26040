"""What an exported network takes and returns whose outputs are vectors of texts."""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.sentence_modules import TEXTS_NAME
from bert_tf.inference.export import Exportable, Tensors, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, first_sequence
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.chosen import choose_vectors
from bert_tf.tasks.vectors.settings import TOKENS, VECTORS, VectorSettings
from bert_tf.util.console import say
from bert_tf.util.errors import UserError


class ExportableVectors(Exportable):
    """A network that gives vectors of texts."""

    def __init__(
        self, model: CompleteModel, settings: VectorSettings, *, max_seq_length: int | None = None
    ) -> None:
        """Gives vectors of texts.

        Args:
          model: the model.
          settings: which vectors.
          max_seq_length: the most tokens that are read of a text; None for the network's positions.

        Raises:
          UserError: tokens are not pooled, or the network lacks a layer.
        """
        checked_length(model, max_seq_length)
        if settings.pooling == TOKENS:
            raise UserError(
                f"--pooling={TOKENS} gives texts of different lengths different numbers of "
                "vectors; give another --pooling, such as mean."
            )
        self._chosen = choose_vectors(model, settings, max_seq_length=max_seq_length)
        for note in self._chosen.notes:
            say(note, stream=sys.stderr)
        self.task = self._chosen.task(model)

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``vectors`` [B, W], or [B, layers, W] for several layers."""
        vectors = network.predictions(features)[VECTORS]
        return {VECTORS: vectors[:, 0] if len(self._chosen.layers) == 1 else vectors}

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for texts after the prompt; UserError if the graph cannot lower-case them."""
        if self._chosen.lower_case:
            raise UserError(
                f"--text_signature: {TEXTS_NAME} lower-cases texts for a cased vocabulary, which "
                "the graph does not; leave the flag out and send token ids."
            )
        tokens = tokenizer.encode(tf.strings.join([self._chosen.prompt, texts["text"]]))
        features, left_out = first_sequence([tokens], tokenizer.ids, self._chosen.max_seq_length)
        return {**self.outputs(network, features), "tokens_left_out": left_out}
