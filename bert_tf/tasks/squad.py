"""Question answering: fine-tuning on SQuAD files, predictions, scores and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.model_files import ModelFiles, model_files
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import OptimizationSettings, SquadSettings
from bert_tf.errors import UserError
from bert_tf.files import write_json
from bert_tf.input.batches import dataset_of_positions
from bert_tf.input.length_buckets import LengthBuckets
from bert_tf.input.order import batch_indices
from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import ClassificationSums
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.squad import (
    SPAN_HEAD,
    SpanCandidates,
    span_candidates,
    span_logits,
    span_sums,
    squad_specs,
)
from bert_tf.model.variables import create_variables
from bert_tf.squad.answers import AnswerSettings, Predictions, best_span_texts
from bert_tf.squad.examples import SquadFile, read_squad
from bert_tf.squad.features import (
    build_features,
    find_features,
    most_windows,
    open_features,
)
from bert_tf.squad.thresholds import best_threshold
from bert_tf.squad.windows import WindowSettings
from bert_tf.tasks.span_model import ModelParts, collect_parts
from bert_tf.tasks.squad_prediction import Questions, SpanEvaluation, is_scored
from bert_tf.tasks.squad_report import Trained, write_squad_report
from bert_tf.training import run as training_run
from bert_tf.training.checks import Network, check_start, settle_scaling
from bert_tf.training.evaluation import Results
from bert_tf.training.run import Run
from bert_tf.training.trainer import Job
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.workers import resolve_num_workers

POSITION = "position"
SEEDS_NAME = "seeds.json"
UNUSABLE_NAME = "unusable_answers.json"


class SpanObjective:
    """Where the answer begins and ends: two decisions a sequence, one term."""

    terms = (POSITION,)

    def __init__(
        self,
        config: BertConfig,
        policy: PrecisionPolicy,
        *,
        seed: int,
        recompute: bool = False,
        skip_padding: bool = True,
    ) -> None:
        """``seed`` decides the weights that no checkpoint has; the last two are the encoder's."""
        self._config = config
        self._policy = policy
        self._seed = seed
        self._recompute = recompute
        self._skip_padding = skip_padding

    def create_variables(self) -> None:
        """Creates the network's variables in the current graph."""
        self._variables = create_variables(
            squad_specs(self._config),
            initializer_range=self._config.initializer_range,
            seed=self._seed,
        )

    def weights(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The number of sequences in a batch."""
        return {POSITION: tf.cast(tf.shape(features["input_ids"])[0], tf.float32)}

    def sums(
        self, features: Mapping[str, tf.Tensor], *, dropout: Dropout | None
    ) -> dict[str, ClassificationSums]:
        """The forward pass of one micro batch."""
        logits = span_logits(
            self._variables,
            self._config,
            features,
            policy=self._policy,
            dropout=dropout,
            recompute=self._recompute,
            skip_padding=self._skip_padding,
        )
        return {POSITION: span_sums(logits, features, policy=self._policy)}

    def candidates(self, features: Mapping[str, tf.Tensor], *, k: int) -> SpanCandidates:
        """The ``k`` best positions of a batch without labels."""
        logits = span_logits(
            self._variables,
            self._config,
            features,
            policy=self._policy,
            skip_padding=self._skip_padding,
        )
        return span_candidates(logits, features, k=k)


def run(settings: SquadSettings) -> Results | None:
    """Trains, predicts and scores as the settings say, once or with each of the seeds.

    Returns the results of the prediction, those of the last seed where there are several, and None
    without one. Raises UserError for bad input.
    """
    if not settings.seeds:
        return _run_once(settings, {})
    by_seed: dict[int, Results] = {}
    for seed in settings.seeds:
        directory = settings.run.output_dir / f"seed_{seed}"
        own = dataclasses.replace(settings.run, seed=seed, output_dir=directory)
        results = _run_once(dataclasses.replace(settings, run=own), by_seed)
    return results


def _run_once(settings: SquadSettings, by_seed: dict[int, Results]) -> Results | None:
    """One run; adds its results to those of earlier seeds."""
    with training_run.begin(settings.run, settings.runtime) as run:
        return _train_and_predict(settings, run, by_seed)


def _train_and_predict(
    settings: SquadSettings, run: Run, by_seed: dict[int, Results]
) -> Results | None:
    model = _open_model(settings, run)
    run = training_run.choose_arithmetic(
        run, model.config, settings.optimization, max_seq_length=settings.max_seq_length
    )
    network = _network(settings, model)
    optimization = settle_scaling(run, settings.optimization)
    settings = dataclasses.replace(settings, optimization=optimization)
    train = _read(settings, training=True) if settings.run.do_train else None
    asked = _read_asked(settings, run) if settings.run.do_eval else None
    _check_arithmetic(settings, run, train)
    if settings.run.eval_every_steps is not None and not is_scored(asked):
        raise UserError(
            f"--eval_every_steps compares scores, but {asked.path} has no answers; drop the flag "
            "or give a file with answers."
        )
    check_start(run, network, optimization)
    # Records take long to make: all that needs none of them has been checked.
    with _directory_of_new_records(settings, run) as directory:
        return _train_and_predict_on(
            settings,
            run,
            by_seed,
            model=model,
            network=network,
            train=train and _questions(settings, run, model, train, directory, training=True),
            asked=asked and _questions(settings, run, model, asked, directory, training=False),
        )


def _train_and_predict_on(
    settings: SquadSettings,
    run: Run,
    by_seed: dict[int, Results],
    *,
    model: ModelParts,
    network: Network,
    train: Questions | None,
    asked: Questions | None,
) -> Results | None:
    evaluation = _evaluation(settings, run, model, asked) if asked else None
    job = training_run.make_job(
        run,
        network=network,
        evaluation=evaluation,
        optimization=_with_steps(settings, run, len(train.features.lengths) if train else 1),
        train_input=lambda batch: _train_input(settings, run, train, batch),
        max_seq_length=settings.max_seq_length,
        length_flag="--num_train_epochs",
        steps_follow_data=settings.optimization.num_train_steps is None
        or settings.optimization.scale_steps_by_ranks,
    )
    unusable = train.squad.unusable if train else ()
    results = training_run.execute(
        run,
        job,
        network=network,
        train_data=_facts(settings, model, train, asked),
        lists={UNUSABLE_NAME: unusable} if unusable else None,
    )
    if results is not None and asked.are_scored:
        by_seed[settings.run.seed] = results
        if run.ranks.is_chief:
            trained = _trained(job, train) if train else None
            _report(settings, run, asked, evaluation.predictions, by_seed=by_seed, trained=trained)
    return results


def _open_model(settings: SquadSettings, run: Run) -> ModelParts:
    """The network's configuration and vocabulary, as given or as they lie beside the weights."""
    beside = Path(settings.run.init_checkpoint or settings.run.output_dir)
    # A dry run may be the first to hear of its output directory.
    is_new = not settings.run.init_checkpoint and not beside.is_dir()
    model = collect_parts(
        beside,
        ModelFiles() if is_new else model_files(beside),
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    positions = model.config.max_position_embeddings
    if settings.max_seq_length > positions:
        raise UserError(
            f"--max_seq_length={settings.max_seq_length} is more than the model's "
            f"max_position_embeddings={positions}; lower it or use another model."
        )
    for note in model.notes:
        run.message(note)
    return model


def _network(settings: SquadSettings, model: ModelParts) -> Network:
    return Network(
        model.config,
        lambda policy: SpanObjective(
            model.config,
            policy,
            seed=settings.run.seed,
            recompute=settings.runtime.recompute,
        ),
        model.vocabulary,
        tokenizer_files=model.tokenizer_files,
        heads=[SPAN_HEAD],
    )


def _check_arithmetic(settings: SquadSettings, run: Run, train: SquadFile | None) -> None:
    """Raises UserError for lengths, batches and steps that contradict each other on any records."""
    windows = _windows(settings)
    windows.validate()
    resolve_num_workers(settings.num_workers)
    most = most_windows(train, windows) if train else 1
    training_run.resolve_plans(_with_steps(settings, run, most, is_bound=True), run.ranks)


def _windows(settings: SquadSettings) -> WindowSettings:
    return WindowSettings(settings.max_seq_length, settings.doc_stride, settings.max_query_length)


def _read(settings: SquadSettings, *, training: bool) -> SquadFile:
    flag = "train_file" if training else "predict_file"
    return read_squad(
        getattr(settings, flag),
        flag=flag,
        version_2_with_negative=settings.version_2_with_negative,
        needs_answers=training,
    )


def _read_asked(settings: SquadSettings, run: Run) -> SquadFile:
    """The questions to answer."""
    squad = _read(settings, training=False)
    if settings.max_predict_questions is not None:
        squad = squad.first(settings.max_predict_questions)
    if squad.first_of is not None:
        run.message(f"{squad} are answered; files and scores are of these alone")
    return squad


@contextlib.contextmanager
def _directory_of_new_records(settings: SquadSettings, run: Run) -> Iterator[Path]:
    """Where records are made: those of a dry run go with it."""
    if not settings.run.dry_run:
        yield settings.features_dir
        return
    prefix = "bert_tf_features_"
    directory = Path(
        run.ranks.broadcast(tempfile.mkdtemp(prefix=prefix) if run.ranks.is_chief else None)
    )
    try:
        yield directory
        run.ranks.gather(None)  # nobody reads them any more
    finally:
        if run.ranks.local_rank == 0:
            shutil.rmtree(directory, ignore_errors=True)


def _questions(
    settings: SquadSettings,
    run: Run,
    model: ModelParts,
    squad: SquadFile,
    new_records: Path,
    *,
    training: bool,
) -> Questions:
    """A file's questions and their records, which rank 0 makes where they are not there yet."""
    windows = _windows(settings)
    kind = "train" if training else "predict"
    directory = new_records / kind
    if settings.run.dry_run:
        found = find_features(
            squad,
            settings.features_dir / kind,
            tokenizer=model.tokenizer,
            windows=windows,
            training=training,
        )
        if all(run.ranks.gather(found is not None)):
            directory = settings.features_dir / kind

    def build() -> None:
        build_features(
            squad,
            directory,
            tokenizer_files=model.tokenizer_files,
            windows=windows,
            training=training,
            num_workers=settings.num_workers,
        )

    run.ranks.once_on_each_host(build)
    features = open_features(directory)
    counts = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in features.counts.items()
    )
    run.message(f"{squad.path.name}: {counts}")
    if training and squad.unusable and not settings.run.dry_run:
        listed = settings.run.output_dir / UNUSABLE_NAME
        run.message(f"{squad.path.name}: the questions left out are listed in {listed}")
    return Questions(squad, features, windows, model.config)


def _evaluation(
    settings: SquadSettings, run: Run, model: ModelParts, asked: Questions
) -> SpanEvaluation:
    return SpanEvaluation(
        asked,
        model.tokenizer,
        settings=AnswerSettings(
            n_best_size=settings.n_best_size,
            max_answer_length=settings.max_answer_length,
            version_2_with_negative=settings.version_2_with_negative,
            null_score_diff_threshold=settings.null_score_diff_threshold,
        ),
        ranks=run.ranks,
        batch_size=settings.run.eval_batch_size,
        length_buckets=settings.length_buckets,
    )


def _with_steps(
    settings: SquadSettings, run: Run, num_windows: int, *, is_bound: bool = False
) -> OptimizationSettings:
    """The optimization with its steps counted from the epochs, where no steps are given."""
    return training_run.with_steps(
        settings.optimization,
        run.ranks,
        records=num_windows,
        epochs=settings.num_train_epochs,
        warmup_proportion=settings.warmup_proportion,
        trains=settings.run.do_train,
        is_bound=is_bound,
    )


def _train_input(
    settings: SquadSettings, run: Run, train: Questions, batch: BatchPlan
) -> tf.data.Dataset:
    features = train.features
    own = run.batch_slice(batch)
    seed = settings.run.seed
    buckets = LengthBuckets(
        features.lengths,
        global_batch_size=batch.global_batch_size,
        seed=seed,
        max_length=settings.max_seq_length,
        origin=own.origin,
    )

    def shuffled(position: int) -> np.ndarray:
        return batch_indices(position, own, num_records=len(features.lengths), seed=seed)

    def bucketed(position: int) -> np.ndarray:
        return buckets.indices(position, own)

    reader = train.reader(
        batch_size=own.size,
        indices=bucketed if settings.length_buckets else shuffled,
        positions_kept=buckets.padded_length if settings.length_buckets else None,
    )
    return dataset_of_positions(run.start.data_position, None, reader.read)


def _facts(
    settings: SquadSettings,
    model: ModelParts,
    train: Questions | None,
    asked: Questions | None,
) -> dict[str, object]:
    """The ledger's section on the data."""
    return {
        "sha256": train.features.sha256 if train else "none",
        "predict_sha256": asked.features.sha256 if asked else "none",
        "vocabulary_sha256": model.tokenizer.vocab_sha256,
        "lower_case": model.tokenizer.lower_case,
        "length_buckets": settings.length_buckets,
        "train_records": len(train.features.lengths) if train else 0,
        "train_questions": len(train.squad.examples) if train else 0,
        "predict_records": len(asked.features.lengths) if asked else 0,
    }


def _trained(job: Job, train: Questions) -> Trained:
    windows = len(train.features.lengths)
    epochs = job.steps.num_train_steps * job.batch.global_batch_size / windows
    return Trained(job.batch, epochs)


def _report(
    settings: SquadSettings,
    run: Run,
    asked: Questions,
    predictions: Predictions,
    *,
    by_seed: Mapping[int, Results],
    trained: Trained | None,
) -> None:
    squad, results = asked.squad, by_seed[settings.run.seed]
    path = write_squad_report(
        settings,
        squad,
        predictions,
        results,
        by_seed=by_seed,
        config=asked.config,
        trained=trained,
    )
    run.message(f"the report is {path}")
    if settings.version_2_with_negative:
        best = best_threshold(squad, best_span_texts(squad, predictions), predictions.null_odds)
        run.message(
            f"--null_score_diff_threshold={best.threshold:.4f} would be best for these questions: "
            f"exact_match {best.exact:.4f}  f1 {best.f1:.4f}"
        )
    if len(settings.seeds) > 1 and len(by_seed) == len(settings.seeds):
        summary = summarize_seeds(by_seed)
        write_json(settings.run.output_dir.parent / SEEDS_NAME, summary)
        figures = ("exact_match", "f1")
        spread = "  ".join(
            f"{name} {summary[name]['mean']:.2f} +- {summary[name]['std']:.2f}" for name in figures
        )
        run.message(f"{len(by_seed)} seeds: {spread}")


def summarize_seeds(by_seed: Mapping[int, Results]) -> dict[str, dict[str, object]]:
    """Mean, sample standard deviation and the values of every figure, over the seeds."""
    names = next(iter(by_seed.values()))
    summary: dict[str, dict[str, object]] = {}
    for name in names:
        values = {seed: results[name] for seed, results in by_seed.items()}
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        mean = statistics.mean(values.values())
        summary[name] = {"mean": mean, "std": spread, "by_seed": values}
    return summary
