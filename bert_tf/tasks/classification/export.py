"""What an exported classifier takes and returns."""

from __future__ import annotations

from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, Tensors, checked_length
from bert_tf.inference.graph_tokenizer import (
    GraphTokenizer,
    kept_counts,
    kept_tokens,
    with_special_tokens,
)
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.classification.texts import CUT_OFF, HEAD_TAIL, TAIL, LongTexts


class ExportableClassifier(Exportable):
    """A classification model, of whose signatures ``text`` and ``text_pair`` take texts."""

    classes: Classes
    texts: ClassVar = {"text": ("text",), "text_pair": ("text", "other_text")}

    def __init__(
        self,
        model: CompleteModel,
        classes: Classes,
        *,
        max_seq_length: int | None = None,
        long_texts: LongTexts = CUT_OFF,
    ) -> None:
        """Reads at most ``max_seq_length`` tokens of texts, None being the network's positions.

        Args:
          model: the model.
          classes: what its outputs mean.
          max_seq_length: the most tokens.
          long_texts: what is read of longer texts; of windows, the first one.
        """
        self.task = ClassificationTask(model.config, len(classes.labels) or 1)
        self.classes = classes
        self._max_seq_length = checked_length(model, max_seq_length)
        self._long_texts = long_texts

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``logits`` and ``probabilities`` [B, C], and what is predicted, [B] or [B, C]."""
        logits = network.predictions(features)["logits"]
        if self.classes.kind == REGRESSION:
            return {"rating": logits[:, 0]}
        if self.classes.kind == MULTI_LABEL:
            probabilities = tf.sigmoid(logits)
            chosen = {"predicted": probabilities >= self.classes.thresholds}
        else:
            probabilities = tf.nn.softmax(logits)
            chosen = {"label_id": tf.argmax(logits, axis=-1, output_type=tf.int32)}
        return {"logits": logits, "probabilities": probabilities, **chosen}

    def strings(self, numbers: Tensors) -> Tensors:
        """``classes`` [B, C], the names of all; ``label`` [B], the name of the predicted one."""
        if self.classes.kind == REGRESSION:
            return {}
        names = list(self.classes.labels)
        rows = tf.shape(numbers["logits"])[0]
        named = {"classes": tf.tile(tf.constant([names]), [rows, 1])}
        if "label_id" in numbers:
            named["label"] = tf.gather(tf.constant(names), numbers["label_id"])
        return named

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for the parts of texts or pairs that ``features.sequences_of`` reads."""
        parts = [tokenizer.encode(text) for text in texts.values()]
        counts = [part.row_lengths() for part in parts]
        kept = kept_counts(counts, self._max_seq_length - 1 - len(parts))
        features = with_special_tokens(
            [_cut(part, count, self._long_texts) for part, count in zip(parts, kept)],
            tokenizer.ids,
        )
        left_out = tf.cast(tf.add_n(counts) - tf.add_n(kept), tf.int32)
        return {**self.outputs(network, features), "tokens_left_out": left_out}


def _cut(part: tf.RaggedTensor, kept: tf.Tensor, long_texts: LongTexts) -> tf.RaggedTensor:
    first = {TAIL: tf.zeros_like(kept), HEAD_TAIL: kept // 4}.get(long_texts.long_texts, kept)
    return kept_tokens(part, first, kept - first)
