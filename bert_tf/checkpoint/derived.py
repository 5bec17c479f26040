"""Checkpoints computed from others: a mean, rows for new words, one of ELECTRA's two networks.

In a checkpoint of run_electra.py, the discriminator is a BERT network under BERT's names, with a
head of its own. The generator shares its embeddings; all other variables of the generator have the
prefix ``generator/``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import ArrayFile, Entry, Shape
from bert_tf.checkpoint.formats import Source, StoredArray
from bert_tf.model.bert import WORD_EMBEDDINGS, bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model.encoder import encoder_specs
from bert_tf.model.heads import masked_lm_specs
from bert_tf.model.variables import VariableSpec, dense_specs
from bert_tf.text.new_words import Extension
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError


def average_sources(sources: Sequence[Source]) -> Source:
    """The mean of several checkpoints of a network (Vaswani et al. 2017, section 6.1).

    The sums are float64, so the order of the checkpoints does not matter in practice. Files and
    notes are the last one's; the state of a run, such as the optimizer's slots, is left out. Raises
    UserError if the checkpoints have different variables.
    """
    weights = [
        {name: shape for name, shape in source.shapes.items() if not names.is_run_state(name)}
        for source in sources
    ]
    last = sources[-1]
    for source, found in zip(sources, weights):
        different = found.items() ^ weights[-1].items()
        if different:
            name, _ = min(different)
            raise UserError(
                f"{source.path} and {last.path} are not checkpoints of the same network: {name} "
                "differs; give checkpoints of one run."
            )
    stored = {name: StoredArray(_Mean(sources, name), name) for name in weights[-1]}
    return last.with_arrays(stored)


class _Mean(ArrayFile):
    """The mean of a variable over checkpoints."""

    def __init__(self, sources: Sequence[Source], name: str) -> None:
        self.path = sources[-1].path
        self.entries = {name: Entry(sources[-1].shapes[name], "float32")}
        self._sources = sources

    def read(self, name: str) -> np.ndarray:
        """The mean as float32; UserError if a checkpoint cannot be read."""
        total = np.zeros(self.entries[name].shape, np.float64)
        for source in self._sources:
            total += source.read(name)
        return np.asarray(total / len(self._sources), np.float32)


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


def extend_source(source: Source, extension: Extension, tokenizer_files: TokenizerFiles) -> Source:
    """The checkpoint with the rows of new words; ``tokenizer_files`` name the new vocabulary."""
    stored = dict(source.stored)
    for name in _BY_ENTRY:
        if name in stored:
            stored[name] = StoredArray(_ExtendedRows(source, name, extension), name)
    size = max(source.config.vocab_size, len(extension.entries))
    config = dataclasses.replace(source.config, vocab_size=size)
    return source.with_arrays(stored, config=config, tokenizer_files=tokenizer_files)


class _ExtendedRows(ArrayFile):
    """A variable of a checkpoint, with rows for new words."""

    def __init__(self, source: Source, name: str, extension: Extension) -> None:
        self.path = source.path
        rows, *width = source.shapes[name]
        shape = (max(rows, len(extension.entries)), *width)
        self.entries = {name: Entry(shape, "float32")}
        self._source, self._extension = source, extension

    def read(self, name: str) -> np.ndarray:
        """The rows as float32; UserError if they cannot be read."""
        return extend_rows(self._source.read(name), self._extension)


_EMBEDDINGS = "bert/embeddings/"
_LAYER = "bert/encoder/layer_{n}"


def generator_specs(generator: BertConfig, *, embedding_size: int) -> list[VariableSpec]:
    """The variables of a generator, without its prefix and without the shared embeddings.

    ``embedding_size`` is the width of the embeddings, projected if the generator's differs.
    """
    specs = encoder_specs(generator, scope="bert/encoder")
    if generator.hidden_size != embedding_size:
        specs += dense_specs(
            names.EMBEDDINGS_PROJECT, inputs=embedding_size, outputs=generator.hidden_size
        )
    return specs + masked_lm_specs(generator, embedding_size=embedding_size)


def without_generator(source: Source) -> tuple[Source, list[str]]:
    """The discriminator alone; and a note, unless the checkpoint contains nothing else."""
    own = [name for name in source.stored if name.startswith(names.GENERATOR)]
    weights = [name for name in own if not names.is_run_state(name)]
    if not weights:
        return source, []
    note = f"{len(weights)} of the generator, left out (--generator converts it instead)"
    return source.without(own), [note]


def generator_of(source: Source) -> Source:
    """The generator as a checkpoint of its own, with its configuration.

    Its names are BERT's, except that the head keeps its prefix, by which ``names.ELECTRA``
    recognises it. Raises UserError if the checkpoint contains no generator.
    """
    shapes = source.shapes
    transform = shapes.get(f"{names.GENERATOR_MASKED_LM}transform/dense/kernel")
    if transform is None:
        raise UserError(
            f"--generator: {source.path} has no generator; give a checkpoint of run_electra.py, or "
            "leave the flag out."
        )
    stored = {}
    for name, array in source.stored.items():
        if name.startswith((_EMBEDDINGS, names.GENERATOR_MASKED_LM)):
            stored[name] = array
        elif name.startswith(names.GENERATOR):
            stored[name[len(names.GENERATOR) :]] = array
    return source.with_arrays(stored, config=_config(source, width=transform[0]))


def generator_shapes(source: Source) -> dict[str, Shape]:
    """The names and shapes of the variables that :func:`generator_of` returns."""
    width = source.shapes[WORD_EMBEDDINGS][1]
    embeddings = dataclasses.replace(source.config, hidden_size=width, num_attention_heads=1)
    head = names.GENERATOR_MASKED_LM
    return {
        **{
            spec.name: spec.shape
            for spec in bert_specs(embeddings, pooler=False)
            if spec.name.startswith(_EMBEDDINGS)
        },
        **{
            spec.name.replace(names.MASKED_LM, head): spec.shape
            for spec in generator_specs(source.config, embedding_size=width)
        },
    }


def _config(source: Source, *, width: int) -> BertConfig:
    """The generator's configuration; its attention heads are as wide as the discriminator's."""
    config, shapes = source.config, source.shapes
    layers = 0
    while f"{names.GENERATOR}{_LAYER.format(n=layers)}/output/dense/kernel" in shapes:
        layers += 1
    inner = shapes[f"{names.GENERATOR}{_LAYER.format(n=0)}/output/dense/kernel"][0]
    return dataclasses.replace(
        config,
        hidden_size=width,
        num_attention_heads=width // (config.hidden_size // config.num_attention_heads),
        num_hidden_layers=layers,
        intermediate_size=inner,
    )
