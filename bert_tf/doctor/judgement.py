"""Judges a run's records, and what it makes of them: its length, learning rate and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from absl import flags

from bert_tf.doctor.findings import Findings
from bert_tf.input.mixture import open_sources
from bert_tf.records.info import RecordInfo, original_ids, text_positions, unusual_shares
from bert_tf.tasks.pretraining.data import OpenRecords
from bert_tf.text.unknown_share import MOST_USABLE
from bert_tf.text.vocabulary import capitalized, is_cased, read_vocab_file
from bert_tf.train.job import Job
from bert_tf.train.plan import Plan

LEAST_TOKENS_OF_AN_ENTRY = 20
LEAST_OF_VOCABULARY = 0.5
_SAMPLE = 512
_SHOWN = 3

TRAINING, HELD_OUT = "records", "held-out records"
_FLAGS = (  # part, the flag that makes a run read it, and the names of the records' flag
    (TRAINING, "do_train", ("input_file", "input_files_dir")),
    (HELD_OUT, "do_eval", ("eval_file", "eval_files_dir")),
)

# How often a run may see each stored mask. In published runs it is about 4 times: 40 epochs over a
# text that was masked 10 times (Devlin et al. 2019; Liu et al. 2019, section 4.1).
_MOST_EPOCHS_OF_MASKS = 10
_MOST_EPOCHS = 200
_MOST_WARMUP = 0.3
_MOST_LOST = 0.1  # fraction of a run, lost by a kill just before a checkpoint
_WORTH_SAVING = 1000  # updates; shorter runs are simply repeated
_FACTOR = 10  # how far a learning rate may be from published ones


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
    vocabulary = info.vocabulary
    if vocabulary is None or vocabulary.file is None or vocabulary.entry.kind != "wordpiece":
        return
    entries = read_vocab_file(vocabulary.file)
    capitals = capitalized(entries)
    if not vocabulary.entry.lower_case and is_cased(entries) is False:
        findings.warn(
            "vocabulary",
            f"no entry of {vocabulary.file} has a capital, so every word with one is unknown; make "
            "the records with --do_lower_case=true",
        )
    if capitals and vocabulary.entry.lower_case:
        findings.warn(
            "vocabulary",
            f"{len(capitals):,} entries of {vocabulary.file} have capitals ("
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


class UsualRate(NamedTuple):
    """A published peak learning rate, its global batch size, and the source."""

    rate: float
    batch: int
    source: str

    def bounds(self, global_batch_size: int) -> tuple[float, float]:
        """The usual range for a batch size; for larger batches, rates grow with the square root."""
        scaled = self.rate * math.sqrt(max(1.0, global_batch_size / self.batch))
        return self.rate / _FACTOR, scaled * _FACTOR


PRETRAINING_RATES = {
    "adam": UsualRate(1e-4, 256, "Devlin et al. 2019: 1e-4 for batches of 256"),
    "lamb": UsualRate(6.25e-4, 512, "You et al. 2020: 6.25e-4 for batches of 512"),
}
_FINETUNING_RATES = {"adam": UsualRate(3e-5, 32, "Devlin et al. 2019: 2e-5 to 5e-5")}


def judge_updates(
    findings: Findings, values: flags.FlagValues, job: Job, records: Mapping[str, OpenRecords]
) -> None:
    """Examines a job's updates: learning rate, number of updates and checkpoints.

    ``records`` are those of pre-training by their parts of the run; empty for fine-tuning.
    """
    plan, batch, start = job.plan, job.plan.batch, job.run.start
    rates = PRETRAINING_RATES if records else _FINETUNING_RATES
    judge_rate(findings, plan, rates)
    findings.fine("batch", batch.arithmetic())
    _judge_warmup(findings, plan, is_pretraining=bool(records))
    if TRAINING in records:
        _judge_length(findings, plan, records[TRAINING], learns_masks=values.mlm)
        _judge_saving(findings, values.save_checkpoints_steps, plan.last_step)
    if batch.divisor > 1:
        findings.hint(
            "length",
            f"--num_train_steps={plan.train_steps_on_one_rank} counts the updates of one rank: "
            f"{batch.divisor} ranks make {plan.schedule.total_steps:,} of them, "
            f"{plan.schedule.warmup_steps:,} in the warm-up, with the same number of sequences "
            "(--scale_steps_by_ranks=false makes all of them)",
        )
    if start.checkpoint is not None and start.step >= plan.last_step:
        findings.warn(
            "output directory",
            f"{start.checkpoint} is at step {start.step:,}, and the run ends at "
            f"{plan.last_step:,}, so nothing is left to train; choose another --output_dir, or "
            "more steps",
        )


def judge_rate(findings: Findings, plan: Plan, usual: dict[str, UsualRate]) -> None:
    """Compares the peak learning rate with published ones for the same optimizer."""
    rate, optimizer = plan.schedule.peak_rate, plan.requested.optimizer
    batch, published = plan.batch, usual.get(optimizer)
    if published is None:
        findings.fine("learning rate", f"{rate:g}; no published range is known for {optimizer}")
        return
    low, high = published.bounds(batch.global_batch_size)
    if low <= rate <= high:
        findings.fine("learning rate", f"{rate:g} is in the usual range, {low:.2g} to {high:.2g}")
        return
    how, effect = ("above", "diverge") if rate > high else ("below", "learn hardly anything")
    findings.warn(
        "learning rate",
        f"--learning_rate={rate:g} is {how} the usual range of {optimizer} for global "
        f"batches of {batch.global_batch_size:,}, {low:.2g} to {high:.2g} ({published.source}); "
        f"the run may {effect}",
    )


def _judge_warmup(findings: Findings, plan: Plan, *, is_pretraining: bool) -> None:
    """Checks the fraction of updates that the warm-up takes."""
    share = plan.schedule.warmup_steps / plan.schedule.total_steps
    if share > _MOST_WARMUP:
        findings.warn(
            "learning rate",
            f"the warm-up takes {share:.0%} of all updates ({plan.schedule.warmup_steps:,} of "
            f"{plan.schedule.total_steps:,}); usual is 1 to 10 %; lower --num_warmup_steps",
        )
    elif not plan.schedule.warmup_steps and is_pretraining:
        findings.warn(
            "learning rate",
            "there is no warm-up, without which pre-training often diverges; give "
            "--num_warmup_steps",
        )


def _judge_length(
    findings: Findings, plan: Plan, opened: OpenRecords, *, learns_masks: bool
) -> None:
    """Compares the number of sequences that the run consumes with the number of records."""
    info, batch = opened.info, plan.batch
    sequences = batch.sequences(0, plan.last_position)
    used = [("", sequences, info.num_records, batch.global_batch_size)]
    if opened.mixture is not None:
        used = [
            (f" from {source.pattern}", count, size, math.ceil(source.weight * used[0][3]))
            for source, size, count in opened.mixture.rows(sequences)
        ]
    for source, number, num_records, of_a_batch in used:
        epochs = number / num_records
        times = f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"
        findings.fine(
            "length",
            f"{plan.last_position:,} updates consume {number:,} sequences{source}, {times} epochs "
            f"of {num_records:,} records",
        )
        if of_a_batch > num_records:
            findings.warn(
                "length",
                f"there are only {num_records:,} records{source} for a global batch of "
                f"{of_a_batch:,}, so every batch repeats some of them; use a smaller batch or more "
                "text",
            )
        elif info.masked and learns_masks and epochs > _MOST_EPOCHS_OF_MASKS:
            findings.warn(
                "length",
                f"each stored mask{source} is seen {times} times, but about 4 times in published "
                "runs (Liu et al. 2019, section 4.1); make records with --masking=dynamic or a "
                "larger --dupe_factor, or train for fewer steps",
            )
        elif epochs > _MOST_EPOCHS:
            findings.warn(
                "length",
                f"each record{source} is seen {times} times, so the network may memorize them; "
                "give more text or train for fewer steps",
            )
        elif epochs < 1:
            findings.hint("length", f"only {epochs:.0%} of the records{source} are used")


def _judge_saving(findings: Findings, save_checkpoints_steps: int, last_step: int) -> None:
    """Checks how many updates a kill would cost."""
    if last_step <= _WORTH_SAVING:
        return
    every = min(save_checkpoints_steps, last_step)
    share = every / last_step
    if share > _MOST_LOST:
        findings.warn(
            "checkpoints",
            f"--save_checkpoints_steps={save_checkpoints_steps}: a run that is killed loses up "
            f"to {every:,} of its {last_step:,} updates ({share:.0%}); save more often",
        )
    else:
        findings.fine("checkpoints", f"a run that is killed loses at most {every:,} updates")
