"""The two networks in a checkpoint of run_electra.py.

The discriminator is a BERT network under BERT's names, with a head of its own. The generator shares
its embeddings; all other variables of the generator have the prefix ``generator/``.
"""

from __future__ import annotations

import dataclasses

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import Shape
from bert_tf.checkpoint.formats import Source
from bert_tf.model.bert import WORD_EMBEDDINGS, bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model.encoder import encoder_specs
from bert_tf.model.heads import masked_lm_specs
from bert_tf.model.variables import VariableSpec, dense_specs
from bert_tf.util.errors import UserError

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
