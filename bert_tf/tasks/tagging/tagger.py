"""Labels the words of sentences with a model kept in memory."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

from bert_tf.inference.sequences import SequencePredictor, listed, texts_of
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.records.layouts import WORD_STARTS
from bert_tf.records.sequences import padded, padded_inputs
from bert_tf.tasks.tagging.chunks import are_of_entities, entities_of
from bert_tf.tasks.tagging.files import WindowSettings, predicted_labels, sequences_of
from bert_tf.text.basic import IDEOGRAPHS

# A text, or the words of one.
Words = Union[str, Sequence[str]]

_IDEOGRAPH = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)
_WORD = re.compile(rf"(?P<run>[^\W{_IDEOGRAPH}]+)|[{_IDEOGRAPH}]|[^\w\s]")
_JOINERS = "\u200c\u200d"  # within words of Indian and Arabic writing


class NamedEntity(NamedTuple):
    """An entity: its type, its text, and the characters [start, end) that it takes."""

    type: str
    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class TaggedText:
    """What is predicted of a sentence.

    Attributes:
      words: its words.
      labels: the label of each word.
      entities: if the model's labels mark entities, those of the sentence, in order. Their
        characters are those of the text that was given or, if words were given, of these words
        separated by blanks.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    entities: tuple[NamedEntity, ...]


class Tagger(SequencePredictor):
    """A tagging network with its weights.

    Attributes:
      labels: its labels, by class number.
    """

    def __init__(
        self,
        model: CompleteModel,
        classes: Classes,
        *,
        max_seq_length: int | None = None,
        doc_stride: int | None = None,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          classes: its labels, from ``ModelDirectory.classes``.
          max_seq_length: the most tokens of a sequence, of which a long sentence becomes several;
            None for that of the model's training, or else the network's positions.
          doc_stride: tokens between the starts of these; None for that of the model's training, or
            else run_ner.py's default.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: the weights do not belong to such a model, or it has fewer positions.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.tagging.task import TaggingTask

        length = max_seq_length or model.usual_length
        self.labels, self._tokenizer = classes.labels, model.tokenizer
        self._windows = WindowSettings(length, doc_stride or model.kept.get("doc_stride"))
        self._windows.validate()
        task = TaggingTask(model.config, len(self.labels))
        super().__init__(task, model.checkpoint, length, **options)

    def predict(self, sentences: Sequence[Words]) -> list[TaggedText]:
        """The labels of sentences, in their order.

        Sentences are lists of words, or text: its words are then runs of letters, with their marks,
        and digits, and each other character by itself, as is each Chinese one. Divide words as the
        training data of the model does.
        """
        read = list(map(_words_in, listed(sentences)))
        words = [[text[slice(*span)] for span in spans] for text, spans in read]
        return [
            TaggedText(tuple(of_text), tuple(labels), self._entities(labels, text, spans))
            for of_text, labels, (text, spans) in zip(words, self._labels_of(words), read)
        ]

    def _labels_of(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The predicted labels of each sentence's words."""
        sequences = [
            sequence
            for words in sentences
            for sequence in sequences_of(words, self._tokenizer, self._windows)
        ]
        if not sequences:
            return [[] for _ in sentences]
        ids = [sequence.ids for sequence in sequences]
        width = self.padded(max(map(len, ids)))
        outputs = self.run(
            {
                **padded_inputs(ids, width, pad_id=self._tokenizer.pad_id),
                WORD_STARTS: padded([sequence.word_starts for sequence in sequences], width),
            }
        )
        return predicted_labels(sentences, self.labels, outputs)

    def _entities(
        self, labels: Sequence[str], text: str, spans: Sequence[tuple[int, int]]
    ) -> tuple[NamedEntity, ...]:
        if not are_of_entities(self.labels):
            return ()
        places = [(e.type, spans[e.start][0], spans[e.end - 1][1]) for e in entities_of(labels)]
        return tuple(NamedEntity(kind, text[start:end], start, end) for kind, start, end in places)


def spans_in_text(text: str) -> list[tuple[int, int]]:
    """The characters [start, end) of each word of a running text."""
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        # Vowel signs and accents are not \w, but belong to the letters around them.
        follows = bool(spans) and spans[-1][1] == start and text[spans[-1][0]].isalnum()
        continues = match.lastgroup == "run" and _is_mark(text[start - 1])
        if follows and (continues or _is_mark(text[start])):
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M" or char in _JOINERS


def _words_in(sentence: Words) -> tuple[str, list[tuple[int, int]]]:
    """A sentence as text, and the characters [start, end) of each of its words.

    Words that were given are separated by blanks.
    """
    words = texts_of(sentence, wanted="a sentence, or a list of its words")
    if isinstance(sentence, str):
        return sentence, spans_in_text(sentence)
    ends = itertools.accumulate(len(word) + 1 for word in words)
    return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, ends)]
