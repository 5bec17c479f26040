"""The files next to weights: configuration, vocabulary, labels, record."""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.model.config import (
    CONFIG_NAME,
    BertConfig,
    config_notes,
    is_huggingface,
    read_config,
    read_config_file,
)
from bert_tf.model_directory.record import MODEL_RECORD_NAME, ModelRecord, read_record
from bert_tf.model_directory.run_record import (
    MODEL_RECORD_KEY,
    RUN_RECORD_NAME,
    RunRecord,
    read_run_record,
)
from bert_tf.text.tokenizer import TOKENIZER_FILES
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.digest import CLASSES_DIGEST_KEY
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, require_file

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes

HUGGINGFACE_CONFIG_NAME = "config.json"

# The files in our own model directories, in addition to the weights.
MODEL_FILES = (CONFIG_NAME, *TOKENIZER_FILES, RUN_RECORD_NAME, MODEL_RECORD_NAME)

SAFETENSORS_SUFFIX = ".safetensors"
PYTORCH_SUFFIXES = (".bin", ".pt", ".pth")
# Indices of large models whose weights are sharded over several files.
SHARD_INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")

# Possible names of the weights in a directory, in order of preference.
_PYTORCH_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "*.pt",
)

# The name of a model, or of its owner and the model.
_PUBLISHED_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_WEIGHTS = re.compile(r"\.ckpt|\.(safetensors|bin|pt|pth|index|json)$")


