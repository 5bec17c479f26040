"""Perplexities of a checkpoint, or of all checkpoints of a run, on texts or records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.durable.manifest import describe_vocabulary, require_listed_files
from bert_tf.durable.resumable import (
    PART_NAMES,
    ArrayParts,
    earlier_identity,
    resumable_map,
    settle_identity,
)
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.inference.checkpoints import Checkpoint, find_checkpoints
from bert_tf.inference.predictor import Predictor
from bert_tf.input.masking import MaskingSettings
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.records.info import inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.scoring import outputs
from bert_tf.tasks.scoring.perplexity import (
    definitions,
    log_likelihoods,
    masked_perplexity,
    pseudo_perplexity,
)
from bert_tf.tasks.scoring.sequences import (
    Sequences,
    SequenceSettings,
    read_texts,
    sequences_of_records,
    sequences_of_texts,
)
from bert_tf.tasks.scoring.settings import MASKED, PSEUDO, ScoringSettings
from bert_tf.tasks.scoring.task import LOSSES, ScoringTask
from bert_tf.tasks.scoring.work import Batch, CopyScores, Work, sum_losses
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.train.run import Run, begin
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files
from bert_tf.util.pictures import can_draw
from bert_tf.util.progress import Progress

DIRECTORY = "scores"
RESULT_NAME = "result.json"

_WHAT = "evaluation"
# Tokens read for a part, which a killed run loses: some seconds of a large network on a CPU.
PART_TOKENS = 1 << 15


def run(settings: ScoringSettings) -> list[dict[str, Any]]:
    """Evaluates as the settings say; returns one result per checkpoint.

    Raises UserError for bad input, and if scores are not finite.
    """
    with begin(settings.run, settings.runtime) as begun:
        return _evaluate(settings, begun)


def _evaluate(settings: ScoringSettings, run: Run) -> list[dict[str, Any]]:
    model = find_model(
        init_checkpoint=settings.run.start.init_checkpoint,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    for note in model.notes:
        run.message(note)
    length = None
    if not settings.has_records:
        length = run.fit_length(settings.max_seq_length, model.config)
    sequences = _read(settings, model, length)
    for line in _summary(sequences):
        run.message(line)
    if not sequences.texts:
        raise UserError(
            f"--input_file: none of the {sequences.read} texts in {settings.input_files[0]} can be "
            f"scored ({_reasons(sequences)}); give others, or a larger --sample."
        )
    found = find_checkpoints(model.checkpoint, every_one=settings.all_checkpoints)
    check_same_on_all_ranks(
        run.ranks,
        {
            "the texts of --input_file": sequences.digest,
            **{f"the weights of {c.name}": c.weights_digest for c in found},
        },
    )
    arithmetic = run.keep_arithmetic(
        model.config,
        earlier_identity(settings.run.output_dir / DIRECTORY, what=_WHAT)
        if run.ranks.is_chief
        else None,
    )
    plan = _plan(settings, run, arithmetic, model, sequences, found, length)
    begins_word = None
    if settings.whole_words:
        begins_word = np.array(model.tokenizer.word_starts(range(model.tokenizer.vocab_size)))
    work = Work(
        sequences.sequences,
        MaskingSettings(
            settings.masks,
            model.tokenizer.vocab_size,
            describe_vocabulary(model.tokenizer).special_ids,
        ),
        metrics=settings.metrics,
        batch_tokens=settings.batch_tokens,
        num_draws=settings.num_draws,
        seed=settings.run.seed,
        begins_word=begins_word,
    )
    about = {
        "definitions": definitions(
            settings.metrics,
            num_draws=settings.num_draws,
            masked_lm_prob=settings.masks.masked_lm_prob,
            whole_words=settings.whole_words,
        ),
        "settings": plan,
        "counts": sequences.counts(),
    }
    for text in about["definitions"].values():
        run.message(text)
    evaluation = _Evaluation(settings, run, model, arithmetic, sequences, work, plan)
    results = []
    for checkpoint in found:
        results.append(evaluation.result_of(checkpoint))
        if run.keeps_files:
            _write(settings, run, about)
    if run.keeps_files:
        for line in outputs.table(_finished_results(settings.run.output_dir)):
            run.message(line)
        run.message(f"the results are in {settings.run.output_dir / outputs.RESULTS_NAME}")
    return results


def _read(settings: ScoringSettings, model: CompleteModel, length: int | None) -> Sequences:
    """The sequences to score; raises UserError if the input does not suit the model.

    ``length`` is the maximum sequence length for texts, None for records.
    """
    wanted = SequenceSettings(
        max_seq_length=settings.max_seq_length if length is None else length,
        sample=settings.sample,
        seed=settings.run.seed,
        score_unknown=settings.score_unknown,
        wikitext=settings.texts.wikitext,
    )
    if settings.has_records:
        require_listed_files(str(settings.run.command.values["input_file"]))
        records = RecordSet(settings.input_files)
        info = inspect_records(records)
        model.config.check_length(
            info.seq_length,
            f"the records in {info.first_file} have {info.seq_length} tokens,",
            advice="make shorter ones",
        )
        vocabulary = info.vocabulary
        named = vocabulary and vocabulary_named_in(
            vocabulary.manifest_file, vocabulary.entry.digest
        )
        if (named and not named.is_same(model.vocabulary)) or (
            info.highest_id >= model.config.vocab_size
        ):
            raise UserError(
                f"the records in {info.first_file} were made with a different vocabulary than the "
                f"model's, {model.vocabulary.source}; make them with that one."
            )
        return sequences_of_records(records, info, model.tokenizer, wanted)
    texts = read_texts(settings.input_files, settings.texts, flag="input_file")
    counting = CountingTokenizer(model.tokenizer)
    sequences = sequences_of_texts(texts, counting, wanted)
    counting.take().say(", ".join(map(str, settings.input_files)))
    return sequences


def _summary(sequences: Sequences) -> list[str]:
    """A summary for users of what is scored and what is not."""
    words = "words unknown" if sequences.words is None else f"{sequences.words:,} words"
    skipped = f"; skipped: {_reasons(sequences)}" if sequences.skipped else ""
    return [
        f"{len(sequences.texts):,} of {sequences.read:,} texts to score{skipped}",
        f"{len(sequences.sequences):,} sequences ({sequences.cut:,} texts cut into several), "
        f"{sequences.tokens:,} tokens to score, {words}, {sequences.unknown_tokens:,} [UNK]",
    ]


def _reasons(sequences: Sequences) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sequences.skipped.items())


def _plan(
    settings: ScoringSettings,
    run: Run,
    arithmetic: Arithmetic,
    model: CompleteModel,
    sequences: Sequences,
    found: Sequence[Checkpoint],
    length: int | None,
) -> dict[str, Any]:
    """All that scores depend on; compared with the plan on disk."""
    plan = {
        "--metrics": ",".join(settings.metrics),
        "--max_seq_length": length,
        "--batch_tokens": settings.batch_tokens,
        "--sample": settings.sample,
        "--seed": settings.run.seed,
        "--score_unknown": settings.score_unknown,
        **arithmetic.entries(),
        "sha256 of the texts": sequences.digest,
        "sha256 of the vocabulary": model.tokenizer.vocab_digest,
        "network": model.config.to_dict(),
    }
    if MASKED in settings.metrics:
        plan["--num_draws"] = settings.num_draws
        plan["--masked_lm_prob"] = settings.masks.masked_lm_prob
        plan["masked_lm_prob is a share of"] = "tokens without [CLS] and [SEP]"
    if settings.whole_words:
        plan["--whole_words"] = True
    if not settings.all_checkpoints:
        plan["sha256 of the weights"] = found[0].weights_digest
    if run.keeps_files:
        output_dir = settings.run.output_dir
        directory = output_dir / DIRECTORY
        kept = (path for name in (RESULT_NAME, PART_NAMES) for path in directory.glob(f"*/{name}"))
        settle_identity(directory, plan, what=_WHAT, results="scores", found=kept)
    return plan


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """Everything that scores are computed from but for the weights; they depend on ``plan``."""

    settings: ScoringSettings
    run: Run
    model: CompleteModel
    arithmetic: Arithmetic
    sequences: Sequences
    work: Work
    plan: Mapping[str, Any]

    def result_of(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The result of a checkpoint, computed unless an earlier start did so. Collective."""
        run, directory = self.run, self._directory(checkpoint)
        result = None
        if run.keeps_files:
            directory.mkdir(exist_ok=True)
            remove_partial_files(directory)
            result = _read_result(directory / RESULT_NAME)
        if result is not None and result["weights_sha256"] != checkpoint.weights_digest:
            result = None
        result = run.ranks.broadcast(result)
        if result is not None:
            run.message(f"{checkpoint.name}: was evaluated before")
        else:
            parts = self._computed(checkpoint)
            if run.keeps_files:
                result = self._summarized(checkpoint, parts)
                write_sealed_json(directory / RESULT_NAME, result)
        if run.keeps_files:  # what the result was computed from
            for path in directory.glob(PART_NAMES):
                path.unlink()
        return run.ranks.broadcast(result)

    def _directory(self, checkpoint: Checkpoint) -> Path:
        return self.settings.run.output_dir / DIRECTORY / checkpoint.name

    def _computed(self, checkpoint: Checkpoint) -> ArrayParts:
        """All parts of a checkpoint's scores, after computing the missing ones on all ranks."""
        run, batches = self.run, _parts_of(self.work.batches)
        identity = {**self.plan, "weights": checkpoint.weights_digest}
        parts = ArrayParts(self._directory(checkpoint), len(batches), identity)
        missing = run.ranks.broadcast(parts.missing() if run.keeps_files else None)
        if len(missing) < len(parts):
            total, left = (
                sum(batch.tokens for number in numbers for batch in batches[number])
                for numbers in (range(len(parts)), missing)
            )
            done = 1 - left / total
            run.message(f"{checkpoint.name}: resumes; {done:.0%} was computed before")
        compute = functools.partial(self._scores, checkpoint, batches)
        resumable_map(missing, compute, parts, run.ranks, through_chief=True)
        return parts

    def _scores(
        self, checkpoint: Checkpoint, batches: Sequence[Sequence[Batch]], parts: Sequence[int]
    ) -> Iterator[dict[str, np.ndarray]]:
        """The fields of ``CopyScores`` of each part, which may be none.

        Raises UserError for scores that are not finite.
        """
        ranks, work = self.run.ranks, self.work
        predictor = Predictor(
            ScoringTask(self.model.config),
            checkpoint.path,
            precision=self.arithmetic.options.policy,
            native_ops=self.arithmetic.options.native_layers,
            threads=ranks.threads,
            gpu=self.arithmetic.session.gpu,
        )
        tokens = sum(batch.tokens for part in parts for batch in batches[part])
        progress = (
            Progress(checkpoint.name, tokens * ranks.world_size, "tokens read")
            if ranks.is_chief
            else None
        )
        with contextlib.closing(predictor.session):
            for part in parts:
                found = []
                for batch in batches[part]:
                    inputs = work.inputs(batch)
                    found.append(sum_losses(predictor.run(inputs.features())[LOSSES], inputs))
                    _check_finite(found[-1], batch, work, checkpoint)
                    if progress is not None:
                        progress.advance(batch.tokens * ranks.world_size)
                yield CopyScores(*map(np.concatenate, zip(*found)))._asdict()
        if progress is not None:
            progress.finish()

    def _summarized(self, checkpoint: Checkpoint, parts: ArrayParts) -> dict[str, Any]:
        """The perplexities of a checkpoint; also writes the scores of its texts."""
        result: dict[str, Any] = {
            "checkpoint": checkpoint.name,
            "step": checkpoint.step,
            "weights_sha256": checkpoint.weights_digest,
            MASKED: None,
            PSEUDO: None,
        }
        arrays = list(parts.read_all())
        losses, counts = (
            np.concatenate([part[name] for part in arrays]) for name in CopyScores._fields
        )
        likelihoods, first = None, 0
        for metric, copies in self.work.copies.items():  # in the order of the batches
            last = first + len(copies.sequence)
            scores, first = CopyScores(losses[first:last], counts[first:last]), last
            if metric == PSEUDO:
                likelihoods = log_likelihoods(scores, copies, self.sequences)
                perplexity = pseudo_perplexity(scores, self.sequences)
            else:
                perplexity = masked_perplexity(scores, copies, self.sequences)
            result[metric] = dataclasses.asdict(perplexity)
        directory = self._directory(checkpoint)
        outputs.write_texts(directory / outputs.TEXTS_NAME, self.sequences, likelihoods)
        if likelihoods is not None and can_draw():
            path = directory / outputs.TEXTS_PICTURE_NAME
            outputs.draw_texts(path, self.sequences, likelihoods)
        return result


