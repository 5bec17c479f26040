"""What an exported network takes and returns whose outputs are vectors of texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.sentence_modules import TEXTS_NAME
from bert_tf.inference.export import Exportable, TextSignature, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, first_sequence
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors.chosen import choose_vectors
from bert_tf.tasks.vectors.settings import TOKENS, VECTORS, VectorSettings
from bert_tf.util.console import say
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
    checked_length(model, max_seq_length)
    if settings.pooling == TOKENS:
        raise UserError(
            f"--pooling={TOKENS} gives texts of different lengths different numbers of vectors; "
            "give another --pooling, such as mean."
        )
    chosen = choose_vectors(model, settings, max_seq_length=max_seq_length)
    for note in chosen.notes:
        say(note, stream=sys.stderr)

    def outputs(network: Network, features: Features) -> dict[str, tf.Tensor]:
        """``vectors`` [B, W], or [B, layers, W] for several layers."""
        vectors = network.predictions(features)[VECTORS]
        return {VECTORS: vectors[:, 0] if len(chosen.layers) == 1 else vectors}

    def of_texts(
        network: Network, tokenizer: GraphTokenizer, texts: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        if chosen.lower_case:
            raise UserError(
                f"--text_signature: {TEXTS_NAME} lower-cases texts for a cased vocabulary, which "
                "the graph does not; leave the flag out and send token ids."
            )
        tokens = tokenizer.encode(tf.strings.join([chosen.prompt, texts["text"]]))
        features, left_out = first_sequence(tokens, tokenizer.ids, chosen.max_seq_length)
        return {**outputs(network, features), "tokens_left_out": left_out}

    return Exportable(
        chosen.task(model),
        outputs,
        texts={"text": TextSignature(("text",), of_texts)},
    )
