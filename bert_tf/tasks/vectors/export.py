"""What an exported network takes and returns whose outputs are vectors of texts."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, TextSignature, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, first_sequence
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.settings import TOKENS, VECTORS, VectorSettings
from bert_tf.tasks.vectors.task import VectorTask
from bert_tf.util.errors import UserError


def exportable_vectors(
    model: CompleteModel, settings: VectorSettings, *, max_seq_length: int | None = None
) -> Exportable:
    """A network that gives vectors of texts, with its signatures, of which ``text`` takes texts.

    Args:
      model: the model.
      settings: which vectors.
      max_seq_length: the most tokens that are read of a text; None for the network's positions.

    Raises:
      UserError: tokens are not pooled, or the network lacks a layer.
    """
    length = checked_length(model, max_seq_length)
    if settings.pooling == TOKENS:
        raise UserError(
            f"--pooling={TOKENS} gives texts of different lengths different numbers of vectors; "
            "give --pooling=mean, cls or max."
        )
    layers = settings.layers_of(model.config)

    def outputs(network: Network, features: Features) -> dict[str, tf.Tensor]:
        """``vectors`` [B, D], or [B, layers, D] for several layers."""
        vectors = network.predictions(features)[VECTORS]
        return {VECTORS: vectors[:, 0] if len(layers) == 1 else vectors}

    def of_texts(
        network: Network, tokenizer: GraphTokenizer, texts: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        tokens = tokenizer.encode(texts["text"])
        features, left_out = first_sequence(tokens, tokenizer.ids, length)
        return {**outputs(network, features), "tokens_left_out": left_out}

    return Exportable(
        VectorTask(model.config, layers, settings.pooling, settings.normalize),
        outputs,
        texts={"text": TextSignature(("text",), of_texts)},
    )
