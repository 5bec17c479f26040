"""Examines the records of a pre-training run, held-out records included."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from absl import flags

from bert_tf.doctor.findings import Findings
from bert_tf.input.mixture import open_sources
from bert_tf.records.info import RecordInfo
from bert_tf.records.tokens import original_ids, text_positions, unusual_shares
from bert_tf.tasks.pretraining.data import OpenRecords
from bert_tf.text.unknown_share import MOST_USABLE
from bert_tf.text.vocabulary import capitalized, is_cased, read_vocab_file

LEAST_TOKENS_OF_AN_ENTRY = 20
LEAST_OF_VOCABULARY = 0.5
_SAMPLE = 512
_SHOWN = 3

TRAINING, HELD_OUT = "records", "held-out records"
_FLAGS = (  # part, the flag that makes a run read it, and the names of the records' flag
    (TRAINING, "do_train", ("input_file", "input_files_dir")),
    (HELD_OUT, "do_eval", ("eval_file", "eval_files_dir")),
)


def open_records(findings: Findings, values: flags.FlagValues) -> dict[str, OpenRecords]:
    """Part -> records, for those that a run reads, as far as they can be opened."""
    opened = {}
    for part, reader, names in _FLAGS:
        given = {name: values[name].value for name in names if values[name].value}
        if given and values[reader].value:
            [(flag, patterns), *_] = given.items()
            asked = {"flag": flag, "seed": 0, "keep_offsets": False}
            records = findings.attempt(part, open_sources, patterns, **asked)
            if records is not None:
                opened[part] = OpenRecords(*records)
    return opened


def judge_records(findings: Findings, records: Mapping[str, OpenRecords], *, is_new: bool) -> None:
    """Examines the records of a run, and the vocabulary that they were made with.

    ``is_new``: the network is new, so that its vocabulary can still be chosen.
    """
    for part, opened in records.items():
        findings.attempt(part, _judge_sample, findings, part, opened, is_new=is_new)
    infos = [opened.info for opened in records.values()]
    if infos:
        findings.attempt("vocabulary", _judge_casing, findings, infos[0])
    if len(infos) == 2:
        _judge_separation(findings, *infos)


def _judge_sample(findings: Findings, part: str, opened: OpenRecords, *, is_new: bool) -> None:
    """Examines evenly spaced records, which must be valid."""
    records, info, _ = opened
    masks = "stored masks" if info.masked else "masks drawn during training"
    findings.fine(
        part,
        f"{info.num_records:,} records of {info.seq_length} tokens with {masks}; python -m "
        f"data_prep.inspect {info.first_file.parent} reads all of them",
    )
    number = min(_SAMPLE, len(records))
    chosen = np.linspace(0, len(records) - 1, number).astype(np.int64)
    examples = [info.spec.decode(record) for record in records.read(chosen)]
    batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
    special_ids = info.special_ids or {}
    ids, num_tokens = original_ids(batch), np.count_nonzero(batch["input_mask"])
    text = ids[text_positions(ids, batch["input_mask"], special_ids)]
    unknown = np.count_nonzero(text == special_ids.get("unk", -1)) / max(len(text), 1)
    for sentence in unusual_shares(padding=1 - num_tokens / ids.size, unknown=unknown):
        add = findings.error if unknown > MOST_USABLE else findings.warn
        add(part, f"in a sample of {number} records, {sentence}")
    for remark in filter(None, (call.remark for m in info.manifests for call in m.calls)):
        findings.warn(part, f"of their text, {remark}")
    tokens = num_tokens / number * info.num_records
    if info.vocab_size is not None and part == TRAINING:
        highest = int(max(batch["input_ids"].max(), info.highest_id))
        passes = info.manifests[0].parameters.get("dupe_factor", 1)
        once = tokens / passes
        _judge_vocabulary_size(findings, info.vocab_size, once, highest=highest, is_new=is_new)


def _judge_vocabulary_size(
    findings: Findings, size: int, tokens: float, *, highest: int, is_new: bool
) -> None:
    if is_new and tokens < LEAST_TOKENS_OF_AN_ENTRY * size:
        findings.warn(
            "vocabulary",
            f"the text has about {tokens:,.0f} tokens for {size:,} entries of the "
            f"vocabulary, fewer than {LEAST_TOKENS_OF_AN_ENTRY} per entry; use a smaller "
            "vocabulary or more text",
        )
    elif highest < LEAST_OF_VOCABULARY * size:
        findings.warn(
            "vocabulary",
            f"in a sample no id is above {highest:,}, but the vocabulary has {size:,} entries; was "
            "the text made with another one?",
        )


def _judge_casing(findings: Findings, info: RecordInfo) -> None:
    """Compares the casing of the records with the entries of their vocabulary."""
    found = info.vocabulary
    if found is None or found.file is None or found.entry.kind != "wordpiece":
        return
    entries = read_vocab_file(found.file)
    capitals = capitalized(entries)
    if not found.entry.lower_case and is_cased(entries) is False:
        findings.warn(
            "vocabulary",
            f"no entry of {found.file} has a capital, so every word with one is unknown; make the "
            "records with --do_lower_case=true",
        )
    if capitals and found.entry.lower_case:
        findings.warn(
            "vocabulary",
            f"{len(capitals):,} entries of {found.file} have capitals ("
            f"{', '.join(capitals[:_SHOWN])}), which lower-cased text never matches; make the "
            "records with --do_lower_case=false",
        )


def _judge_separation(findings: Findings, train: RecordInfo, held_out: RecordInfo) -> None:
    """Checks for text that is used for both training and evaluation."""
    if train.data_digest == held_out.data_digest:
        findings.warn(
            HELD_OUT,
            "the held-out records are the training records, so the evaluation does not cover "
            "unseen text; give --eval_file",
        )
        return
    both = train, held_out
    outputs = [{e.digest for m in info.manifests for e in m.outputs if e.count} for info in both]
    inputs = [{e.digest for m in info.manifests for e in m.inputs} for info in both]
    shared = outputs[0] & outputs[1]
    if shared:
        findings.warn(
            HELD_OUT,
            f"{len(shared)} of the held-out record files are training files too; give others as "
            "--eval_file",
        )
    elif inputs[0] & inputs[1]:
        findings.warn(
            HELD_OUT,
            "the held-out records were made from the same text as training records; "
            "data_prep.shards holds out documents",
        )
