"""Examines the parts of a run that cannot be opened one by one, so that all mistakes show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.doctor.findings import Findings
from bert_tf.doctor.planned import HELD_OUT, TRAINING, PlannedRun, Records, Updates
from bert_tf.doctor.training_scripts import OF_RECORDS, SCRIPTS
from bert_tf.input.mixture import open_sources
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import check_vocabulary_fits
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.model_directory.same_model import other_vocabulary
from bert_tf.ranks.planned import PlannedRanks
from bert_tf.records.info import RecordInfo, check_records, lengths_of
from bert_tf.tasks.pretraining.data import check_pairs
from bert_tf.tasks.pretraining.network import BERT_BASE, table_size
from bert_tf.text.tokenizer_files import TokenizerFiles, vocabulary_named_in
from bert_tf.train.plan import plan_batch_and_steps
from bert_tf.train.start_point import NEW, StartPoint, find_start
from bert_tf.util.console import Grade, Note
from bert_tf.util.files import check_output_dir

_RECORDS = (  # part, the flag that makes a run read it, and the names of the records' flag
    (TRAINING, "do_train", ("input_file", "input_files_dir")),
    (HELD_OUT, "do_eval", ("eval_file", "eval_files_dir")),
)


def open_parts(
    findings: Findings, script: str, values: flags.FlagValues, ranks: PlannedRanks
) -> PlannedRun:
    """Returns what can be known of a run, and records the mistakes in each of its parts."""
    is_pretraining = script in OF_RECORDS
    start, stored = _weights(findings, values)
    files = _vocabulary(findings, values)
    opened = [_records(findings, values, *row) for row in _RECORDS] if is_pretraining else []
    found = [records for records in opened if records is not None]
    config = findings.attempt("configuration", _config, values, stored, found)
    lengths = _lengths(values, config, found)
    for part, _, info in found:
        size = config.vocab_size if config else max(info.vocab_size or 0, info.highest_id + 1)
        findings.attempt(part, check_records, info, vocab_size=size, **lengths)
        if values.nsp:
            findings.attempt(part, check_pairs, [info])
    if config is not None:
        length = lengths["max_seq_length"]
        described = f"--max_seq_length={length} is"
        findings.attempt("configuration", config.check_length, length, described)
        if files.file is not None and not is_pretraining:
            findings.attempt("vocabulary", check_vocabulary_fits, files.load(), config)
    of_records = next((info.vocabulary for _, _, info in found if info.vocabulary), None)
    vocabulary = files.vocabulary()
    if of_records is not None:
        vocabulary = vocabulary_named_in(of_records.manifest_file, of_records.entry.digest)
    # Fine-tuning uses the vocabulary stored with its weights unless another one is given.
    is_compared = stored != ModelDirectory() and (is_pretraining or vocabulary is not None)
    if is_compared:
        problem, uncompared = other_vocabulary(stored, vocabulary)
        findings.extend(Note(Grade.HINT, "checkpoint", sentence) for sentence in uncompared)
        if problem:
            findings.error(
                "checkpoint",
                f"the weights have a different vocabulary: {problem}; make data with that of the "
                "checkpoint, or use another checkpoint",
            )
    train = next((info for part, _, info in found if part == TRAINING), None)
    given = ("init_checkpoint", "resume_from", "teacher_checkpoint")
    return PlannedRun(
        is_pretraining,
        Path(values.output_dir) if values.output_dir else None,
        start,
        is_new=not (start.checkpoint or any(values[n].value for n in given if n in values)),
        vocabulary=vocabulary if is_compared else None,
        config=config,
        max_seq_length=lengths["max_seq_length"],
        updates=_updates(findings, script, values, ranks, train) if values.do_train else None,
        records=found,
    )


def _weights(findings: Findings, values: flags.FlagValues) -> tuple[StartPoint, ModelDirectory]:
    """The start found in the output directory, and the model files next to the weights."""
    start = NEW
    if values.output_dir:  # otherwise, parsing the flags reports that it is missing
        directory = Path(values.output_dir)
        findings.attempt("output directory", check_output_dir, directory, flag="output_dir")
        start = findings.attempt("output directory", find_start, directory) or NEW
    for name in ("init_checkpoint", "resume_from"):
        if values[name].value:
            findings.attempt("checkpoint", require_checkpoint, values[name].value, flag=name)
    weights = start.checkpoint or values.resume_from or values.init_checkpoint
    found = findings.attempt("checkpoint", ModelDirectory.of, weights) if weights else None
    return start, found or ModelDirectory()


def _vocabulary(findings: Findings, values: flags.FlagValues) -> TokenizerFiles:
    """The vocabulary that the flags name; empty if none is given or it cannot be read."""
    files = findings.attempt("vocabulary", TokenizerFiles.from_flags, values)
    if files is None or files.file is None:
        return TokenizerFiles()
    tokenizer = findings.attempt("vocabulary", files.load)
    findings.attempt("vocabulary", files.with_casing)
    if tokenizer is None:
        return TokenizerFiles()
    findings.fine("vocabulary", f"{files.file} has {tokenizer.vocab_size:,} entries")
    return files


def _records(
    findings: Findings, values: flags.FlagValues, part: str, reader: str, names: Sequence[str]
) -> Records | None:
    """The records of a flag with two names; None if they are not used or cannot be read."""
    flag = next((name for name in names if values[name].value), None)
    if flag is None or not values[reader].value:
        return None

    def opened() -> Records:
        records, info, _ = open_sources(
            getattr(values, flag), flag=flag, seed=0, keep_offsets=False
        )
        return Records(part, records, info)

    return findings.attempt(part, opened)


def _config(
    values: flags.FlagValues, stored: ModelDirectory, records: Sequence[Records]
) -> BertConfig | None:
    """The architecture from its file, the weights or flags; None if it is unknown."""
    names = {field.name for field in dataclasses.fields(BertConfig)} & {*values}
    changes = {name: values[name].value for name in names if values[name].value is not None}
    base, path = stored.config, values.bert_config_file
    if path:
        base = ModelDirectory().with_config_file(path).config
    if base is None and not changes:
        return None
    network: dict[str, Any] = {**BERT_BASE} if base is None else base.to_dict()
    size = records[0].info.vocab_size if records else None
    if stored.config is None and size is not None:
        network["vocab_size"] = table_size(network.get("vocab_size"), size)
    network.update(changes)
    source = str(path or stored.config_file or "the flags")
    return BertConfig.from_dict(network, source=source) if "vocab_size" in network else None


def _lengths(
    values: flags.FlagValues, config: BertConfig | None, records: Sequence[Records]
) -> dict[str, int]:
    """Lengths that must match the records; those not given are the records' or the network's."""
    names = [name for name in ("max_seq_length", "max_predictions_per_seq") if name in values]
    lengths = {name: getattr(values, name) for name in names}
    follow = lengths_of(opened.info for opened in records)
    if config is not None and not records:
        follow = {names[0]: min(lengths[names[0]], config.max_position_embeddings)}
    return lengths | {name: n for name, n in follow.items() if not values[name].present}


def _updates(
    findings: Findings,
    script: str,
    values: flags.FlagValues,
    ranks: PlannedRanks,
    train: RecordInfo | None,
) -> Updates | None:
    """The planned updates, as far as they do not depend on records that cannot be read."""
    optimization = findings.attempt("schedule", SCRIPTS[script].optimization, values)
    if optimization is None:
        return None
    is_counted = train is not None or not optimization.steps.counts_epochs
    if not is_counted:
        optimization = optimization.with_steps(1, 0)
    plans = findings.attempt(
        "schedule",
        plan_batch_and_steps,
        optimization,
        ranks.world_size,
        scaled=optimization.steps.scaled_by_ranks(by_default=values.horovod),
        records=train.num_records if train else 1,
        trains=is_counted,
    )
    return plans and Updates(optimization, *plans, is_counted)
