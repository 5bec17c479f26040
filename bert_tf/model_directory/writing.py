"""Turns a directory into a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.model_directory.directory import TOKENIZER_CONFIG_NAME
from bert_tf.model_directory.labels import TEXT_CLASSES_NAME, Labels, write_labels
from bert_tf.text.tokenizer_files import VOCABULARY_SHA256_KEY, TokenizerFiles
from bert_tf.util.files import PathLike, read_json_object, write_json

if TYPE_CHECKING:
    from bert_tf.model_directory.text_classes import TextClasses


def write_model_files(
    directory: PathLike,
    config: BertConfig,
    tokenizer_files: TokenizerFiles,
    labels: Labels | None = None,
    text_classes: TextClasses | None = None,
) -> None:
    """Makes ``directory`` a model directory; replaces existing files.

    Args:
      directory: an existing directory.
      config: written as ``bert_config.json``, with an unambiguous GELU.
      tokenizer_files: the vocabulary is copied; casing and rules are written to
        ``tokenizer_config.json`` unless nothing is known of them.
      labels: labels of a token classification head, by number; None for a model without one.
      text_classes: the classes of a head for whole texts; None for a model without one.
    """
    directory = Path(directory)
    write_json(directory / CONFIG_NAME, config.with_explicit_gelu().to_dict())
    tokenizer_files.copy_to(directory)
    if tokenizer_files.settings():
        write_tokenizer_config(directory, tokenizer_files)
    write_labels(directory, labels)
    if text_classes is None:  # one of other weights would be taken for these
        (directory / TEXT_CLASSES_NAME).unlink(missing_ok=True)
    else:
        from bert_tf.model_directory.text_classes import write_text_classes

        write_text_classes(directory, text_classes)


def write_tokenizer_config(
    directory: Path, tokenizer_files: TokenizerFiles, **settings: Any
) -> None:
    """Writes ``tokenizer_config.json`` with the settings, and what is known of the tokenizer."""
    write_json(directory / TOKENIZER_CONFIG_NAME, {**settings, **tokenizer_files.settings()})


def name_vocabulary(directory: Path, sha256: str) -> None:
    """Adds a vocabulary's hash to ``tokenizer_config.json``, for models without the file."""
    path = directory / TOKENIZER_CONFIG_NAME
    settings = read_json_object(path, what="tokenizer configuration") if path.is_file() else {}
    write_json(path, {**settings, VOCABULARY_SHA256_KEY: sha256})
