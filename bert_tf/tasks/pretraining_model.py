"""The network of a pre-training run and its vocabulary, from flags, records and weights.

What is given by itself counts first, then the records, then what stands beside the weights that the
run starts from. All of it must agree; only the size of a vocabulary that no weights were trained
with yet is taken over.
"""

from __future__ import annotations

import dataclasses

from bert_tf.checkpoint.model_files import ModelFiles, model_files
from bert_tf.checkpoint.same_model import known_configs
from bert_tf.config.bert_config import BertConfig, read_config
from bert_tf.config.pretraining_flags import NO_MODEL
from bert_tf.config.settings import PretrainingSettings
from bert_tf.errors import UserError
from bert_tf.records.info import RecordVocabulary
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary, vocabulary_named_in
from bert_tf.training.context import RunContext

# BERT-base as it was released, but for the vocabulary.
_BERT_BASE = {"type_vocab_size": 2}

# Tables are made longer than the vocabulary by less than this, for the sake of fast products.
_PADDING = 128


@dataclasses.dataclass(frozen=True)
class PretrainingModel:
    """What a run trains, and what the next command needs to know of it.

    Attributes:
      config: the network's.
      vocabulary: of the records; None where nobody says which one it is.
      vocabulary_sha256: its hash, for the record of the run.
      tokenizer_files: where it is, and whether the text was lower-cased, as far as that is known.
      notes: sentences on what was decided.
    """

    config: BertConfig
    vocabulary: Vocabulary | None
    vocabulary_sha256: str | None
    tokenizer_files: TokenizerFiles
    notes: tuple[str, ...]


def find_model(
    settings: PretrainingSettings, context: RunContext, records: RecordVocabulary | None
) -> PretrainingModel:
    """Collects network and vocabulary, on rank 0, which alone needs to see the files of a model.

    Raises UserError where something is missing, or two of them contradict each other.
    """
    weights = context.start.checkpoint or settings.run.init_checkpoint
    found = _find(settings, weights, records) if context.ranks.is_chief else None
    return context.ranks.broadcast(found)


def _find(
    settings: PretrainingSettings, weights: str | None, records: RecordVocabulary | None
) -> PretrainingModel:
    beside = model_files(weights) if weights else ModelFiles()
    files = settings.tokenizer_files
    size, vocabulary, sha256 = None, None, None
    if files.file:
        tokenizer = files.load()
        vocabulary, size = files.vocabulary(), tokenizer.vocab_size
        sha256 = tokenizer.vocab_sha256
    if records is not None:
        vocabulary = _of_records(records, vocabulary)
        size, sha256 = records.entry.size, records.entry.sha256
    config, notes = _network(settings, weights, beside, vocabulary_size=size)
    files = files.with_vocabulary_of(_files_of(records, beside))
    if settings.run.do_train and not files.file:
        notes.append(
            "the vocabulary lies neither with the records nor beside weights, so that "
            f"{settings.run.output_dir} will not hold it; --vocab_file gives it"
        )
    return PretrainingModel(
        config=config,
        vocabulary=vocabulary,
        vocabulary_sha256=sha256,
        tokenizer_files=_with_casing(files, records, said=beside.tokenizer_files.do_lower_case),
        notes=tuple(notes),
    )


def _of_records(records: RecordVocabulary, given: Vocabulary | None) -> Vocabulary:
    """The vocabulary of the records, which one that is given by itself must be."""
    own = vocabulary_named_in(records.manifest_file, records.entry.sha256)
    if given is not None and not given.is_same(own):
        raise UserError(
            f"the records of {records.manifest_file} were made with another vocabulary than "
            f"{given.source}; give that one or none."
        )
    return own


def _network(
    settings: PretrainingSettings,
    weights: str | None,
    beside: ModelFiles,
    *,
    vocabulary_size: int | None,
) -> tuple[BertConfig, list[str]]:
    """The architecture, and sentences on what it does not take from its file."""
    if weights:
        _refuse_other_sizes(settings, weights, beside)
    notes: list[str] = []
    if settings.bert_config_file:
        config, notes = read_config(settings.bert_config_file)
        base = config.to_dict()
    elif beside.config is not None:
        base = beside.config.to_dict()
        notes += beside.notes
    elif weights:
        raise UserError(f"{weights} has no bert_config.json beside it; give --bert_config_file.")
    elif settings.network:
        base = _BERT_BASE
    else:
        raise UserError(NO_MODEL)
    if "vocab_size" not in settings.network:
        in_file = base.get("vocab_size")
        size = _table_size(in_file, vocabulary_size)
        # The same command goes on with a run whose table it made so long, and with no other.
        if weights and (beside.config is None or beside.config.vocab_size != size):
            size = in_file
        base = {**base, "vocab_size": size}
        if in_file not in (None, size):
            kept = f"; --vocab_size={in_file} keeps that" if in_file > size else ""
            notes.append(
                f"the network's vocab_size is the vocabulary's {size}, not "
                f"{settings.bert_config_file}'s {in_file}{kept}"
            )
    names = " ".join(f"--{name}={value}" for name, value in settings.network.items())
    file = settings.bert_config_file or beside.config_file
    shown = " with ".join(filter(None, [str(file) if file else "", names]))
    return BertConfig.from_dict({**base, **settings.network}, source=shown), notes


def _table_size(in_file: int | None, vocabulary_size: int | None) -> int:
    """The word embeddings' rows where no weights have them yet: the vocabulary's, or padded."""
    if vocabulary_size is None:
        if in_file is None:
            raise UserError(
                "nothing says how large the vocabulary of the records is; give --vocab_file or "
                "--vocab_size."
            )
        return in_file
    is_padded = in_file is not None and 0 <= in_file - vocabulary_size < _PADDING
    return in_file if is_padded else vocabulary_size


def _refuse_other_sizes(settings: PretrainingSettings, weights: str, beside: ModelFiles) -> None:
    """Raises UserError for a flag that contradicts what is known of the weights."""
    for path, config in known_configs(beside):
        asked = dataclasses.replace(config, **settings.network)
        wrong = config.differences(asked).function
        for name in wrong:
            raise UserError(
                f"--{name}={settings.network[name]} contradicts {path}, which says "
                f"{getattr(config, name)} of the weights in {weights}; leave the flag out."
            )


def _files_of(records: RecordVocabulary | None, beside: ModelFiles) -> TokenizerFiles:
    """The vocabulary's file with the records or, if it is the same one, beside the weights."""
    if records is not None and records.file is not None:
        kind = "vocab_file" if records.entry.kind == "wordpiece" else "spm_model_file"
        return TokenizerFiles(**{kind: records.file})
    known = beside.tokenizer_files.vocabulary()
    if records is not None and known is not None and records.entry.sha256 not in known.sha256:
        return TokenizerFiles()
    return beside.tokenizer_files


def _with_casing(
    files: TokenizerFiles, records: RecordVocabulary | None, *, said: bool | None
) -> TokenizerFiles:
    given = files.do_lower_case
    if records is None:
        if files.vocab_file is None and given is None and said is None:
            return files
        return files.with_casing(said)
    own = records.entry.lower_case
    others = {"--do_lower_case": given, "the model's do_lower_case": said}
    for source, value in others.items():
        if value not in (None, own):
            raise UserError(
                f"{source} is {str(value).lower()}, but the records of "
                f"{records.manifest_file} were made with {str(own).lower()}; make them again as "
                "the model wants them, or give another --init_checkpoint."
            )
    return dataclasses.replace(files, do_lower_case=own)
