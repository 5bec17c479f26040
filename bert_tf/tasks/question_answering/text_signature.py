"""Converts strings of questions and contexts to the network's inputs inside the graph.

tensorflow-text's BERT tokenizers do not reproduce google-research/bert's ids: they normalize with
NFKC, split words at control characters rather than dropping these, and do not handle final sigma.
Of all 1,112,064 Unicode characters they tokenize 7,384 differently (uncased; 260 cased). Therefore
only its WordPiece and NFD are used here, and BasicTokenizer's rules are regular expressions. Their
character classes are derived from BasicTokenizer itself, since the classes of the regular
expression library follow another version of Unicode. The ids are identical for every character.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import sys
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.tasks.question_answering.windows import NUM_SPECIAL, WindowSettings
from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.errors import UserError

_MOST_BYTES_PER_CHAR = 4  # of UTF-8
_SURROGATES = range(0xD800, 0xE000)
_BLOCK = 256


class GraphTokenizer:
    """A WordPiece tokenizer made of graph operations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UserError unless the vocabulary is WordPiece and tensorflow-text is installed."""
        if tokenizer.kind != "wordpiece":
            raise UserError(
                "--text_signature needs a WordPiece vocabulary, which this model does not have; "
                "leave the flag out and send token ids."
            )
        self._ops = _import_tensorflow_text()
        self._lower_case = tokenizer.lower_case
        [self._unknown] = tokenizer.convert_ids_to_tokens([tokenizer.unk_id])
        self._wordpiece = self._ops.FastWordpieceTokenizer(
            tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)),
            max_bytes_per_word=_MOST_BYTES_PER_CHAR * MAX_CHARS_PER_WORD,
            unknown_token=self._unknown,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )
        self._patterns = _find_patterns()

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Encodes [B] UTF-8 strings as [B, (tokens)] int32 ids, without special tokens."""
        words = tf.strings.split(self._separate_words(texts), result_type="RaggedTensor")
        return self._wordpiece.tokenize(words).merge_dims(1, -1)

    def _separate_words(self, texts: tf.Tensor) -> tf.Tensor:
        """The words of BasicTokenizer, separated by blanks."""
        replace, patterns = tf.strings.regex_replace, self._patterns
        texts = replace(texts, patterns.blank, " ")
        texts = replace(texts, patterns.dropped, "")
        if self._lower_case:
            texts = tf.strings.lower(texts, encoding="utf-8")
            texts = self._ops.normalize_utf8(texts, "NFD")
            texts = replace(texts, patterns.accent, "")
        texts = replace(texts, f"({patterns.word})", r" \1 ")
        return replace(texts, f"[^ ]{{{MAX_CHARS_PER_WORD + 1},}}", f" {self._unknown} ")


def text_features(
    questions: tf.Tensor, contexts: tf.Tensor, tokenizer: Tokenizer, windows: WindowSettings
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The network's inputs for questions and contexts, limited to each context's first window.

    Args:
      questions, contexts: [B] UTF-8 strings.
      tokenizer: a WordPiece tokenizer.
      windows: lengths in tokens.

    Returns:
      ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, where S is the longest length in
      the batch, and the number of tokens cut off the end of each context, [B] int32.
    """
    graph_tokenizer = GraphTokenizer(tokenizer)
    question = graph_tokenizer.encode(questions)[:, : windows.max_query_length]
    context = graph_tokenizer.encode(contexts)
    tokens = context.row_lengths()
    room = windows.max_seq_length - NUM_SPECIAL - question.row_lengths()
    kept = tf.minimum(tokens, room)
    positions = tf.ragged.range(tokens)
    context = tf.ragged.boolean_mask(context, positions < tf.expand_dims(room, 1))

    special = tf.fill([tf.size(questions), 1], tokenizer.sep_id)
    first = tf.concat([tf.fill(tf.shape(special), tokenizer.cls_id), question, special], axis=1)
    second = tf.concat([context, special], axis=1)
    segments = tf.concat([tf.zeros_like(first), tf.ones_like(second)], axis=1)
    ids = tf.concat([first, second], axis=1)
    features = {
        "input_ids": ids.to_tensor(tokenizer.pad_id),
        "input_mask": tf.ones_like(ids).to_tensor(0),
        "segment_ids": segments.to_tensor(0),
    }
    return features, tf.cast(tokens - kept, tf.int32)


@dataclasses.dataclass(frozen=True)
class _Patterns:
    """Regular expressions for characters, by what happens to them.

    Attributes:
      blank: they separate words.
      dropped: they are removed first.
      accent: they are removed after lower-casing and decomposition.
      word: each is a word by itself.
    """

    blank: str
    dropped: str
    accent: str
    word: str


@functools.cache
def _find_patterns() -> _Patterns:
    """Classifies every character with BasicTokenizer, skipping blocks of plain characters only."""
    cased, uncased = BasicTokenizer(lower_case=False), BasicTokenizer(lower_case=True)
    found: dict[str, list[int]] = {"blank": [], "dropped": [], "accent": [], "word": []}
    for first in range(0, sys.maxunicode + 1, _BLOCK):
        # UTF-8 cannot encode surrogates.
        block = [point for point in range(first, first + _BLOCK) if point not in _SURROGATES]
        probes = [f"x{chr(code_point)}x" for code_point in block]
        text = " ".join(probes)
        if cased.words(text) == probes and "xx" not in uncased.words(text):
            continue
        for code_point, probe in zip(block, probes):
            words = cased.words(probe)
            if words != [probe]:
                found[{1: "dropped", 2: "blank", 3: "word"}[len(words)]].append(code_point)
            elif uncased.words(probe) == ["xx"]:
                found["accent"].append(code_point)
    return _Patterns(**{kind: _character_class(members) for kind, members in found.items()})


def _character_class(code_points: list[int]) -> str:
    """A regular expression ``[...]`` with the ranges of sorted code points."""
    runs = itertools.groupby(enumerate(code_points), key=lambda pair: pair[1] - pair[0])
    ranges = []
    for _, run in runs:
        members = [code_point for _, code_point in run]
        ranges.append(f"\\x{{{members[0]:x}}}-\\x{{{members[-1]:x}}}")
    return f"[{''.join(ranges)}]"


def _import_tensorflow_text() -> Any:
    try:
        return importlib.import_module("tensorflow_text")
    except ImportError as error:
        packages = "tensorflow-text==2.21.1"
        if tf.version.VERSION.startswith("2.15."):
            packages = "tensorflow-text==2.15.0 tensorflow-hub==0.15.0"
        raise UserError(
            f"--text_signature needs tensorflow-text ({error}); pip install --no-deps {packages}."
        ) from error
