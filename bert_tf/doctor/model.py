"""Architecture, vocabulary, weights and output directory of a run, each by itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import flags

from bert_tf.doctor.findings import Findings
from bert_tf.model.config import BertConfig, read_config
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.model_directory.same_model import other_vocabulary
from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.pretraining.network import table_size
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary, vocabulary_named_in
from bert_tf.train.start_point import StartPoint, find_start
from bert_tf.util.directory_lock import LOCK_NAME, named_holder
from bert_tf.util.errors import UserError
from bert_tf.util.files import check_output_dir, require_file

CONFIGURATION, VOCABULARY, CHECKPOINT, OUTPUT = (
    "configuration",
    "vocabulary",
    "checkpoint",
    "output directory",
)

_EMPTY = StartPoint(None, 0, 0, 0)


def judge_output(findings: Findings, values: flags.FlagValues) -> StartPoint:
    """The start that the output directory gives."""
    if not values.output_dir:
        return _EMPTY  # the flags say so
    directory = Path(values.output_dir)
    findings.attempt(OUTPUT, check_output_dir, directory, flag="output_dir")
    if not directory.is_dir():
        findings.fine(OUTPUT, f"{directory} does not exist yet")
        return _EMPTY
    holder = named_holder(directory)
    if holder is not None and holder.may_be_alive:
        findings.warn(
            OUTPUT,
            f"{directory} is in use by {holder}; wait for it to end, or choose another directory",
        )
    elif holder is not None:
        findings.hint(OUTPUT, f"{directory} was last used by {holder}, which did not exit normally")
    start = findings.attempt(OUTPUT, find_start, directory) or _EMPTY
    if start.checkpoint is not None:
        findings.fine(OUTPUT, f"the run goes on at step {start.step:,} of {start.checkpoint}")
    elif any(path.name != LOCK_NAME for path in directory.iterdir()):
        findings.hint(OUTPUT, f"{directory} is not empty, but has no checkpoint to go on from")
    return start


def has_weights(values: flags.FlagValues, start: StartPoint) -> bool:
    """Whether the run starts from weights, which fix the network and its vocabulary."""
    return bool(start.checkpoint or values.resume_from or values.init_checkpoint)


def open_weights(findings: Findings, values: flags.FlagValues, start: StartPoint) -> ModelDirectory:
    """The files that accompany the weights that the run starts from; empty without any."""
    given = {name: values[name].value for name in ("init_checkpoint", "resume_from")}
    for name, path in given.items():
        if path:
            findings.attempt(CHECKPOINT, require_checkpoint, path, flag=name)
    weights = start.checkpoint or given["resume_from"] or given["init_checkpoint"]
    if not weights:
        return ModelDirectory()
    return findings.attempt(CHECKPOINT, ModelDirectory.of, weights) or ModelDirectory()


def open_vocabulary(findings: Findings, values: flags.FlagValues) -> TokenizerFiles:
    """The vocabulary that the flags name; empty without one, and for one that cannot be read."""
    files = findings.attempt(VOCABULARY, TokenizerFiles.from_flags, values)
    if files is None or files.file is None:
        return TokenizerFiles()
    tokenizer = findings.attempt(VOCABULARY, files.load)
    findings.attempt(VOCABULARY, files.with_casing, None)
    if tokenizer is None:
        return TokenizerFiles()
    findings.fine(VOCABULARY, f"{files.file} has {tokenizer.vocab_size:,} entries")
    return files


def open_config(
    findings: Findings, values: flags.FlagValues, stored: ModelDirectory, *, vocab_size: int | None
) -> BertConfig | None:
    """The architecture from its file, that of the weights, or flags; None if it is not known.

    New weights have ``vocab_size`` rows, as long as no flag says otherwise.
    """
    names = [field.name for field in dataclasses.fields(BertConfig)]
    given = {name: values[name].value for name in names if name in values}
    given = {name: value for name, value in given.items() if value is not None}
    base = {}
    if values.bert_config_file:
        read = findings.attempt(CONFIGURATION, _read_config, values.bert_config_file)
        if read is None:
            return None
        base = read.to_dict()
    elif stored.config is not None:
        base = stored.config.to_dict()
    elif not given:
        return None
    if stored.config is None and vocab_size is not None:
        base["vocab_size"] = table_size(base.get("vocab_size"), vocab_size)
    if "vocab_size" not in {**base, **given}:
        return None
    shown = str(values.bert_config_file or stored.config_file or "the flags")
    return findings.attempt(
        CONFIGURATION, BertConfig.from_dict, {"type_vocab_size": 2, **base, **given}, source=shown
    )


def _read_config(path: str) -> BertConfig:
    return read_config(require_file(path, flag="bert_config_file"))[0]


def judge_positions(
    findings: Findings, config: BertConfig, max_seq_length: int, *, trains_new_ones: bool
) -> None:
    """Compares the length of sequences with the network's positions.

    ``trains_new_ones`` says that these start from random values and are pre-trained.
    """
    positions = config.max_position_embeddings
    if max_seq_length > positions:
        findings.error(
            CONFIGURATION,
            f"--max_seq_length={max_seq_length} is more than the model's "
            f"max_position_embeddings={positions}; lower it or use another model.",
        )
    elif max_seq_length < positions and trains_new_ones:
        findings.hint(
            CONFIGURATION,
            f"--max_seq_length={max_seq_length} leaves the positions up to "
            f"max_position_embeddings={positions} untrained; a later phase has to train them",
        )
    else:
        findings.fine(
            CONFIGURATION, f"{max_seq_length} of the network's {positions} positions are used"
        )


def judge_vocabulary_of_weights(
    findings: Findings, stored: ModelDirectory, used: Vocabulary | None
) -> None:
    """Compares the vocabulary of the data with that of the weights."""
    if stored == ModelDirectory():
        return
    problem, notes = other_vocabulary(stored, used)
    if problem:
        findings.error(
            CHECKPOINT,
            f"the vocabulary of the weights is another one: {problem}; make data with that of the "
            "checkpoint, or use another checkpoint",
        )
    for note in notes:
        findings.hint(CHECKPOINT, note)
    if not (problem or notes):
        findings.fine(CHECKPOINT, f"its vocabulary is that of {used.source}")


def vocabulary_of(files: TokenizerFiles, records: RecordVocabulary | None) -> Vocabulary | None:
    """The vocabulary that is used: that of records or, without a manifest, a file's."""
    if records is not None:
        return vocabulary_named_in(records.manifest_file, records.entry.sha256)
    return files.vocabulary()


def require_no_phases(values: flags.FlagValues) -> None:
    """Raises UserError for a plan of several runs."""
    if "phases" in values and values.phases:
        first = values.phases.split(",")[0].strip()
        raise UserError(
            f"--phases={values.phases} names several runs; look at each by itself, with "
            f"--flagfile={first} in place of --phases (the run itself checks all of them before "
            "the first one starts)."
        )
