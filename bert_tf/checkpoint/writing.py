"""Writes model directories in each of the formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import Shape
from bert_tf.checkpoint.tensorflow_file import (
    list_checkpoints,
    write_checkpoint,
)
from bert_tf.model.bert import bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import discriminator_specs, masked_lm_specs, next_sentence_specs
from bert_tf.model_directory.directory import CONFIG_NAME
from bert_tf.model_directory.record import write_model_files
from bert_tf.util.errors import UserError
from bert_tf.util.files import write_json

if TYPE_CHECKING:
    from bert_tf.checkpoint.formats import Source

Arrays = Mapping[str, np.ndarray]


def network_shapes(
    config: BertConfig, stored: Mapping[str, Shape], *, labels: Sequence[str] | None = None
) -> dict[str, Shape]:
    """The variables of the network that a checkpoint appears to hold: BERT and its heads.

    ``stored`` are the checkpoint's variables, under Google's names; they determine the number of
    classes of a task head. ``labels`` are ``ModelDirectory.labels``.
    """
    heads = names.heads_of(stored)
    pools = any(name.startswith(names.POOLER) for name in stored)
    needs_pooler = names.NEXT_SENTENCE in heads or (names.CLASSES in heads and labels is None)
    specs = bert_specs(config, pooler=pools or needs_pooler)
    if names.MASKED_LM in heads:
        specs += masked_lm_specs(config)
    if names.NEXT_SENTENCE in heads:
        specs += next_sentence_specs(config)
    if names.DISCRIMINATOR in heads:
        specs += discriminator_specs(config)
    shapes = {spec.name: tuple(spec.shape) for spec in specs}
    for head in heads & {names.SQUAD, names.CLASSES}:
        weights, bias = f"{head}output_weights", f"{head}output_bias"
        classes = (stored.get(weights) or stored[bias])[0]
        shapes.update({weights: (classes, config.hidden_size), bias: (classes,)})
    return shapes


def write_model(
    directory: Path, target: str, source: Source, weights: Arrays, *, run_state: Arrays
) -> list[str]:
    """Writes weights, configuration, vocabulary and casing; returns messages for the user.

    Args:
      directory: an existing, empty directory.
      target: a key of ``formats.ORIGINS``.
      source: the checkpoint, with its configuration and the files next to it.
      weights: its float32 arrays under Google's names.
      run_state: optimizer state and counters; empty to write only weights.

    Raises UserError if the format cannot represent something, OSError if the disk is full.
    """
    if target != "huggingface":
        _write_tensorflow(directory, target, {**weights, **run_state}, source)
        return _notes(target, source)
    if run_state:
        raise UserError(
            "--include_optimizer: a Hugging Face directory has no place for an optimizer's state; "
            "leave the flag out."
        )
    from bert_tf.checkpoint.huggingface import write_huggingface

    return [*write_huggingface(directory, weights, source), *_notes(target, source)]


def _write_tensorflow(directory: Path, target: str, arrays: Arrays, source: Source) -> None:
    if target == "google":
        write_checkpoint(str(directory / "bert_model.ckpt"), arrays)
    else:
        name = f"model.ckpt-{int(arrays.get('global_step', 0))}"
        write_checkpoint(str(directory / name), arrays)
        list_checkpoints(directory, [name])
    config, files = source.config, source.files
    write_model_files(directory, config, files.tokenizer_files, **files.facts)
    if target != "bert_tf" and config.hidden_act == "gelu_tanh":
        write_json(directory / CONFIG_NAME, {**config.to_dict(), "hidden_act": "gelu"})


def _notes(target: str, source: Source) -> list[str]:
    notes, config, files = [], source.config, source.files
    if target in ("google", "nvidia") and config.hidden_act == "gelu_erf":
        notes.append(
            f"warning: the model was made with the exact GELU, which {CONFIG_NAME} calls gelu_erf; "
            "Google's and NVIDIA's code refuse that name and with \"gelu\" they compute the tanh "
            "form, so outputs differ slightly"
        )
    if target in ("google", "nvidia") and not config.type_vocab_size:
        notes.append(
            "warning: the model has no token types (type_vocab_size 0), and Google's and NVIDIA's "
            "code cannot build a network without them"
        )
    if files.tokenizer_files.file is None:
        notes.append("no vocabulary is stored with the checkpoint; --vocab_file adds one")
    elif target != "huggingface" and files.tokenizer_files.do_lower_case is None:
        notes.append(
            "nothing records whether the vocabulary is lower-cased; --do_lower_case or "
            "--nodo_lower_case does"
        )
    return notes
