"""Checkpoints whose vocabulary has new words: their rows begin as the mean of their pieces'."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import ArrayFile, Entry
from bert_tf.checkpoint.formats import ConfiguredSource, StoredArray
from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.text.new_words import Extension
from bert_tf.text.tokenizer_files import TokenizerFiles

# Variables with a row for every entry of the vocabulary.
_BY_ENTRY = (WORD_EMBEDDINGS, f"{names.MASKED_LM}output_bias")


def extend_rows(rows: np.ndarray, extension: Extension) -> np.ndarray:
    """Rows of word embeddings or of an output bias, for the extended vocabulary.

    Args:
      rows: float32 [R, ...], where R is at least the number of entries before.
      extension: the new words, with the ids of their pieces.

    Returns: float32 [max(R, entries), ...]; a new word's row is the mean of its pieces' rows
      (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models", takes the
      mean of all rows; a word's pieces tell more of it), and all others are unchanged.
    """
    added = max(0, len(extension.entries) - len(rows))
    found = np.concatenate([rows, np.zeros((added, *rows.shape[1:]), np.float32)])
    for index, new in extension.words.items():
        found[index] = rows[list(new.pieces)].mean(axis=0, dtype=np.float64)
    return found


def extend_source(
    source: ConfiguredSource, extension: Extension, tokenizer_files: TokenizerFiles
) -> ConfiguredSource:
    """The checkpoint with the rows of new words; ``tokenizer_files`` name the new vocabulary."""
    stored = dict(source.stored)
    for name in _BY_ENTRY:
        if name in stored:
            stored[name] = StoredArray(_ExtendedRows(source, name, extension), name)
    size = max(source.config.vocab_size, len(extension.entries))
    config = dataclasses.replace(source.config, vocab_size=size)
    files = dataclasses.replace(source.files, config=config, tokenizer_files=tokenizer_files)
    return dataclasses.replace(source, stored=stored, files=files)


class _ExtendedRows(ArrayFile):
    """A variable of a checkpoint, with rows for new words."""

    def __init__(self, source: ConfiguredSource, name: str, extension: Extension) -> None:
        self.path = source.path
        rows, *width = source.shapes[name]
        shape = (max(rows, len(extension.entries)), *width)
        self.entries = {name: Entry(shape, "float32")}
        self._source, self._extension = source, extension

    def read(self, name: str) -> np.ndarray:
        """The rows as float32; UserError if they cannot be read."""
        return extend_rows(self._source.read(name), self._extension)
