"""Turns a directory into a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.model_directory.record import ModelRecord, write_record
from bert_tf.text.names import TOKENIZER_CONFIG_NAME, TOKENIZER_FILES
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.digest import digest_of_file
from bert_tf.util.files import PathLike, write_json

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes


def write_model_files(
    directory: PathLike,
    config: BertConfig,
    tokenizer_files: TokenizerFiles,
    classes: Classes | None = None,
    **facts: Any,
) -> None:
    """Makes an existing ``directory`` a model directory; replaces existing files.

    ``config`` becomes ``bert_config.json``, with an unambiguous GELU. The vocabulary is copied;
    casing and rules are written to ``tokenizer_config.json`` unless nothing is known of them. The
    other arguments are for the record, ``model.json``; see :func:`record_of`.
    """
    directory = Path(directory)
    write_json(directory / CONFIG_NAME, config.with_explicit_gelu().to_dict())
    tokenizer_files.copy_to(directory)
    if tokenizer_files.settings():
        write_tokenizer_config(directory, tokenizer_files)
    write_record(record_of(directory, config, tokenizer_files, classes=classes, **facts))


def record_of(
    directory: Path,
    config: BertConfig,
    tokenizer_files: TokenizerFiles,
    *,
    vocabulary_digest: str | None = None,
    **facts: Any,
) -> ModelRecord:
    """The record of a model whose files are in a directory.

    ``vocabulary_digest`` is that of a vocabulary that is not among the files, None if it is
    unknown. ``facts`` are further attributes of :class:`ModelRecord`.
    """
    vocabulary = tokenizer_files.vocabulary()
    paths = [directory / name for name in TOKENIZER_FILES]
    return ModelRecord(
        network=config.with_explicit_gelu().to_dict(),
        vocabulary_digest=vocabulary.digest if vocabulary else vocabulary_digest,
        files={path.name: digest_of_file(path) for path in paths if path.is_file()},
        directory=directory,
        **facts,
    )


def write_tokenizer_config(
    directory: Path, tokenizer_files: TokenizerFiles, **settings: Any
) -> None:
    """Writes ``tokenizer_config.json`` with the settings, and what is known of the tokenizer."""
    write_json(directory / TOKENIZER_CONFIG_NAME, {**settings, **tokenizer_files.settings()})