def _parts_of(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Consecutive batches of about ``PART_TOKENS`` tokens each."""
    tokens = np.array([batch.tokens for batch in batches])
    part_of = (np.cumsum(tokens) - tokens) // PART_TOKENS
    found: list[list[Batch]] = [[] for _ in range(len(np.unique(part_of)))]
    for batch, part in zip(batches, np.unique(part_of, return_inverse=True)[1]):
        found[part].append(batch)
    return found


def _check_finite(scores: CopyScores, batch: Batch, work: Work, checkpoint: Checkpoint) -> None:
    """Raises UserError for scores that are not finite."""
    wrong = ~np.isfinite(scores.losses)
    if wrong.any():
        text = work.text_of(batch.metric, batch.start + int(wrong.argmax()))
        raise UserError(
            f"{checkpoint.path} gives a score that is not finite for text {text}: its training "
            "diverged, or its weights are damaged; try --precision=fp32 or another checkpoint."
        )


def _finished_results(output_dir: Path) -> list[dict[str, Any]]:
    """The results of all finished checkpoints, by step and name."""
    paths = (output_dir / DIRECTORY).glob(f"*/{RESULT_NAME}")
    found = [result for result in map(_read_result, paths) if result is not None]
    return sorted(found, key=lambda result: (result["step"] or 0, result["checkpoint"]))


def _read_result(path: Path) -> dict[str, Any] | None:
    """A checkpoint's finished result; None if it is missing or, with a notice, damaged."""
    if not path.is_file():
        return None
    advice = "it is ignored, and written again when its checkpoint is evaluated"
    try:
        return read_sealed_json(path, what="evaluation", advice=advice)
    except UserError as error:
        say(str(error))
        return None


def _write(settings: ScoringSettings, run: Run, about: dict[str, Any]) -> None:
    """Writes the results of all checkpoints evaluated so far."""
    output_dir = settings.run.output_dir
    results = _finished_results(output_dir)
    outputs.write_results(output_dir, about, results)
    if len(results) > 1:
        if can_draw():
            outputs.draw_training(output_dir / outputs.PICTURE_NAME, results)
        else:
            run.message(f"no {outputs.PICTURE_NAME}, because matplotlib is not installed")
