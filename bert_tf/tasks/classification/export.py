"""What an exported classifier takes and returns."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, TextSignature, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, kept_tokens, with_special_tokens
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.classification.long_texts import CUT_OFF, HEAD_TAIL, TAIL, LongTexts
from bert_tf.tasks.classification.task import ClassificationTask


def exportable_classifier(
    model: CompleteModel,
    classes: Classes,
    *,
    max_seq_length: int | None = None,
    long_texts: LongTexts = CUT_OFF,
) -> Exportable:
    """A classification model with its signatures, of which ``text`` and ``text_pair`` take texts.

    Args:
      model: the model.
      classes: what its outputs mean.
      max_seq_length: the most tokens that are read of texts; None for the network's positions.
      long_texts: what is read of longer texts; of windows, the first one.
    """
    length = checked_length(model, max_seq_length)
    names = list(classes.labels)

    def outputs(network: Network, features: Features) -> dict[str, tf.Tensor]:
        """``logits`` and ``probabilities`` [B, C], and what is predicted, [B] or [B, C]."""
        logits = network.predictions(features)["logits"]
        if classes.kind == REGRESSION:
            return {"rating": logits[:, 0]}
        if classes.kind == MULTI_LABEL:
            probabilities = tf.sigmoid(logits)
            chosen = {"predicted": probabilities >= classes.thresholds}
        else:
            probabilities = tf.nn.softmax(logits)
            chosen = {"label_id": tf.argmax(logits, axis=-1, output_type=tf.int32)}
        return {"logits": logits, "probabilities": probabilities, **chosen}

    def strings(numbers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """``classes`` [B, C], the names of all; ``label`` [B], the name of the predicted one."""
        if classes.kind == REGRESSION:
            return {}
        rows = tf.shape(numbers["logits"])[0]
        found = {"classes": tf.tile(tf.constant([names]), [rows, 1])}
        if "label_id" in numbers:
            found["label"] = tf.gather(tf.constant(names), numbers["label_id"])
        return found

    def of_texts(
        network: Network, tokenizer: GraphTokenizer, texts: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        features, left_out = text_features(list(texts.values()), tokenizer, length, long_texts)
        return {**outputs(network, features), "tokens_left_out": left_out}

    return Exportable(
        ClassificationTask(model.config, len(names) or 1),
        outputs,
        strings=strings,
        texts={
            "text": TextSignature(("text",), of_texts),
            "text_pair": TextSignature(("text", "other_text"), of_texts),
        },
        classes=classes,
    )


def text_features(
    texts: list[tf.Tensor], tokenizer: GraphTokenizer, max_seq_length: int, long_texts: LongTexts
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The network's inputs for texts or pairs, as ``features.sequences_of`` makes them.

    Args:
      texts: [B] UTF-8 strings, one tensor or two.
      tokenizer: encodes them.
      max_seq_length: the most tokens of a sequence.
      long_texts: what is read of longer texts; of windows, the first one.

    Returns:
      ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, and the number of tokens that are
      not read, [B] int32.
    """
    parts = [tokenizer.encode(text) for text in texts]
    counts = [part.row_lengths() for part in parts]
    kept = kept_counts(counts, max_seq_length - 1 - len(parts))
    features = with_special_tokens(
        [_cut(part, count, long_texts) for part, count in zip(parts, kept)], tokenizer.ids
    )
    return features, tf.cast(tf.add_n(counts) - tf.add_n(kept), tf.int32)


def kept_counts(counts: list[tf.Tensor], room: int) -> list[tf.Tensor]:
    """Like ``text.truncation.kept_counts`` for [B] int64 tensors."""
    if len(counts) == 1:
        return [tf.minimum(counts[0], room)]
    first, second = counts
    # The shorter text is kept whole if it takes no more than its half of the room.
    half, rest = (room + 1) // 2, room // 2
    return [
        tf.minimum(first, tf.maximum(room - second, half)),
        tf.minimum(second, tf.maximum(room - first, rest)),
    ]


def _cut(part: tf.RaggedTensor, kept: tf.Tensor, long_texts: LongTexts) -> tf.RaggedTensor:
    first = {TAIL: tf.zeros_like(kept), HEAD_TAIL: kept // 4}.get(long_texts.long_texts, kept)
    return kept_tokens(part, first, kept - first)
