"""What an exported tagger takes and returns."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, Tensors, checked_length, names_of
from bert_tf.inference.graph_tokenizer import GraphTokenizer, with_special_tokens
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.records.layouts import WORD_STARTS
from bert_tf.tasks.tagging.files import WindowSettings
from bert_tf.tasks.tagging.task import TaggingTask


class ExportableTagger(Exportable):
    """A tagging model, of whose signatures ``text`` takes words separated by blanks."""

    classes: Classes

    def __init__(
        self, model: CompleteModel, classes: Classes, *, max_seq_length: int | None = None
    ) -> None:
        """Returns labels.

        Args:
          model: the model.
          classes: the labels of words.
          max_seq_length: the most tokens that are read of a text; None for the network's positions.
        """
        self._max_seq_length = checked_length(model, max_seq_length)
        WindowSettings(self._max_seq_length).validate()
        self.task = TaggingTask(model.config, len(classes.labels))
        self.classes = classes

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``label_ids`` [B, S], -1 at padding, their ``probabilities`` [B, S], ``logits``."""
        mask = features["input_mask"]
        everywhere = {**features, WORD_STARTS: mask}
        logits = self.task.outputs(network.variables, everywhere, network.options)
        logits = tf.reshape(logits, [*tf.unstack(tf.shape(mask)), len(self.classes.labels)])
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        is_token = mask > 0
        probabilities = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        return {
            "label_ids": tf.where_v2(is_token, best, -1),
            "probabilities": tf.where_v2(is_token, probabilities, 0.0),
            "logits": logits,
        }

    def strings(self, numbers: Tensors) -> Tensors:
        """``labels``, the names of ``label_ids``, "" at padding."""
        return {"labels": names_of(numbers["label_ids"], list(self.classes.labels))}

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs at each word [B, W], without logits, and ``words_left_out`` [B]."""
        features, starts, left_out = word_features(texts["text"], tokenizer, self._max_seq_length)
        numbers = self.outputs(network, features)
        is_word, places = tf.ones_like(starts).to_tensor(0) > 0, starts.to_tensor(0)
        at_words: Tensors = {}
        for name, padding in (("label_ids", -1), ("probabilities", 0.0)):
            values = tf.gather(numbers[name], places, batch_dims=1)
            at_words[name] = tf.where_v2(is_word, values, padding)
        return {**at_words, "words_left_out": left_out}


def word_features(
    texts: tf.Tensor, tokenizer: GraphTokenizer, max_seq_length: int
) -> tuple[dict[str, tf.Tensor], tf.RaggedTensor, tf.Tensor]:
    """The network's inputs for words separated by blanks, of which those that fit are read.

    Args:
      texts: [B] UTF-8 strings.
      tokenizer: encodes their words.
      max_seq_length: the most tokens of a sequence.

    Returns:
      ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, the position of the first piece
      of each word, [B, (words)] int64, and the number of words that are not read, [B] int32.
    """
    room = max_seq_length - 2
    words = tf.strings.split(texts, result_type="RaggedTensor")
    # A word of which nothing is left is unknown.
    pieces = tokenizer.encode(words.flat_values)
    unknown = tf.fill([pieces.nrows(), 1], tokenizer.ids.unk_id)
    is_empty = tf.expand_dims(tf.equal(pieces.row_lengths(), 0), 1)
    unknown = tf.ragged.boolean_mask(unknown, is_empty)
    pieces = tf.concat([pieces[:, :room], unknown], axis=1)

    lengths = words.with_flat_values(pieces.row_lengths())
    ends = _running_sums(lengths)
    fits = tf.ragged.map_flat_values(tf.less_equal, ends, tf.constant(room, tf.int64))
    kept = tf.ragged.boolean_mask(words.with_flat_values(tf.range(pieces.nrows())), fits)
    tokens = kept.with_values(tf.gather(pieces, kept.values)).merge_dims(1, -1)
    starts = tf.ragged.boolean_mask(ends - lengths + 1, fits)
    left_out = tf.cast(words.row_lengths() - kept.row_lengths(), tf.int32)
    return with_special_tokens([tokens], tokenizer.ids), starts, left_out


def _running_sums(lengths: tf.RaggedTensor) -> tf.RaggedTensor:
    """For each number the sum of its row up to and including it."""
    sums = tf.cumsum(lengths.flat_values)
    before = tf.gather(tf.concat([[0], sums], axis=0), lengths.row_starts())
    return lengths.with_flat_values(sums - tf.gather(before, lengths.value_rowids()))
