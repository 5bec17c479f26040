"""What an exported model of each task takes and returns."""

from __future__ import annotations

import abc
import sys
from collections.abc import Mapping
from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.sentence_modules import TEXTS_NAME
from bert_tf.config.declared import with_settings_of_model
from bert_tf.inference.graph_tokenizer import (
    GraphTokenizer,
    first_sequence,
    kept_counts,
    kept_tokens,
    with_special_tokens,
)
from bert_tf.model.task import Features, Network, Task
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION
from bert_tf.records.layouts import WORD_STARTS
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import TrainedModel
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.classification.texts import HEAD_TAIL, TAIL, LongTexts
from bert_tf.tasks.multiple_choice.task import ChoiceTask
from bert_tf.tasks.pretraining.mask_filler import MASK
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.settings import NUM_SPECIAL
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.vectors.encoder import choose_vectors
from bert_tf.tasks.vectors.settings import TOKENS, VECTORS
from bert_tf.util.console import say
from bert_tf.util.errors import UserError

Tensors = dict[str, tf.Tensor]

_UNIQUE_IDS = "unique_ids"


class Signatures(abc.ABC):
    """The signatures of a network. The first dimension of all inputs and outputs is B.

    Attributes:
      task: the network.
      texts: name of a signature that takes strings -> its names of inputs, [B] strings each.
      returned: name of a signature -> a [B] int32 input that it returns besides the others.
    """

    task: Task
    texts: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("text",)}
    returned: ClassVar[Mapping[str, str]] = {}

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        """Raises UserError for settings that do not fit the model.

        Texts are read as in the model's training: up to the length, and of longer ones the part,
        that its run was given.
        """
        self.max_seq_length = settings.longest(trained.model.config)

    @abc.abstractmethod
    def outputs(self, network: Network, features: Features) -> Tensors:
        """The numbers of interest from features ``INPUTS``, [B, S] int32 each."""

    def strings(self, numbers: Tensors) -> Tensors:  # noqa: ARG002
        """Further outputs: the names that these stand for."""
        return {}

    @abc.abstractmethod
    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for strings, and what is not read of them: ``tokens_left_out`` [B]."""


class _ClassSignatures(Signatures):
    """Classes or labels, which read texts up to the length of the model's training."""

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        self.labels = list(trained.required_classes.labels)
        kept = trained.model.kept.get("max_seq_length")
        self.longest_text: int = settings.max_seq_length or kept or self.max_seq_length


