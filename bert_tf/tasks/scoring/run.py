"""Perplexities of a checkpoint, or of all checkpoints of a run, on texts or records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import Checkpoint
from bert_tf.durable.manifest import describe_vocabulary, require_listed_files
from bert_tf.durable.resumable import PART_NAMES, earlier_identity, settle_identity
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.inference.predictor import Predictor
from bert_tf.input.masking import MaskingSettings
from bert_tf.model.bert import bert_specs, output_at_positions
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import MASKED_LM_HEAD, masked_lm_scores, masked_lm_specs
from bert_tf.model.losses import score_losses
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Features, PredictingTask
from bert_tf.model.variables import Variables, VariableSpec
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.records.info import inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.tasks.scoring.perplexity import (
    PICTURE_NAME,
    RESULTS_NAME,
    TEXTS_NAME,
    TEXTS_PICTURE_NAME,
    Scores,
    definitions,
    draw_texts,
    draw_training,
    log_likelihoods,
    masked_perplexity,
    pseudo_perplexity,
    table,
    write_results,
    write_texts,
)
from bert_tf.tasks.scoring.sequences import (
    Sequences,
    read_texts,
    sequences_of_records,
    sequences_of_texts,
)
from bert_tf.tasks.scoring.settings import MASKED, PSEUDO, ScoringSettings
from bert_tf.tasks.scoring.work import Batch, Work
from bert_tf.text.tokenizer_files import vocabulary_named_in
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.train.inference import Inference, agreed, open_model
from bert_tf.train.run import Run, begin
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files
from bert_tf.util.pictures import can_draw

DIRECTORY = "scores"
RESULT_NAME = "result.json"
LOSSES = "losses"  # the name of the predictions

_WHAT = "evaluation"


def run(settings: ScoringSettings) -> list[dict[str, Any]]:
    """Evaluates as the settings say; returns one result per checkpoint.

    Raises UserError for bad input, and if scores are not finite.
    """
    with begin(settings.run, settings.runtime) as begun:
        return _evaluate(settings, begun)


def _evaluate(settings: ScoringSettings, run: Run) -> list[dict[str, Any]]:
    model, directory = open_model(settings, run), settings.run.output_dir / DIRECTORY
    length = None
    if not settings.has_records:
        length = run.fit_length(settings.max_seq_length, model.config)
    sequences = _read(settings, model, length)
    _describe(sequences, settings, run)
    inference = agreed(
        run,
        model,
        sequences.digest,
        earlier=earlier_identity(directory, what=_WHAT),
        every_checkpoint=settings.all_checkpoints,
    )
    identity = _identity(settings, length, inference)
    if run.keeps_files:
        kept = (path for name in (RESULT_NAME, PART_NAMES) for path in directory.glob(f"*/{name}"))
        settle_identity(directory, identity, what=_WHAT, results="scores", found=kept)
    about = {
        "definitions": definitions(settings),
        "settings": identity,
        "counts": sequences.counts,
    }
    for text in about["definitions"].values():
        run.message(text)
    work = _work(settings, model, sequences)
    results = []
    for checkpoint in inference.checkpoints:
        scoring = _Scoring(inference, work, checkpoint)
        results.append(_result(scoring, sequences, identity, directory / checkpoint.name))
        if run.keeps_files:
            _write(settings.run.output_dir, about, run)
    if run.keeps_files:
        for line in table(_finished_results(directory)):
            run.message(line)
        run.message(f"the results are in {settings.run.output_dir / RESULTS_NAME}")
    return results


def _read(settings: ScoringSettings, model: CompleteModel, length: int | None) -> Sequences:
    """The sequences to score; raises UserError if the input does not suit the model.

    ``length`` is the maximum sequence length for texts, None for records.
    """
    seed = settings.run.seed
    if length is not None:
        texts = read_texts(settings.input_files, settings.texts, flag="input_file")
        counting = CountingTokenizer(model.tokenizer)
        sequences = sequences_of_texts(
            texts, counting, settings.texts, max_seq_length=length, seed=seed
        )
        counting.take().say(", ".join(map(str, settings.input_files)))
        return sequences
    require_listed_files(str(settings.run.command.values["input_file"]))
    records = RecordSet(settings.input_files)
    info = inspect_records(records)
    model.config.check_length(
        info.seq_length,
        f"the records in {info.first_file} have {info.seq_length} tokens,",
        advice="make shorter ones",
    )
    vocabulary = info.vocabulary
    named = vocabulary and vocabulary_named_in(vocabulary.manifest_file, vocabulary.entry.digest)
    if (
        named and not named.is_same(model.vocabulary)
    ) or info.highest_id >= model.config.vocab_size:
        raise UserError(
            f"the records in {info.first_file} were made with a different vocabulary than the "
            f"model's, {model.vocabulary.source}; make them with that one."
        )
    return sequences_of_records(records, info, model.tokenizer, settings.texts, seed=seed)


def _describe(sequences: Sequences, settings: ScoringSettings, run: Run) -> None:
    """Prints what is scored and what is not; raises UserError if nothing can be."""
    counts = sequences.counts
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sequences.skipped.items())
    words = "words unknown" if sequences.words is None else f"{sequences.words:,} words"
    skipped = f"; skipped: {reasons}" if reasons else ""
    run.message(f"{counts['texts_scored']:,} of {counts['texts_read']:,} texts to score{skipped}")
    run.message(
        f"{counts['sequences']:,} sequences ({counts['texts_cut']:,} texts cut into several), "
        f"{counts['tokens']:,} tokens to score, {words}, {counts['unknown_tokens']:,} [UNK]"
    )
    if not sequences.texts:
        raise UserError(
            f"--input_file: none of the {counts['texts_read']} texts in {settings.input_files[0]} "
            f"can be scored ({reasons}); give others, or a larger --sample."
        )


def _identity(
    settings: ScoringSettings, length: int | None, inference: Inference
) -> dict[str, Any]:
    """All that scores depend on; compared with the one on disk."""
    identity = {
        "--metrics": ",".join(settings.metrics),
        "--max_seq_length": length,
        "--batch_tokens": settings.batch_tokens,
        "--sample": settings.texts.sample,
        "--seed": settings.run.seed,
        "--score_unknown": settings.texts.score_unknown,
        **inference.identity(with_weights=not settings.all_checkpoints),
    }
    if MASKED in settings.metrics:
        identity["--num_draws"] = settings.num_draws
        identity["--masked_lm_prob"] = settings.masks.masked_lm_prob
        identity["masked_lm_prob is a share of"] = "tokens without [CLS] and [SEP]"
    if settings.whole_words:
        identity["--whole_words"] = True
    return identity


def _work(settings: ScoringSettings, model: CompleteModel, sequences: Sequences) -> Work:
    tokenizer, begins_word = model.tokenizer, None
    if settings.whole_words:
        begins_word = np.array(tokenizer.word_starts(range(tokenizer.vocab_size)))
    special_ids = describe_vocabulary(tokenizer).special_ids
    return Work(
        sequences.sequences,
        MaskingSettings(settings.masks, tokenizer.vocab_size, special_ids),
        metrics=settings.metrics,
        batch_tokens=settings.batch_tokens,
        num_draws=settings.num_draws,
        seed=settings.run.seed,
        begins_word=begins_word,
    )


@dataclasses.dataclass(frozen=True)
class ScoringTask(PredictingTask):
    """Losses of the masked language model at chosen positions of sequences without padding.

    Features are ``input_ids`` and ``segment_ids`` [B, S], where chosen tokens are hidden, and
    ``masked_lm_positions`` and ``masked_lm_ids`` [B, P], the tokens to score; all are integers.

    Computes only what these losses need: the last layer and the head run at the chosen positions
    only and, with native layers, logits are never materialised.
    """

    config: BertConfig

    heads: ClassVar = (MASKED_LM_HEAD,)
    inputs: ClassVar = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")

    def specs(self) -> list[VariableSpec]:
        """The variables of BERT without its pooler, and of the head."""
        return [*bert_specs(self.config, pooler=False), *masked_lm_specs(self.config)]

    def outputs(
        self, variables: Variables, features: Features, options: ForwardOptions
    ) -> tf.Tensor:
        """The losses (nats), [B, P] float32."""
        positions = features["masked_lm_positions"]
        sequences = {**features, "input_mask": tf.ones_like(features["input_ids"])}
        hidden = output_at_positions(variables, self.config, sequences, positions, options)
        everywhere = tf.broadcast_to(tf.range(tf.shape(positions)[1]), tf.shape(positions))
        scores = masked_lm_scores(
            hidden, everywhere, variables, config=self.config, policy=options.policy
        )
        labels = tf.reshape(features["masked_lm_ids"], [-1])
        with tf.name_scope("cls/predictions/loss"):
            losses, _ = score_losses(scores, labels, options=options)
        return tf.reshape(losses, tf.shape(positions))

    def predictions(
        self, outputs: tf.Tensor, features: Features, options: ForwardOptions
    ) -> dict[str, tf.Tensor]:
        """``losses`` [B, P] float32."""
        del features, options
        return {LOSSES: outputs}


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """The scores of all copies by a checkpoint; see ``train.inference.Computation``."""

    inference: Inference
    work: Work
    checkpoint: Checkpoint

    unit: ClassVar = "tokens read"

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return self.checkpoint.name

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The tokens that the network reads for each part."""
        return [sum(batch.tokens for batch in part) for part in self.work.parts]

    def resumed(self, missing: Sequence[int]) -> str:
        """How much was computed before."""
        sizes = self.sizes
        done = 1 - sum(sizes[part] for part in missing) / sum(sizes)
        return f"{self.name}: resumes; {done:.0%} was computed before"

    def results(self, parts: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the ``losses`` and ``counts`` of each part's copies, as in ``Scores``.

        Raises UserError for scores that are not finite.
        """
        task = ScoringTask(self.inference.model.config)
        predictor = Predictor(task, self.checkpoint.path, **self.inference.predicting)
        with contextlib.closing(predictor.session):
            for part in parts:
                sums = []
                for batch in self.work.parts[part]:
                    inputs = self.work.inputs(batch)
                    sums.append(inputs.summed(predictor.run(inputs.features)[LOSSES]))
                    self._check_finite(sums[-1][0], batch)
                losses, counts = map(np.concatenate, zip(*sums))
                yield {"losses": losses, "counts": counts}

    def _check_finite(self, losses: np.ndarray, batch: Batch) -> None:
        wrong = ~np.isfinite(losses)
        if wrong.any():
            text = self.work.text_of(batch.start + int(wrong.argmax()))
            raise UserError(
                f"{self.checkpoint.path} gives a score that is not finite for text {text}: its "
                "training diverged, or its weights are damaged; try --precision=fp32 or another "
                "checkpoint."
            )


def _result(
    scoring: _Scoring, sequences: Sequences, identity: Mapping[str, Any], directory: Path
) -> dict[str, Any]:
    """The result of a checkpoint, computed unless an earlier start did so. Collective."""
    run, checkpoint = scoring.inference.run, scoring.checkpoint
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
        identity = {**identity, "weights": checkpoint.weights_digest}
        parts = scoring.inference.compute(scoring, directory, identity, through_chief=True)
        if run.keeps_files:
            result = _summarized(scoring, sequences, list(parts.read_all()), directory)
            write_sealed_json(directory / RESULT_NAME, result)
    if run.keeps_files:  # what the result was computed from
        for path in directory.glob(PART_NAMES):
            path.unlink()
    return run.ranks.broadcast(result)


def _summarized(
    scoring: _Scoring,
    sequences: Sequences,
    parts: Sequence[Mapping[str, np.ndarray]],
    directory: Path,
) -> dict[str, Any]:
    """The perplexities of a checkpoint; also writes the scores of its texts."""
    checkpoint, work = scoring.checkpoint, scoring.work
    result: dict[str, Any] = {
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "weights_sha256": checkpoint.weights_digest,
        MASKED: None,
        PSEUDO: None,
    }
    losses, counts = (np.concatenate([part[n] for part in parts]) for n in ("losses", "counts"))
    likelihoods = None
    for metric, copies in work.copies.items():
        arrays = work.sequence, work.variant, losses, counts
        scores = Scores(*(array[copies.start : copies.stop] for array in arrays))
        if metric == PSEUDO:
            likelihoods = log_likelihoods(scores, sequences)
        perplexity = pseudo_perplexity if metric == PSEUDO else masked_perplexity
        result[metric] = dataclasses.asdict(perplexity(scores, sequences))
    write_texts(directory / TEXTS_NAME, sequences, likelihoods)
    if likelihoods is not None and can_draw():
        draw_texts(directory / TEXTS_PICTURE_NAME, sequences, likelihoods)
    return result


def _finished_results(directory: Path) -> list[dict[str, Any]]:
    """The results of all finished checkpoints, by step and name."""
    results = filter(None, map(_read_result, directory.glob(f"*/{RESULT_NAME}")))
    return sorted(results, key=lambda result: (result["step"] or 0, result["checkpoint"]))


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


def _write(output_dir: Path, about: Mapping[str, Any], run: Run) -> None:
    """Writes the results of all checkpoints evaluated so far."""
    results = _finished_results(output_dir / DIRECTORY)
    write_results(output_dir, about, results)
    if len(results) > 1:
        if can_draw():
            draw_training(output_dir / PICTURE_NAME, results)
        else:
            run.message(f"no {PICTURE_NAME}, because matplotlib is not installed")
