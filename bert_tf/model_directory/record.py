"""``model.json``: what decides a model's predictions besides its weights, sealed.

The classes of its head and their thresholds, the settings with which it reads texts, and digests of
the files next to it that decide ids. Every command and ``load_model`` read it. It is written last,
once the other files of a model directory are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.durable.sealed_json import SEAL, read_sealed_json, sealed
from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.text.tokenizer import SPM_NAME, TOKENIZER_CONFIG_NAME, TOKENIZER_FILES, VOCAB_NAME
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.digest import VOCABULARY_DIGEST_KEY, digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, write_json

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes

MODEL_RECORD_NAME = "model.json"

_ADVICE = "restore it, or train the model again"
_INFINITIES = {float("inf"): "inf", float("-inf"): "-inf"}  # which JSON has not
_KEYS = {"vocabulary_digest": VOCABULARY_DIGEST_KEY}  # where they are not the names of attributes


@dataclasses.dataclass(frozen=True)
class ModelRecord:
    """The contents of a ``model.json``.

    Attributes:
      network: the architecture, with its GELU named ``gelu_tanh`` or ``gelu_erf``.
      vocabulary_digest: of the model's vocabulary; None if it is unknown.
      files: name -> SHA-256 of each file in the directory that decides ids.
      classes: what the outputs of the head mean; None without classes.
      settings: flag -> value (see ``config.declared.settings_of_model``), and the precision.
      chosen_on: the digest of the records for which the thresholds, and a checkpoint that is kept
        as the best, were chosen; None if nothing was.
    """

    network: Mapping[str, Any]
    vocabulary_digest: str | None = None
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: Classes | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chosen_on: str | None = None
    directory: Path = Path()

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / MODEL_RECORD_NAME

    @property
    def content(self) -> dict[str, Any]:
        """What the file has, its digest included."""
        values = dataclasses.asdict(self)
        del values["directory"]
        values = {_KEYS.get(name, name): value for name, value in values.items()}
        kept = {
            n: _INFINITIES.get(v, v) if type(v) is float else v for n, v in self.settings.items()
        }
        return sealed({**values, "settings": kept})

    @property
    def name(self) -> str:
        """The first digits of its digest, which stand for it in messages and results."""
        return self.content[SEAL][:12]

    @property
    def required_classes(self) -> Classes:
        """The classes; UserError without any."""
        if self.classes is None:
            raise UserError(f"model record {self.path}: it has no classes; {_ADVICE}.")
        return self.classes

    @property
    def config(self) -> BertConfig:
        """The architecture."""
        return BertConfig.from_dict(dict(self.network), source=str(self.path))


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


def write_record(record: ModelRecord) -> None:
    """Writes ``model.json``."""
    write_json(record.path, record.content)


def read_record(directory: Path) -> ModelRecord | None:
    """The record in a directory, whose other files were compared with it; None without one.

    Raises UserError if it is damaged or malformed, and for a file that is another one.
    """
    path = directory / MODEL_RECORD_NAME
    if not path.is_file():
        return None
    content = read_sealed_json(path, what="model record", advice=_ADVICE)
    try:
        record = _record(content, directory)
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        why = (
            str(error).rstrip(".") if isinstance(error, UserError) else "its entries are not valid"
        )
        raise UserError(f"model record {path}: {why}; {_ADVICE}.") from error
    _check_files(directory, record)
    return record


def require_record(directory: Path) -> ModelRecord:
    """Like :func:`read_record`, but UserError without a record."""
    record = read_record(directory)
    if record is None:
        raise UserError(f"model record {directory / MODEL_RECORD_NAME} is missing; {_ADVICE}.")
    return record


def _record(content: Mapping[str, Any], directory: Path) -> ModelRecord:
    classes = content["classes"]
    if classes is not None:
        from bert_tf.model_directory.classes import Classes

        labels, thresholds = tuple(classes["labels"]), tuple(classes["thresholds"])
        classes = Classes(classes["kind"], labels, thresholds)
    names = {key: name for name, key in _KEYS.items()}
    values = {names.get(key, key): value for key, value in content.items()}
    record = ModelRecord(**{**values, "classes": classes}, directory=directory)
    texts = [*record.files.values(), record.vocabulary_digest, record.chosen_on]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise UserError("its digests are not text")
    if not isinstance(record.settings, dict):
        raise UserError("its settings are not named values")
    _ = record.config  # raises its error now
    return record


def _check_files(directory: Path, record: ModelRecord) -> None:
    """Raises UserError for a file next to the record that is not the one of its digest."""
    for name, digest in record.files.items():
        path = directory / name
        if not path.is_file() and name in (VOCAB_NAME, SPM_NAME):
            continue  # another one may be given; that there is none is said where it is read
        if not path.is_file():
            raise UserError(
                f"{path} is missing, with which the model was trained or converted; restore it, or "
                "use another model."
            )
        if name == VOCAB_NAME:  # whose ends of lines may have been changed
            found = TokenizerFiles(path).required_vocabulary().spellings
        else:
            found = frozenset({digest_of_file(path)})
        if digest not in found:
            raise UserError(
                f"{path} is not the file with which the model was trained or converted, whose "
                f"digest is in {MODEL_RECORD_NAME} there; restore it, or use another model."
            )