class ClassifierSignatures(_ClassSignatures):
    """``text`` and ``text_pair`` take texts and cut them as ``sequences_of`` does.

    If a text has several windows, only the first one is read.
    """

    texts: ClassVar = {"text": ("text",), "text_pair": ("text", "other_text")}

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        self._classes = trained.required_classes
        self.task = ClassificationTask(trained.model.config, len(self.labels) or 1)
        self._long_texts = with_settings_of_model(LongTexts(), trained.model.kept).long_texts

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``logits`` and ``probabilities`` [B, C], and what is predicted, [B] or [B, C]."""
        logits = network.predictions(features)["logits"]
        if self._classes.kind == REGRESSION:
            return {"rating": logits[:, 0]}
        if self._classes.kind == MULTI_LABEL:
            probabilities = tf.sigmoid(logits)
            chosen = {"predicted": probabilities >= self._classes.thresholds}
        else:
            probabilities = tf.nn.softmax(logits)
            chosen = {"label_id": tf.argmax(logits, axis=-1, output_type=tf.int32)}
        return {"logits": logits, "probabilities": probabilities, **chosen}

    def strings(self, numbers: Tensors) -> Tensors:
        """``classes`` [B, C], the names of all; ``label`` [B], the name of the predicted one."""
        if self._classes.kind == REGRESSION:
            return {}
        rows = tf.shape(numbers["logits"])[0]
        named = {"classes": tf.tile(tf.constant([self.labels]), [rows, 1])}
        if "label_id" in numbers:
            named["label"] = tf.gather(tf.constant(self.labels), numbers["label_id"])
        return named

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for texts or pairs, cut as in the model's training."""
        parts = [tokenizer.encode(text) for text in texts.values()]
        counts = [part.row_lengths() for part in parts]
        kept = kept_counts(counts, self.longest_text - 1 - len(parts))
        features = with_special_tokens(list(map(self._cut, parts, kept)), tokenizer.ids)
        left_out = tf.cast(tf.add_n(counts) - tf.add_n(kept), tf.int32)
        return {**self.outputs(network, features), "tokens_left_out": left_out}

    def _cut(self, part: tf.RaggedTensor, kept: tf.Tensor) -> tf.RaggedTensor:
        first = {TAIL: tf.zeros_like(kept), HEAD_TAIL: kept // 4}.get(self._long_texts, kept)
        return kept_tokens(part, first, kept - first)


class ChooserSignatures(_ClassSignatures):
    """Scores of sequences; a question's answer is the choice with the highest one.

    ``text_pair`` takes contexts, each with a choice, that lose their ends as in training.
    """

    texts: ClassVar = {"text_pair": ("text", "other_text")}

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        self.task = ChoiceTask(trained.model.config)

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``scores`` [B] float32."""
        return network.predictions(features)

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The scores of contexts with their choices."""
        parts = [tokenizer.encode(text) for text in texts.values()]
        features, left_out = first_sequence(parts, tokenizer.ids, self.longest_text)
        return {**self.outputs(network, features), "tokens_left_out": left_out}


class TaggerSignatures(_ClassSignatures):
    """``text`` takes words separated by blanks."""

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        self.task = TaggingTask(trained.model.config, len(self.labels))

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``label_ids`` [B, S], -1 at padding, their ``probabilities`` [B, S], ``logits``."""
        mask = features["input_mask"]
        everywhere = {**features, WORD_STARTS: mask}
        logits = self.task.outputs(network.variables, everywhere, network.options)
        logits = tf.reshape(logits, [*tf.unstack(tf.shape(mask)), len(self.labels)])
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
        return {"labels": names_of(numbers["label_ids"], self.labels)}

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs at each word [B, W], without logits, and ``words_left_out`` [B]."""
        tokens, starts, left_out = self._words(tokenizer, texts["text"])
        numbers = self.outputs(network, with_special_tokens([tokens], tokenizer.ids))
        is_word, places = tf.ones_like(starts).to_tensor(0) > 0, starts.to_tensor(0)
        at_words: Tensors = {}
        for name, padding in (("label_ids", -1), ("probabilities", 0.0)):
            values = tf.gather(numbers[name], places, batch_dims=1)
            at_words[name] = tf.where_v2(is_word, values, padding)
        return {**at_words, "words_left_out": left_out}

    def _words(
        self, tokenizer: GraphTokenizer, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """The words of [B] strings that fit.

        Returns:
          their tokens [B, (tokens)] int32, the position of the first one of each word in the
          sequence [B, (words)] int64, and the number of words that are left out, [B] int32.
        """
        room = self.longest_text - 2
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
        return tokens, starts, tf.cast(words.row_lengths() - kept.row_lengths(), tf.int32)


def _running_sums(lengths: tf.RaggedTensor) -> tf.RaggedTensor:
    """For each number the sum of its row up to and including it."""
    sums = tf.cumsum(lengths.flat_values)
    before = tf.gather(tf.concat([[0], sums], axis=0), lengths.row_starts())
    return lengths.with_flat_values(sums - tf.gather(before, lengths.value_rowids()))


class SpanSignatures(Signatures):
    """``text`` takes questions and contexts, and reads the first window.

    ``with_unique_ids`` takes and returns ``unique_ids``, too, for clients of google-research/bert's
    and NVIDIA's exports.
    """

    texts: ClassVar = {"text": ("question", "context")}
    returned: ClassVar = {f"with_{_UNIQUE_IDS}": _UNIQUE_IDS}

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        if settings.text_signature:
            self._windows = settings.windows(self.max_seq_length)
        self.task = SpanTask(trained.model.config, num_candidates=settings.n_best_size)

    def outputs(self, network: Network, features: Features) -> Tensors:
        """Logits and candidates; -inf becomes the lowest float32, since JSON has no infinity.

        ``start_logits`` and ``end_logits`` are [B, S] float32, ``top_start_indices`` and
        ``top_end_indices`` [B, K] int32, ``top_start_logits`` and ``top_end_logits`` [B, K]
        float32, ``null_logits`` [B] float32.
        """
        logits = self.task.outputs(network.variables, features, network.options)
        best = self.task.predictions(logits, features, network.options)
        null = {"null_logits": best.pop("null_logits")}
        outputs = {
            "start_logits": logits.start,
            "end_logits": logits.end,
            **{f"top_{name}": tensor for name, tensor in best.items()},
            **null,
        }
        lowest = tf.float32.min
        return {
            name: tf.maximum(tensor, lowest) if tensor.dtype == tf.float32 else tensor
            for name, tensor in outputs.items()
        }

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for each context's first window, and its inputs, to which positions refer."""
        windows = self._windows
        question = tokenizer.encode(texts["question"])[:, : windows.max_query_length]
        context = tokenizer.encode(texts["context"])
        tokens = context.row_lengths()
        kept = tf.minimum(tokens, windows.max_seq_length - NUM_SPECIAL - question.row_lengths())
        features = with_special_tokens([question, kept_tokens(context, kept)], tokenizer.ids)
        left_out = tf.cast(tokens - kept, tf.int32)
        return {**self.outputs(network, features), **features, "tokens_left_out": left_out}


class MaskSignatures(Signatures):
    """``text`` takes texts with [MASK]."""

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        self.task = PretrainingTask(trained.model.config, next_sentence=False)
        tokenizer = trained.model.tokenizer
        self._mask_id = tokenizer.mask_id
        self._entries = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        self._top = min(settings.top, len(self._entries))

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``positions`` [B, P] of the masks, ``word_ids`` and ``probabilities`` [B, P, K].

        P is the largest number of masks of a sequence, at least 1; others have -1 and probability
        0 there.
        """
        positions = mask_positions(features["input_ids"], self._mask_id)
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
        """The outputs for texts whose [MASK] are the token, as ``mask_filler`` reads them."""
        parts = tf.strings.split(texts["text"], MASK, result_type="RaggedTensor")
        tokens = tokenizer.encode(parts.flat_values)
        masks = tf.fill([tokens.nrows(), 1], self._mask_id)
        # Every part follows a mask, but for the first one.
        joined = parts.with_flat_values(tf.concat([masks, tokens], axis=1))
        tokens = joined.merge_dims(1, -1)[:, 1:]
        features, left_out = first_sequence([tokens], tokenizer.ids, self.max_seq_length)
        return {**self.outputs(network, features), "tokens_left_out": left_out}


def mask_positions(ids: tf.Tensor, mask_id: int) -> tf.Tensor:
    """The positions of [MASK] in [B, S] ids, ascending: [B, P] int32, filled up with -1.

    P is at least 1, since a dimension of 0 means another one in ONNX's reshapes.
    """
    S = tf.shape(ids)[1]
    is_mask = tf.cast(tf.equal(ids, mask_id), tf.int32)
    most = tf.maximum(tf.reduce_max(tf.reduce_sum(is_mask, axis=1)), 1)
    # The earlier a mask is, the higher it ranks.
    ranks = tf.math.top_k(is_mask * (S - tf.range(S)), k=most).values
    return tf.where_v2(ranks > 0, S - ranks, -1)


class VectorSignatures(Signatures):
    """``text`` takes texts, after which the prompt is put."""

    def __init__(self, trained: TrainedModel, settings: ExportSettings) -> None:
        super().__init__(trained, settings)
        if settings.vectors.pooling == TOKENS:
            raise UserError(
                f"--pooling={TOKENS} gives texts of different lengths different numbers of "
                "vectors; give another --pooling, such as mean."
            )
        self._chosen = choose_vectors(
            trained.model, settings.vectors, max_seq_length=settings.max_seq_length
        )
        for note in self._chosen.notes:
            say(note, stream=sys.stderr)
        self.task = self._chosen.task

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``vectors`` [B, W], or [B, layers, W] for several layers."""
        vectors = network.predictions(features)[VECTORS]
        return {VECTORS: vectors[:, 0] if len(self._chosen.task.layers) == 1 else vectors}

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for texts after the prompt; UserError if the graph cannot lower-case them."""
        maker = self._chosen.maker
        if maker.lower_case:
            raise UserError(
                f"--text_signature: {TEXTS_NAME} lower-cases texts for a cased vocabulary, which "
                "the graph does not; leave the flag out and send token ids."
            )
        tokens = tokenizer.encode(tf.strings.join([maker.prompt, texts["text"]]))
        features, left_out = first_sequence([tokens], tokenizer.ids, maker.max_seq_length)
        return {**self.outputs(network, features), "tokens_left_out": left_out}


def names_of(numbers: tf.Tensor, names: list[str]) -> tf.Tensor:
    """The strings that integers of any shape stand for; "" for -1."""
    return tf.gather(tf.constant(["", *names]), numbers + 1)
