"""The network of a pre-training run and its vocabulary, from flags, records and weights.

Flags take precedence over the records, and these over the files stored with the weights that the
run starts from. All of them must agree, except that without weights the vocabulary determines the
size of the word embeddings.
"""

from __future__ import annotations

import dataclasses

from bert_tf.checkpoint.model_files import ModelFiles, model_files
from bert_tf.checkpoint.same_model import known_configs
from bert_tf.config.settings import PretrainingSettings
from bert_tf.model.config import BertConfig, read_config
from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.pretraining.flags import NO_MODEL
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary, vocabulary_named_in
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError
from bert_tf.util.notes import Grade, Note

# BERT-base as released, except for the vocabulary.
_BERT_BASE = {"type_vocab_size": 2}

# Tables may be padded by fewer rows than this beyond the vocabulary, for fast matrix products.
_PADDING = 128


@dataclasses.dataclass(frozen=True)
class PretrainingModel:
    """The model that a run trains, with the files for its model directory.

    Attributes:
      config: the network's configuration.
      vocabulary: the records' vocabulary; None if unknown.
      vocabulary_sha256: its hash, for the run's ledger.
      tokenizer_files: its file, and whether the text was lower-cased, as far as they are known.
      notes: sentences on settings in its file that are not followed.
      remarks: what was decided and is worth knowing.
    """

    config: BertConfig
    vocabulary: Vocabulary | None
    vocabulary_sha256: str | None
    tokenizer_files: TokenizerFiles
    notes: tuple[str, ...]
    remarks: tuple[Note, ...]


def find_model(
    settings: PretrainingSettings, run: Run, records: RecordVocabulary | None
) -> PretrainingModel:
    """Collects network and vocabulary on rank 0, the only one that needs to see a model's files.

    Raises UserError if something is missing or contradictory.
    """
    weights = run.start.checkpoint or settings.run.init_checkpoint
    found = _find(settings, weights, records) if run.ranks.is_chief else None
    return run.ranks.broadcast(found)


def _find(
    settings: PretrainingSettings, weights: str | None, records: RecordVocabulary | None
) -> PretrainingModel:
    stored = model_files(weights) if weights else ModelFiles()
    files = settings.tokenizer_files
    size, vocabulary, sha256 = None, None, None
    if files.file:
        tokenizer = files.load()
        vocabulary, size = files.vocabulary(), tokenizer.vocab_size
        sha256 = tokenizer.vocab_sha256
    if records is not None:
        vocabulary = _record_vocabulary(records, vocabulary)
        size, sha256 = records.entry.size, records.entry.sha256
    config, notes, remarks = _network(settings, weights, stored, vocabulary_size=size)
    files = files.with_vocabulary_of(_vocabulary_files(records, stored))
    if settings.run.do_train and not files.file:
        unsaved = (
            "no vocabulary is stored with the records or the initial weights, so it is not saved "
            f"in {settings.run.output_dir}; give --vocab_file to save it"
        )
        remarks.append(Note(Grade.HINT, "vocabulary", unsaved))
    return PretrainingModel(
        config=config,
        vocabulary=vocabulary,
        vocabulary_sha256=sha256,
        tokenizer_files=_with_casing(files, records, of_model=stored.tokenizer_files.do_lower_case),
        notes=tuple(notes),
        remarks=tuple(remarks),
    )


def _record_vocabulary(records: RecordVocabulary, given: Vocabulary | None) -> Vocabulary:
    """The records' vocabulary; raises UserError if ``given`` is another one."""
    vocabulary = vocabulary_named_in(records.manifest_file, records.entry.sha256)
    if given is not None and not given.is_same(vocabulary):
        raise UserError(
            f"the records of {records.manifest_file} were made with another vocabulary than "
            f"{given.source}; give the vocabulary of the records, or none."
        )
    return vocabulary


