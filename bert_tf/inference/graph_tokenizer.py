"""Converts strings to the network's inputs inside the graph.

tensorflow-text's BERT tokenizers do not reproduce google-research/bert's ids: they normalize with
NFKC, split words at control characters rather than dropping these, and do not handle final sigma.
Of all 1,112,064 Unicode characters they tokenize 7,384 differently (uncased; 260 cased). Therefore
only its WordPiece and NFD are used here, and BasicTokenizer's rules are regular expressions. Their
character classes are derived from BasicTokenizer itself, since the classes of the regular
expression library follow another version of Unicode. The ids are identical for every character.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.errors import UserError

_MOST_BYTES_PER_CHAR = 4  # of UTF-8
_SURROGATES = range(0xD800, 0xE000)
_BLOCK = 256


class GraphTokenizer:
    """A WordPiece tokenizer made of graph operations.

    Attributes:
      ids: the tokenizer that it equals, for the ids of special tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UserError without tensorflow-text, or for rules other than BERT's own."""
        if tokenizer.kind != "wordpiece":
            raise UserError(
                "--text_signature needs a WordPiece vocabulary with BERT's own rules, and this "
                f"model's is of the kind {tokenizer.kind}; leave the flag out and send token ids."
            )
        self.ids = tokenizer
        self._ops = _import_tensorflow_text()
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
        texts = replace(texts, patterns["blank"], " ")
        texts = replace(texts, patterns["dropped"], "")
        if self.ids.lower_case:
            texts = tf.strings.lower(texts, encoding="utf-8")
        if self.ids.strips_accents:
            texts = self._ops.normalize_utf8(texts, "NFD")
            texts = replace(texts, patterns["accent"], "")
        texts = replace(texts, f"({patterns['word']})", r" \1 ")
        return replace(texts, f"[^ ]{{{MAX_CHARS_PER_WORD + 1},}}", f" {self._unknown} ")


def with_special_tokens(
    parts: Sequence[tf.RaggedTensor], tokenizer: Tokenizer
) -> dict[str, tf.Tensor]:
    """The network's inputs for ``[CLS] first [SEP]`` and, with two parts, ``second [SEP]``.

    ``parts`` are [B, (tokens)] int32 each. Returns ``input_ids``, ``input_mask``, ``segment_ids``
    [B, S] int32, where S is the longest length in the batch.
    """
    separator = tf.fill([parts[0].nrows(tf.int32), 1], tokenizer.sep_id)
    segments = [tf.concat([part, separator], axis=1) for part in parts]
    segments[0] = tf.concat([tf.fill(tf.shape(separator), tokenizer.cls_id), segments[0]], axis=1)
    ids = tf.concat(segments, axis=1)
    numbers = [tf.ones_like(segment) * number for number, segment in enumerate(segments)]
    return {
        "input_ids": ids.to_tensor(tokenizer.pad_id),
        "input_mask": tf.ones_like(ids).to_tensor(0),
        "segment_ids": tf.concat(numbers, axis=1).to_tensor(0),
    }


def kept_counts(counts: list[tf.Tensor], room: int) -> list[tf.Tensor]:
    """Like ``text.windows.kept_counts`` for [B] int64 tensors."""
    if len(counts) == 1:
        return [tf.minimum(counts[0], room)]
    first, second = counts
    # The shorter text is kept whole if it takes no more than its half of the room.
    half, rest = (room + 1) // 2, room // 2
    return [
        tf.minimum(first, tf.maximum(room - second, half)),
        tf.minimum(second, tf.maximum(room - first, rest)),
    ]


def kept_tokens(
    tokens: tf.RaggedTensor, first: tf.Tensor, last: tf.Tensor | int = 0
) -> tf.RaggedTensor:
    """The ``first`` and ``last`` [B] int64 tokens of each row; those in between are left out."""
    counts = tf.expand_dims(tokens.row_lengths(), 1)
    places = tf.ragged.range(tokens.row_lengths())
    is_first = places < tf.expand_dims(first, 1)
    is_last = places >= counts - tf.reshape(tf.cast(last, tf.int64), [-1, 1])
    return tf.ragged.boolean_mask(tokens, is_first | is_last)


def first_sequence(
    parts: Sequence[tf.RaggedTensor], tokenizer: Tokenizer, max_seq_length: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The network's inputs for texts or pairs, which lose their ends if they are too long.

    ``parts`` are [B, (tokens)] int32 each, and ``max_seq_length`` counts [CLS] and [SEP]. Returns
    what :func:`with_special_tokens` does, and the number of tokens cut off, [B] int32.
    """
    counts = [part.row_lengths() for part in parts]
    kept = kept_counts(counts, max_seq_length - 1 - len(parts))
    cut = [kept_tokens(part, count) for part, count in zip(parts, kept)]
    left_out = tf.cast(tf.add_n(counts) - tf.add_n(kept), tf.int32)
    return with_special_tokens(cut, tokenizer), left_out


@functools.cache
def _find_patterns() -> dict[str, str]:
    """Regular expressions for characters by what BasicTokenizer does to them.

    ``blank`` ones separate words, ``dropped`` ones are removed first, an ``accent`` is removed
    after lower-casing and decomposition, and each ``word`` one is a word by itself. Blocks of plain
    characters only are skipped.
    """
    cased, uncased = BasicTokenizer(lower_case=False), BasicTokenizer(lower_case=True)
    members: dict[str, list[int]] = {"blank": [], "dropped": [], "accent": [], "word": []}
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
                members[{1: "dropped", 2: "blank", 3: "word"}[len(words)]].append(code_point)
            elif uncased.words(probe) == ["xx"]:
                members["accent"].append(code_point)
    return {kind: _character_class(code_points) for kind, code_points in members.items()}


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
