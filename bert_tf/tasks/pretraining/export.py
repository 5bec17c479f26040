"""What an exported masked language model takes and returns."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, Tensors, checked_length, names_of
from bert_tf.inference.graph_tokenizer import GraphTokenizer, first_sequence
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.pretraining.mask_filler import MASK
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.text.tokenizer import Tokenizer


class ExportableMaskFiller(Exportable):
    """A masked language model, of whose signatures ``text`` takes texts with [MASK]."""

    def __init__(
        self, model: CompleteModel, *, top: int = 5, max_seq_length: int | None = None
    ) -> None:
        """Returns words for masks.

        Args:
          model: the model.
          top: number of best words K per [MASK].
          max_seq_length: the most tokens that are read of a text; None for the network's positions.
        """
        self.task = PretrainingTask(model.config, next_sentence=False)
        self._max_seq_length = checked_length(model, max_seq_length)
        self._tokenizer = model.tokenizer
        self._entries = model.tokenizer.convert_ids_to_tokens(range(model.tokenizer.vocab_size))
        self._top = min(top, len(self._entries))

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``positions`` [B, P] of the masks, ``word_ids`` and ``probabilities`` [B, P, K].

        P is the largest number of masks of a sequence, at least 1; others have -1 and probability
        0 there.
        """
        positions = mask_positions(features["input_ids"], self._tokenizer)
        is_mask = positions >= 0
        at_masks = {**features, "masked_lm_positions": tf.maximum(positions, 0)}
        probabilities = network.predictions(at_masks)["masked_lm_probabilities"]
        # A model can have more outputs than the vocabulary has entries.
        best = tf.math.top_k(probabilities[:, :, : len(self._entries)], k=self._top)
        of_mask = is_mask[:, :, tf.newaxis]
        return {
            "positions": positions,
            "word_ids": tf.where_v2(of_mask, best.indices, -1),
            "probabilities": tf.where_v2(of_mask, best.values, 0.0),
        }

    def strings(self, numbers: Tensors) -> Tensors:
        """``words`` [B, P, K], the vocabulary entries of ``word_ids``."""
        return {"words": names_of(numbers["word_ids"], self._entries)}

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for texts whose [MASK] are the token."""
        tokens = encode_with_masks(texts["text"], tokenizer)
        features, left_out = first_sequence([tokens], self._tokenizer, self._max_seq_length)
        return {**self.outputs(network, features), "tokens_left_out": left_out}


def mask_positions(ids: tf.Tensor, tokenizer: Tokenizer) -> tf.Tensor:
    """The positions of [MASK] in [B, S] ids, ascending: [B, P] int32, filled up with -1.

    P is at least 1, since a dimension of 0 means another one in ONNX's reshapes.
    """
    S = tf.shape(ids)[1]
    is_mask = tf.cast(tf.equal(ids, tokenizer.mask_id), tf.int32)
    most = tf.maximum(tf.reduce_max(tf.reduce_sum(is_mask, axis=1)), 1)
    # The earlier a mask is, the higher it ranks.
    ranks = tf.math.top_k(is_mask * (S - tf.range(S)), k=most).values
    return tf.where_v2(ranks > 0, S - ranks, -1)


def encode_with_masks(texts: tf.Tensor, tokenizer: GraphTokenizer) -> tf.RaggedTensor:
    """Like ``mask_filler.encode_with_masks`` for [B] strings, without [CLS] and [SEP]."""
    parts = tf.strings.split(texts, MASK, result_type="RaggedTensor")
    tokens = tokenizer.encode(parts.flat_values)
    masks = tf.fill([tokens.nrows(), 1], tokenizer.ids.mask_id)
    # Every part follows a mask, but for the first one.
    joined = parts.with_flat_values(tf.concat([masks, tokens], axis=1))
    return joined.merge_dims(1, -1)[:, 1:]