def _network(
    settings: PretrainingSettings,
    weights: str | None,
    stored: ModelFiles,
    *,
    vocabulary_size: int | None,
) -> tuple[BertConfig, list[str], list[Note]]:
    """The architecture, notes on settings in its file that are not followed, and remarks."""
    if weights:
        _check_sizes(settings, weights, stored)
    notes: list[str] = []
    remarks: list[Note] = []
    if settings.bert_config_file:
        config, notes = read_config(settings.bert_config_file)
        base = config.to_dict()
    elif stored.config is not None:
        base = stored.config.to_dict()
        notes += stored.notes
    elif weights:
        raise UserError(f"no bert_config.json was found for {weights}; give --bert_config_file.")
    elif settings.network:
        base = _BERT_BASE
    else:
        raise UserError(NO_MODEL)
    if "vocab_size" not in settings.network:
        in_file = base.get("vocab_size")
        size = table_size(in_file, vocabulary_size)
        # Weights fix the size of the table; the vocabulary's is used if they have it, so that the
        # same command resumes a run that started with it.
        if weights and (stored.config is None or stored.config.vocab_size != size):
            size = in_file
        base = {**base, "vocab_size": size}
        if in_file not in (None, size):
            hint = f"; give --vocab_size={in_file} to keep that" if in_file > size else ""
            resized = (
                f"the network's vocab_size is {size}, the vocabulary's, not {in_file} as in "
                f"{settings.bert_config_file}{hint}"
            )
            remarks.append(Note(Grade.HINT, "configuration", resized))
    names = " ".join(f"--{name}={value}" for name, value in settings.network.items())
    file = settings.bert_config_file or stored.config_file
    shown = " with ".join(filter(None, [str(file) if file else "", names]))
    return BertConfig.from_dict({**base, **settings.network}, source=shown), notes, remarks


def table_size(in_file: int | None, vocabulary_size: int | None) -> int:
    """Rows of new word embeddings: the vocabulary's size, or the file's if that is padded."""
    if vocabulary_size is None:
        if in_file is None:
            raise UserError(
                "the size of the records' vocabulary is unknown; give --vocab_file or --vocab_size."
            )
        return in_file
    is_padded = in_file is not None and 0 <= in_file - vocabulary_size < _PADDING
    return in_file if is_padded else vocabulary_size


def _check_sizes(settings: PretrainingSettings, weights: str, stored: ModelFiles) -> None:
    """Raises UserError for a flag that contradicts the configuration of the weights."""
    for path, config in known_configs(stored):
        requested = dataclasses.replace(config, **settings.network)
        for name in config.differences(requested).function:
            raise UserError(
                f"--{name}={settings.network[name]} contradicts {path}, which has "
                f"{getattr(config, name)} for the weights in {weights}; leave the flag out."
            )


def _vocabulary_files(records: RecordVocabulary | None, stored: ModelFiles) -> TokenizerFiles:
    """The vocabulary's file stored with the records or, if it is the same, with the weights."""
    if records is not None and records.file is not None:
        kind = "vocab_file" if records.entry.kind == "wordpiece" else "spm_model_file"
        return TokenizerFiles(**{kind: records.file})
    known = stored.tokenizer_files.vocabulary()
    if records is not None and known is not None and records.entry.sha256 not in known.sha256:
        return TokenizerFiles()
    return stored.tokenizer_files


def _with_casing(
    files: TokenizerFiles, records: RecordVocabulary | None, *, of_model: bool | None
) -> TokenizerFiles:
    """The files with the casing of the records or, without a manifest, of the model.

    Raises UserError if the flag or the model contradicts the records.
    """
    given = files.do_lower_case
    if records is None:
        if files.vocab_file is None and given is None and of_model is None:
            return files
        return files.with_casing(of_model)
    of_records = records.entry.lower_case
    others = {"--do_lower_case": given, "the model's do_lower_case": of_model}
    for source, value in others.items():
        if value not in (None, of_records):
            raise UserError(
                f"{source} is {str(value).lower()}, but the records of "
                f"{records.manifest_file} were made with {str(of_records).lower()}; make them "
                "again with the model's casing, or give another --init_checkpoint."
            )
    return dataclasses.replace(files, do_lower_case=of_records)
