"""Writes model directories in each of the formats."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v1 as tf
from safetensors.numpy import save_file

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import Shape
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, write_checkpoint
from bert_tf.model.bert import WORD_EMBEDDINGS, bert_specs
from bert_tf.model.config import DISTILBERT_KEYS, BertConfig
from bert_tf.model.heads import discriminator_specs, masked_lm_specs, next_sentence_specs
from bert_tf.model_directory.directory import CONFIG_NAME, HUGGINGFACE_CONFIG_NAME, ModelDirectory
from bert_tf.model_directory.labels import Labels
from bert_tf.model_directory.writing import write_model_files, write_tokenizer_config
from bert_tf.util.errors import UserError
from bert_tf.util.files import write_json

if TYPE_CHECKING:
    from bert_tf.checkpoint.formats import ConfiguredDirectory

Arrays = Mapping[str, np.ndarray]

# If there are several heads, the first determines the class name, after "Bert" and the like.
_ARCHITECTURES: tuple[tuple[set[str], str], ...] = (
    ({names.DISCRIMINATOR}, "ForPreTraining"),
    ({names.GENERATOR_MASKED_LM}, "ForMaskedLM"),
    ({names.SQUAD}, "ForQuestionAnswering"),
    ({names.CLASSES}, "ForSequenceClassification"),
    ({names.MASKED_LM, names.NEXT_SENTENCE}, "ForPreTraining"),
    ({names.MASKED_LM}, "ForMaskedLM"),
    ({names.NEXT_SENTENCE}, "ForNextSentencePrediction"),
    (set(), "Model"),
)

# All versions of transformers know "gelu_new"; their "gelu" is the exact one.
_HUGGINGFACE_ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}


def network_shapes(
    config: BertConfig, stored: Mapping[str, Shape], *, labels: Labels | None = None
) -> dict[str, Shape]:
    """The variables of the network that a checkpoint appears to hold: BERT and its heads.

    Args:
      config: the architecture.
      stored: the checkpoint's variables, under Google's names; they determine the number of
        classes of a task head.
      labels: ``Source.labels``.
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
    directory: Path, target: str, weights: Arrays, files: ConfiguredDirectory, *, run_state: Arrays
) -> list[str]:
    """Writes weights, configuration, vocabulary and casing.

    Args:
      directory: an existing, empty directory.
      target: a key of ``formats.ORIGINS``.
      weights: float32 arrays under Google's names.
      files: the files next to the weights.
      run_state: optimizer state and counters; empty to write only weights.

    Returns:
      Messages for the user.

    Raises:
      UserError: the format cannot represent something.
      OSError: the disk is full.
    """
    naming = _naming_for(files.config, names.heads_of(weights))
    if target == "huggingface":
        left_out = _write_huggingface(directory, weights, files, run_state)
    else:
        left_out = []
        _write_tensorflow(directory, target, {**weights, **run_state}, files)
    return [*_notes_on_variables(left_out), *_notes(target, files, naming)]


def write_without_optimizer(checkpoint: str, directory: Path) -> None:
    """Writes a TensorFlow checkpoint's weights and its run's progress counters, under its name.

    ``directory`` exists; the file that names its newest checkpoint is written last. Raises
    UserError if the disk is full or the checkpoint cannot be read.
    """
    source, name = TensorflowCheckpoint(checkpoint), Path(checkpoint).name
    kept = [variable for variable in source.entries if not names.is_optimizer_state(variable)]
    try:
        write_checkpoint(str(directory / name), {key: source.read(key) for key in kept})
    except OSError as error:
        raise UserError(
            f"cannot write {directory / name} ({error.strerror}); free space there, or choose "
            "another directory."
        ) from error
    # A name without its directory, so that the directory can be moved.
    tf.train.update_checkpoint_state(str(directory), name)


def _write_tensorflow(
    directory: Path, target: str, arrays: Arrays, files: ConfiguredDirectory
) -> None:
    if target == "google":
        write_checkpoint(str(directory / "bert_model.ckpt"), arrays)
    else:
        name = f"model.ckpt-{int(arrays.get('global_step', 0))}"
        write_checkpoint(str(directory / name), arrays)
        # A name without its directory, so that the directory can be moved.
        tf.train.update_checkpoint_state(str(directory), name)
    write_model_files(
        directory, files.config, files.tokenizer_files, files.labels, files.text_classes
    )
    if target != "bert_tf" and files.config.hidden_act == "gelu_tanh":
        named_as_google = dataclasses.replace(files.config, hidden_act="gelu")
        write_json(directory / CONFIG_NAME, named_as_google.to_dict())


def _write_huggingface(
    directory: Path, weights: Arrays, files: ConfiguredDirectory, run_state: Arrays
) -> list[str]:
    """Returns the names of weights that DistilBERT, the format of some networks, lacks."""
    naming = _naming_for(files.config, names.heads_of(weights))
    _check_huggingface_has_place(naming, names.heads_of(weights), files, run_state)
    rows = {name: naming.by_google(name) for name in weights}
    heads = names.heads_of(name for name, row in rows.items() if row)
    config = huggingface_config(files, heads, _num_labels(weights))
    if naming is names.ELECTRA:
        config["embedding_size"] = weights[WORD_EMBEDDINGS].shape[1]
    write_json(directory / HUGGINGFACE_CONFIG_NAME, config)
    arrays = {}
    for name, row in rows.items():
        if row is not None:
            # Names in a network without a head have no prefix.
            key = row.huggingface if heads else row.huggingface[len(naming.prefix) :]
            values = weights[name].T if row.transposed else weights[name]
            arrays[key] = np.ascontiguousarray(values)
    weights_file = directory / "model.safetensors"
    save_file(arrays, weights_file, metadata={"format": "pt"})
    # The library makes the file private; copy the mode of another file, which has the umask's.
    shutil.copymode(directory / HUGGINGFACE_CONFIG_NAME, weights_file)
    files.tokenizer_files.copy_to(directory)
    write_tokenizer_config(
        directory,
        files.tokenizer_files,
        tokenizer_class=_tokenizer_class(naming),
        model_max_length=files.config.max_position_embeddings,
    )
    return [name for name, row in rows.items() if row is None]


