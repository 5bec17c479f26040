"""The model of a pre-training run: network and vocabulary, from flags, records and weights.

Flags take precedence over records, and records over the files stored with the weights that the run
starts from. All of them must agree, except that in a run without weights the vocabulary determines
the size of the word embeddings. What is left open is inherited, from a teacher or the phase before.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.pretraining.flags import NO_MODEL
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.tasks.pretraining.task import ObjectiveTask, PretrainingTask
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.train.job import InitialWeights, RunModel
from bert_tf.train.run import Run
from bert_tf.util.console import Grade, Note
from bert_tf.util.errors import UserError

# BERT-base as released, except for its vocabulary.
BERT_BASE = {"type_vocab_size": 2}

# Embeddings may have up to this many padding rows, less one, for fast matrix products.
_PADDING = 128


class Inherited(NamedTuple):
    """The architecture of a network with neither weights nor a file, and its vocabulary files."""

    config: BertConfig
    tokenizer_files: TokenizerFiles


def open_model(
    settings: PretrainingSettings,
    run: Run,
    records: RecordVocabulary | None,
    inherited: Inherited | None = None,
    *,
    sentence_order: bool,
) -> RunModel:
    """Finds network and vocabulary on rank 0, the only rank that needs access to their files.

    ``sentence_order``: as in :class:`PretrainingTask`.

    Collective. Raises UserError if something is missing or contradictory.
    """
    model = None
    if run.ranks.is_chief:
        model = _find_model(settings, run, records, inherited, sentence_order)
    return run.ranks.broadcast(model)


def _find_model(
    settings: PretrainingSettings,
    run: Run,
    records: RecordVocabulary | None,
    inherited: Inherited | None,
    sentence_order: bool,
) -> RunModel:
    weights = run.start.checkpoint or settings.run.start.init_checkpoint
    stored = ModelDirectory.of(weights) if weights else ModelDirectory()
    files = settings.tokenizer_files
    if inherited is not None:
        files = files.with_vocabulary_of(inherited.tokenizer_files)
    size, vocabulary = None, None
    if files.file:
        size, vocabulary = files.load().vocab_size, files.vocabulary()
    if records is not None:
        vocabulary, size = _record_vocabulary(records, vocabulary), records.entry.size
    config, notes, remarks = _network(settings, weights, stored, inherited, vocabulary_size=size)
    files = files.with_vocabulary_of(_vocabulary_files(records, stored))
    if settings.run.do_train and not files.file:
        unsaved = (
            "no vocabulary is stored with the records or the initial weights, so it is not saved "
            f"in {settings.run.output_dir}; give --vocab_file to save it"
        )
        remarks.append(Note(Grade.HINT, "vocabulary", unsaved))
    files = _with_casing(files, records, stored.tokenizer_files)
    run.report(notes, part="configuration")
    for remark in remarks:
        run.remark(remark.sentence, part=remark.part)
    task: ObjectiveTask
    if settings.objective is not None:
        task = settings.objective.task(config)
    else:
        heads = settings.masked_lm, settings.next_sentence
        task = PretrainingTask(config, *heads, sentence_order=sentence_order)
    return RunModel(
        task,
        vocabulary,
        tokenizer_files=files,
        initial=InitialWeights(settings.run.start.init_checkpoint),
        ledger=task.ledger(),
    )


def _record_vocabulary(records: RecordVocabulary, given: Vocabulary | None) -> Vocabulary:
    """The records' vocabulary; raises UserError if ``given`` is a different one."""
    digest = records.entry.digest
    vocabulary = Vocabulary(records.manifest_file, digest, frozenset({digest}))
    if given is not None and not given.is_same(vocabulary):
        raise UserError(
            f"the records of {records.manifest_file} were made with a different vocabulary than "
            f"{given.source}; give the vocabulary of the records, or none."
        )
    return vocabulary


