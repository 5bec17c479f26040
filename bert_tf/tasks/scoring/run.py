"""Perplexities of a checkpoint, or of all checkpoints of a run, on texts or records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.inference.checkpoints import Checkpoint, find_checkpoints
from bert_tf.inference.predictor import Predictor
from bert_tf.input.masking import MaskingSettings
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.records.info import inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.stages.kept_plan import read_plan, settle_plan
from bert_tf.stages.manifest import describe_vocabulary, require_listed_files
from bert_tf.tasks.scoring import outputs
from bert_tf.tasks.scoring.partial import (
    DIRECTORY,
    PartialScores,
    finished_results,
    kept_scores,
)
from bert_tf.tasks.scoring.perplexity import (
    definitions,
    log_likelihoods,
    masked_perplexity,
    pseudo_perplexity,
)
from bert_tf.tasks.scoring.sequences import (
    Sequences,
    SequenceSettings,
    sequences_of_records,
    sequences_of_texts,
)
from bert_tf.tasks.scoring.settings import MASKED, PSEUDO, ScoringSettings
from bert_tf.tasks.scoring.task import LOSSES, ScoringTask
from bert_tf.tasks.scoring.texts import read_texts
from bert_tf.tasks.scoring.work import CopyScores, Work, WorkSettings, sum_losses
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.train.arithmetic import Arithmetic, entries_of_plan, kept_arithmetic
from bert_tf.train.run import Run, begin
from bert_tf.util.errors import UserError
from bert_tf.util.pictures import can_draw
from bert_tf.util.progress import Progress

_WHAT = "evaluation"
# Scores are saved about this often; a run that is killed loses no more than that.
_SECONDS_A_ROUND = 5.0
_FEWEST_GROWTH, _MOST_GROWTH = 0.25, 4.0


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
            "the texts of --input_file": sequences.sha256,
            **{f"the weights of {c.name}": c.weights_sha256 for c in found},
        },
    )
    arithmetic = kept_arithmetic(
        run,
        model.config,
        read_plan(settings.run.output_dir / DIRECTORY, what=_WHAT) if run.ranks.is_chief else None,
    )
    plan = _plan(settings, run, arithmetic, model, sequences, found, length)
    work = Work(
        sequences.sequences,
        WorkSettings(
            settings.metrics, settings.batch_tokens, settings.num_draws, settings.run.seed
        ),
        MaskingSettings(
            settings.masks,
            model.tokenizer.vocab_size,
            describe_vocabulary(model.tokenizer).special_ids,
        ),
        begins_word=_word_beginnings(model.tokenizer) if settings.whole_words else None,
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
    results = []
    for checkpoint in found:
        results.append(
            _evaluate_checkpoint(settings, run, model, arithmetic, checkpoint, sequences, work)
        )
        if run.keeps_files:
            _write(settings, run, about)
    if run.keeps_files:
        for line in outputs.table(finished_results(settings.run.output_dir)):
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
            vocabulary.manifest_file, vocabulary.entry.sha256
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


def _word_beginnings(tokenizer: Tokenizer) -> np.ndarray:
    """Whether each entry of the vocabulary begins a word: bool [vocabulary]."""
    return np.array(tokenizer.word_starts(range(tokenizer.vocab_size)))


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
        **entries_of_plan(run, arithmetic),
        "sha256 of the texts": sequences.sha256,
        "sha256 of the vocabulary": model.tokenizer.vocab_sha256,
        "network": model.config.to_dict(),
    }
    if MASKED in settings.metrics:
        plan["--num_draws"] = settings.num_draws
        plan["--masked_lm_prob"] = settings.masks.masked_lm_prob
        plan["masked_lm_prob is a share of"] = "tokens without [CLS] and [SEP]"
    if settings.whole_words:
        plan["--whole_words"] = True
    if not settings.all_checkpoints:
        plan["sha256 of the weights"] = found[0].weights_sha256
    if run.keeps_files:
        output_dir = settings.run.output_dir
        scores = kept_scores(output_dir)
        settle_plan(output_dir / DIRECTORY, plan, what=_WHAT, results="scores", found=scores)
    return plan


def _evaluate_checkpoint(
    settings: ScoringSettings,
    run: Run,
    model: CompleteModel,
    arithmetic: Arithmetic,
    checkpoint: Checkpoint,
    sequences: Sequences,
    work: Work,
) -> dict[str, Any]:
    """The result of a checkpoint, computed unless an earlier start did so."""
    partial = result = None
    if run.keeps_files:
        partial = PartialScores(
            settings.run.output_dir, checkpoint.name, weights_sha256=checkpoint.weights_sha256
        )
        result = partial.result()
    result = run.ranks.broadcast(result)
    if result is not None:
        run.message(f"{checkpoint.name}: was evaluated before")
        return result
    _compute(run, model, arithmetic, checkpoint, work, partial)
    if partial is not None:
        result = _result(settings, checkpoint, sequences, work, partial)
        partial.finish(result)
    return run.ranks.broadcast(result)


def _compute(
    run: Run,
    model: CompleteModel,
    arithmetic: Arithmetic,
    checkpoint: Checkpoint,
    work: Work,
    partial: PartialScores | None,
) -> None:
    """Computes all batches without scores on all ranks; rank 0 adds them to ``partial``."""
    ranks = run.ranks
    done = ranks.broadcast(partial.load(work.batches) if partial is not None else None)
    pending = [number for number in range(len(work.batches)) if number not in done]
    tokens = sum(work.batches[number].tokens for number in pending)
    if done:
        share = 1 - tokens / sum(batch.tokens for batch in work.batches)
        run.message(f"{checkpoint.name}: resumes; {share:.0%} was computed before")
    if not pending:
        return
    predictor = Predictor(
        ScoringTask(model.config),
        checkpoint.path,
        precision=arithmetic.options.policy,
        native_ops=arithmetic.options.native_layers,
        threads=ranks.threads,
        gpu=arithmetic.session.gpu,
    )
    progress = Progress(checkpoint.name, tokens, "tokens read") if ranks.is_chief else None
    with contextlib.closing(predictor.session):
        in_round = 1
        while pending:
            size = in_round * ranks.world_size
            now, pending = pending[:size], pending[size:]
            started = time.monotonic()
            found = {
                number: _score(predictor, work, number)
                for number in now[ranks.rank :: ranks.world_size]
            }
            gathered = ranks.gather((found, time.monotonic() - started))
            scores = {number: of_rank[number] for of_rank, _ in gathered for number in of_rank}
            _check_finite(scores, work, checkpoint)
            if partial is not None:
                partial.add(dict(sorted(scores.items())))
            if progress is not None:
                progress.advance(sum(work.batches[number].tokens for number in now))
            seconds = max(seconds for _, seconds in gathered)
            growth = _SECONDS_A_ROUND / max(seconds, 1e-3)
            in_round = max(1, round(in_round * min(max(growth, _FEWEST_GROWTH), _MOST_GROWTH)))
    if progress is not None:
        progress.finish()


def _score(predictor: Predictor, work: Work, number: int) -> CopyScores:
    inputs = work.inputs(work.batches[number])
    return sum_losses(predictor.run(inputs.features())[LOSSES], inputs)


def _check_finite(scores: dict[int, CopyScores], work: Work, checkpoint: Checkpoint) -> None:
    """Raises UserError for scores that are not finite."""
    for number, found in sorted(scores.items()):
        wrong = ~np.isfinite(found.losses)
        if wrong.any():
            batch = work.batches[number]
            copy = batch.start + int(wrong.argmax())
            text = work.text_of(batch.metric, copy)
            raise UserError(
                f"{checkpoint.path} gives a score that is not finite for text {text}: its training "
                "diverged, or its weights are damaged; try --precision=fp32 or another checkpoint."
            )


def _result(
    settings: ScoringSettings,
    checkpoint: Checkpoint,
    sequences: Sequences,
    work: Work,
    partial: PartialScores,
) -> dict[str, Any]:
    """The perplexities of a checkpoint; also writes the scores of its texts."""
    result: dict[str, Any] = {
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "weights_sha256": checkpoint.weights_sha256,
        MASKED: None,
        PSEUDO: None,
    }
    likelihoods = None
    for metric in settings.metrics:
        scores, copies = partial.of_metric(work.batches, metric), work.copies[metric]
        if metric == PSEUDO:
            likelihoods = log_likelihoods(scores, copies, sequences)
            result[metric] = pseudo_perplexity(scores, sequences).to_dict()
        else:
            result[metric] = masked_perplexity(scores, copies, sequences).to_dict()
    directory = settings.run.output_dir / DIRECTORY / checkpoint.name
    outputs.write_texts(directory / outputs.TEXTS_NAME, sequences, likelihoods)
    if likelihoods is not None and can_draw():
        outputs.draw_texts(directory / outputs.TEXTS_PICTURE_NAME, sequences, likelihoods)
    return result


def _write(settings: ScoringSettings, run: Run, about: dict[str, Any]) -> None:
    """Writes the results of all checkpoints evaluated so far."""
    output_dir = settings.run.output_dir
    results = finished_results(output_dir)
    outputs.write_results(output_dir, about, results)
    if len(results) > 1:
        if can_draw():
            outputs.draw_training(output_dir / outputs.PICTURE_NAME, results)
        else:
            run.message(f"no {outputs.PICTURE_NAME}, because matplotlib is not installed")