def _check_huggingface_has_place(
    naming: names.Naming, heads: set[str], files: ConfiguredDirectory, run_state: Arrays
) -> None:
    if run_state:
        raise UserError(
            "--include_optimizer: a Hugging Face directory has no place for an optimizer's state; "
            "leave the flag out."
        )
    if naming is names.ELECTRA and not files.config.type_vocab_size:
        raise UserError(
            "the network has no token types (type_vocab_size 0), and Hugging Face's ELECTRA always "
            "has them; convert it to another format."
        )
    if naming is names.DISTILBERT and names.CLASSES in heads and files.labels is None:
        raise UserError(
            "the checkpoint has a text classification head but no token types, and DistilBERT, "
            "Hugging Face's form of a network without them, has no pooler for that head; convert "
            "it to another format."
        )


def _naming_for(config: BertConfig, heads: set[str]) -> names.Naming:
    """Hugging Face's naming of a network; its BERT classes always have token types."""
    if heads & {names.DISCRIMINATOR, names.GENERATOR_MASKED_LM}:
        return names.ELECTRA
    return names.BERT if config.type_vocab_size else names.DISTILBERT


def _tokenizer_class(naming: names.Naming) -> str:
    return f"{naming.class_prefix}Tokenizer"


def huggingface_config(
    files: ConfiguredDirectory, heads: set[str], num_labels: int | None
) -> dict[str, Any]:
    """The content of ``config.json`` for a network with these heads."""
    naming = _naming_for(files.config, heads)
    settings = files.config.to_dict()
    activation = files.config.hidden_act
    settings["hidden_act"] = _HUGGINGFACE_ACTIVATIONS.get(activation, activation)
    if naming is names.DISTILBERT:
        del settings["type_vocab_size"]
        settings = {DISTILBERT_KEYS.get(name, name): value for name, value in settings.items()}
        # The position table is stored, whether it was computed or trained.
        settings["sinusoidal_pos_embds"] = False
    else:
        settings.update(layer_norm_eps=1e-12, position_embedding_type="absolute")
    class_name = next(name for needed, name in _ARCHITECTURES if needed <= heads)
    if class_name == "ForSequenceClassification" and files.labels is not None:
        class_name = "ForTokenClassification"
    settings.update(
        model_type=naming.model_type,
        architectures=[f"{naming.class_prefix}{class_name}"],
        pad_token_id=_pad_id(files),
        torch_dtype="float32",
    )
    if num_labels is not None:
        labels = files.settings.get("id2label")
        if files.labels is not None:
            labels = {str(index): label for index, label in enumerate(files.labels)}
        if not isinstance(labels, dict) or len(labels) != num_labels:
            labels = {str(index): f"LABEL_{index}" for index in range(num_labels)}
        settings["id2label"] = labels
        settings["label2id"] = {label: int(index) for index, label in labels.items()}
    return settings


def _num_labels(weights: Arrays) -> int | None:
    bias = weights.get(f"{names.CLASSES}output_bias")
    return None if bias is None else len(bias)


def _pad_id(files: ModelDirectory) -> int:
    """The line of [PAD]; vocabularies other than BERT's do not have it first."""
    vocab_file = files.tokenizer_files.vocab_file
    if vocab_file is None:
        return 0
    with open(vocab_file, encoding="utf-8", newline="\n") as file:
        return next((index for index, line in enumerate(file) if line.strip() == "[PAD]"), 0)


def _notes_on_variables(left_out: Sequence[str]) -> list[str]:
    if not left_out:
        return []
    return [
        f"{len(left_out)} of these left out, since DistilBERT, Hugging Face's form of a network "
        f"without token types, has no pooler: {', '.join(left_out)}"
    ]


def _notes(target: str, files: ConfiguredDirectory, naming: names.Naming) -> list[str]:
    notes = []
    if target in ("google", "nvidia") and files.config.hidden_act == "gelu_erf":
        notes.append(
            f"warning: the model was made with the exact GELU, which {CONFIG_NAME} calls gelu_erf; "
            "Google's and NVIDIA's code refuse that name and with \"gelu\" they compute the tanh "
            "form, so outputs differ slightly"
        )
    if target in ("google", "nvidia") and not files.config.type_vocab_size:
        notes.append(
            "warning: the model has no token types (type_vocab_size 0), and Google's and NVIDIA's "
            "code cannot build a network without them"
        )
    if files.tokenizer_files.file is None:
        notes.append("no vocabulary is stored with the checkpoint; --vocab_file adds one")
    elif files.tokenizer_files.do_lower_case is None:
        notes.append(
            "nothing records whether the vocabulary is lower-cased; --do_lower_case or "
            "--nodo_lower_case does"
        )
    if target == "huggingface" and files.tokenizer_files.spm_model_file is not None:
        notes.append(
            f"warning: {_tokenizer_class(naming)} does not read SentencePiece models; encode "
            "texts by other means"
        )
    return notes
