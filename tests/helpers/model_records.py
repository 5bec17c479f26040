"""Reads and changes the record of a model, as a run that trained it would have written it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bert_tf.model_directory.classes import WORD_LABELS, Classes
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.model_directory.record import read_record, record_of, write_record
from bert_tf.text.tokenizer_files import TokenizerFiles


def set_record(directory: Path, **changes: Any) -> None:
    """Writes the record with other values; a directory without one gets it."""
    record = read_record(directory)
    if record is None:
        config = ModelDirectory.of(directory).config
        assert config is not None
        record = record_of(directory, config, TokenizerFiles())
    write_record(dataclasses.replace(record, **changes))


def set_labels(directory: Path, labels: tuple[str, ...] | None) -> None:
    """Makes a model one that labels words; None makes it one without a head of classes."""
    set_record(directory, classes=labels and Classes(WORD_LABELS, tuple(labels)))


def classes_in(directory: Path) -> Classes | None:
    """The classes in the record of a directory."""
    record = read_record(directory)
    return record and record.classes