@dataclasses.dataclass(frozen=True)
class ModelDirectory:
    """The known files next to weights; empty for a run without weights.

    Attributes:
      config: the architecture, with its GELU named ``gelu_tanh`` or ``gelu_erf``.
      config_file: the file that states it: a configuration, or else the model's record.
      tokenizer_files: the vocabulary, with the casing and rules that its files state.
      notes: messages about settings that our network does not support.
      settings: the complete contents of the configuration file.
      record: what decides the model's predictions, as it was stored with it.
      classes: what the outputs of a classification head mean.
    """

    config: BertConfig | None = None
    config_file: Path | None = None
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run_record: RunRecord | None = None
    record: ModelRecord | None = None
    classes: Classes | None = None

    @classmethod
    def of(cls, path: PathLike) -> ModelDirectory:
        """Reads the files that accompany a checkpoint.

        ``path`` is a model directory (ours, Google's, NVIDIA's or Hugging Face's), a file in it, or
        the path of a TensorFlow checkpoint in it without file suffixes. Raises UserError for a
        missing directory, or a malformed file in it.
        """
        path = Path(path)
        directory = path if path.is_dir() else path.parent
        if not directory.is_dir():
            raise UserError(
                f"{path}: directory {directory} does not exist; give an existing checkpoint."
            )
        from_pytorch = find_pytorch_weights(path) is not None
        config_file = _find_config(directory, huggingface=from_pytorch)
        config, notes, values = None, [], {}
        record = read_record(directory)
        if config_file is not None:
            values = read_config_file(config_file)
            # Configurations of the oldest PyTorch models have none of the distinguishing keys.
            foreign = is_huggingface(values) or from_pytorch
            read = BertConfig.from_huggingface_dict if foreign else BertConfig.from_dict
            config = read(values, source=str(config_file)).with_explicit_gelu()
            notes += config_notes(values, source=config_file)
        run_record = read_run_record(directory)
        _check_record(record, run_record, config, config_file)
        if config is None and record is not None:
            config, config_file = record.config, record.path
        return cls(
            config=config,
            config_file=config_file,
            tokenizer_files=TokenizerFiles.in_directory(directory),
            notes=tuple(notes),
            settings=values,
            run_record=run_record,
            record=record,
            classes=_classes(directory, record, values, config_file),
        )

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels of words, by class number; None for a model without such a head."""
        return self.classes.labels if self.classes and self.classes.of_words else None

    def classes_of(self, kinds: Collection[str | None]) -> Classes | None:
        """The classes, if they are of one of these kinds; None for another head, or without one."""
        return self.classes if self.classes and self.classes.kind in kinds else None

    @property
    def facts(self) -> dict[str, Any]:
        """What a copy of the model has in its record besides its files."""
        return {
            "classes": self.classes,
            "settings": self.kept_settings,
            "chosen_on": self.record.chosen_on if self.record else None,
            "vocabulary_digest": self.record.vocabulary_digest if self.record else None,
        }

    @property
    def kept_settings(self) -> Mapping[str, Any]:
        """The settings that decide predictions: flag -> value."""
        return self.record.settings if self.record else {}

    def with_config_file(
        self, path: PathLike | None, *, flag: str = "bert_config_file"
    ) -> ModelDirectory:
        """These files with the architecture from the file given as ``flag``; None changes nothing.

        Raises UserError if the file is missing or malformed.
        """
        if not path:
            return self
        config, notes = read_config(require_file(path, flag=flag))
        return dataclasses.replace(
            self, config=config, config_file=Path(path), notes=(*self.notes, *notes)
        )


def require_checkpoint(path: PathLike, *, flag: str) -> None:
    """Raises UserError if no file or directory has this name, with or without a suffix.

    For the name of a published model, the message explains where to get its files.
    """
    path = Path(path)
    if path.exists() or any(path.parent.glob(f"{glob.escape(path.name)}.*")):
        return
    if _PUBLISHED_NAME.fullmatch(str(path)) and not _WEIGHTS.search(path.name):
        raise UserError(
            f"--{flag}={path} is neither a file nor a directory, and no model is downloaded by its "
            "name: put bert_config.json, vocab.txt and bert_model.ckpt.* of google-research/bert's "
            "released models, or config.json, vocab.txt, tokenizer_config.json and "
            "model.safetensors from the model's page on the Hugging Face hub, into a directory, "
            f"and give that as --{flag}."
        )
    raise UserError(
        f"--{flag}={path} does not exist; give a model directory, a weights file, or the path of a "
        "TensorFlow checkpoint without file suffixes."
    )


def find_pytorch_weights(path: Path) -> Path | None:
    """The weights file of a Hugging Face or other PyTorch model that ``path`` refers to.

    Returns None if ``path`` is neither such a file nor a directory with one. Raises UserError if a
    directory also contains a TensorFlow checkpoint, or several equally eligible files.
    """
    if not path.is_dir():
        suffixes = (SAFETENSORS_SUFFIX, *PYTORCH_SUFFIXES, *SHARD_INDEX_SUFFIXES)
        return path if path.name.endswith(suffixes) and path.is_file() else None
    found = next(filter(None, (sorted(path.glob(name)) for name in _PYTORCH_WEIGHTS)), [])
    checkpoints = sorted(path.glob("*.index")) if found else []
    if len(found) + len(checkpoints) > 1:
        names = ", ".join(file.name for file in (*found, *checkpoints))
        raise UserError(f"{path} contains several models, {names}; give the path of one file.")
    return found[0] if found else None


def _find_config(directory: Path, *, huggingface: bool) -> Path | None:
    names = [CONFIG_NAME, HUGGINGFACE_CONFIG_NAME]
    if huggingface:
        names.reverse()
    return next(filter(Path.is_file, map(directory.joinpath, names)), None)


def _check_record(
    record: ModelRecord | None,
    run_record: RunRecord | None,
    config: BertConfig | None,
    config_file: Path | None,
) -> None:
    """Raises UserError if a model's record is not that of the files next to it.

    Fewer layers, or classes in another order, change every prediction, and nothing else shows it.
    """
    if record is None:
        if run_record is not None and MODEL_RECORD_KEY in run_record.content:
            raise UserError(
                f"{run_record.path.parent} has no {MODEL_RECORD_NAME}, which {run_record.path} "
                "names and which says how the model reads texts; restore it."
            )
        return
    if config is not None and (differences := record.config.differences(config).function):
        raise UserError(
            f"{config_file} differs from {record.path}: {', '.join(differences.values())}; restore "
            "the file that was changed."
        )
    if run_record is None:
        return
    classes = record.classes and record.classes.digest
    if run_record.ledger.get("data", {}).get(CLASSES_DIGEST_KEY, classes) != classes:
        raise UserError(
            f"{record.path} names other classes than those of the training in {run_record.path}; "
            "restore the file that was changed."
        )


def _classes(
    directory: Path,
    record: ModelRecord | None,
    settings: Mapping[str, Any],
    config_file: Path | None,
) -> Classes | None:
    """The classes, in the record, Hugging Face's settings or a ``labels.txt``.

    Raises UserError if they are malformed, or the first two differ.
    """
    is_theirs = config_file is not None and settings.get("architectures") is not None
    if not is_theirs and record is not None:
        return record.classes
    from bert_tf.model_directory import classes

    if config_file is None or not is_theirs:
        return classes.classes_in_labels_file(directory)
    named = classes.classes_of_huggingface(settings, config_file)
    if record is None:
        return named
    if record.classes is not None and named is not None and record.classes.labels != named.labels:
        raise UserError(
            f"{config_file} names the classes {named.described()}, and {MODEL_RECORD_NAME} there "
            f"{record.classes.described()}; restore the file that was changed."
        )
    return record.classes or named