def _network(
    settings: PretrainingSettings,
    weights: str | None,
    stored: ModelDirectory,
    inherited: Inherited | None,
    *,
    vocabulary_size: int | None,
) -> tuple[BertConfig, list[str], list[Note]]:
    """The architecture, notes on settings in its file that are not supported, and remarks."""
    if weights:
        _check_sizes(settings, weights, stored)
    given = settings.bert_config_file
    described = ModelDirectory().with_config_file(given) if given else stored
    notes, remarks = [*described.notes], []
    is_sized = "vocab_size" in settings.network
    if described.config is not None:
        base = described.config.to_dict()
    elif weights:
        raise UserError(f"no bert_config.json was found for {weights}; give --bert_config_file.")
    elif inherited is not None:
        base, is_sized = inherited.config.to_dict(), True
    elif settings.network:
        base = BERT_BASE
    else:
        raise UserError(NO_MODEL)
    if not is_sized:
        in_file: int | None = base.get("vocab_size")
        size = table_size(in_file, vocabulary_size)
        # Weights fix the size of the table; it is the vocabulary's size if the weights match it,
        # so that the command that started a run also resumes it.
        is_fixed = weights and (stored.config is None or stored.config.vocab_size != size)
        if is_fixed and in_file is not None:
            size = in_file
        base = {**base, "vocab_size": size}
        if in_file is not None and in_file != size:
            hint = f"; give --vocab_size={in_file} to keep that" if in_file > size else ""
            resized = (
                f"the network's vocab_size is {size}, the vocabulary's, not {in_file} as in "
                f"{described.config_file}{hint}"
            )
            remarks.append(Note(Grade.HINT, "configuration", resized))
    names = " ".join(f"--{name}={value}" for name, value in settings.network.items())
    shown = " with ".join(filter(None, [str(described.config_file or ""), names]))
    return BertConfig.from_dict({**base, **settings.network}, source=shown), notes, remarks


def table_size(in_file: int | None, vocabulary_size: int | None) -> int:
    """Rows of new word embeddings: the vocabulary's size, or the file's if that adds padding."""
    if vocabulary_size is None:
        if in_file is None:
            raise UserError(
                "the size of the records' vocabulary is unknown; give --vocab_file or --vocab_size."
            )
        return in_file
    if in_file is not None and 0 <= in_file - vocabulary_size < _PADDING:
        return in_file
    return vocabulary_size


def _check_sizes(settings: PretrainingSettings, weights: str, stored: ModelDirectory) -> None:
    """Raises UserError if a flag contradicts the configuration of the weights."""
    if stored.config is None:
        return
    requested = dataclasses.replace(stored.config, **settings.network)
    for name in stored.config.differences(requested).function:
        raise UserError(
            f"--{name}={settings.network[name]} contradicts {stored.config_file}, which has "
            f"{getattr(stored.config, name)} for the weights in {weights}; leave the flag out."
        )


def _vocabulary_files(records: RecordVocabulary | None, stored: ModelDirectory) -> TokenizerFiles:
    """The vocabulary file stored with the records or, if it is the same, with the weights."""
    if records is not None and records.file is not None:
        return records.entry.tokenizer_files(records.file)
    own = stored.tokenizer_files.vocabulary()
    if records is not None and own is not None and records.entry.digest not in own.spellings:
        return TokenizerFiles()
    return stored.tokenizer_files


def _with_casing(
    files: TokenizerFiles, records: RecordVocabulary | None, of_model: TokenizerFiles
) -> TokenizerFiles:
    """The files with the casing of the records or, without a manifest, of the model.

    Raises UserError if the flag or the model contradicts the records.
    """
    if records is None:
        is_known = {files.do_lower_case, of_model.do_lower_case} != {None}
        return files.with_casing(of_model) if files.vocab_file or is_known else files
    lower_case, strip_accents = records.entry.lower_case, records.entry.strip_accents
    strips = lower_case if strip_accents is None else strip_accents
    others = {
        "--do_lower_case": (files.do_lower_case, lower_case),
        "--strip_accents": (files.strip_accents, strips),
        "the model's do_lower_case": (of_model.do_lower_case, lower_case),
        "the model's strip_accents": (of_model.strips_accents, strips),
    }
    for source, (value, of_records) in others.items():
        if value not in (None, of_records):
            raise UserError(
                f"{source} is {str(value).lower()}, but the records of {records.manifest_file} "
                f"were made with {str(of_records).lower()}; make them again with the model's "
                "casing, or give another --init_checkpoint."
            )
    own = files.vocab_file, files.spm_model_file
    return TokenizerFiles(*own, lower_case, strip_accents, files.rules)
