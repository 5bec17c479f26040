"""Pre-training: masked words and next sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf import environment
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import DataSettings, PretrainingSettings, RuntimeSettings
from bert_tf.data import pipeline
from bert_tf.data.masking import MaskingSettings
from bert_tf.data.order import GlobalBatchSlice
from bert_tf.data.tfrecord import RecordSet
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, read_json
from bert_tf.model import precision
from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import ClassificationSums
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.pretraining import pretraining_output, pretraining_specs
from bert_tf.model.variables import create_variables
from bert_tf.training import distribution, ledger
from bert_tf.training.batch_plan import resolve_batch_plan, resolve_step_plan
from bert_tf.training.distribution import SingleProcess
from bert_tf.training.run_log import RunLog
from bert_tf.training.session import SessionSettings
from bert_tf.training.trainer import Job, StartPoint, Trainer, find_start

MASKED_LM = "masked_lm"
NEXT_SENTENCE = "next_sentence"


class PretrainingObjective:
    """Masked words and next sentences; either can be left out."""

    def __init__(
        self,
        config: BertConfig,
        policy: PrecisionPolicy,
        *,
        masked_lm: bool,
        next_sentence: bool,
        seed: int,
    ) -> None:
        """``seed`` decides the initial weights."""
        self._config = config
        self._policy = policy
        self._heads = {MASKED_LM: masked_lm, NEXT_SENTENCE: next_sentence}
        self._seed = seed
        self.terms = [term for term, present in self._heads.items() if present]

    def create_variables(self) -> None:
        """Creates the network's variables in the current graph."""
        self._variables = create_variables(
            pretraining_specs(self._config, **self._heads),
            initializer_range=self._config.initializer_range,
            seed=self._seed,
        )

    def weights(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The number of masked words and of sequences in a batch."""
        sequences = tf.cast(tf.shape(features["input_ids"])[0], tf.float32)
        found = {
            MASKED_LM: tf.reduce_sum(features["masked_lm_weights"]),
            NEXT_SENTENCE: sequences,
        }
        return {term: found[term] for term in self.terms}

    def sums(
        self, features: Mapping[str, tf.Tensor], *, dropout: Dropout | None
    ) -> dict[str, ClassificationSums]:
        """The forward pass of one micro batch."""
        output = pretraining_output(
            self._variables,
            self._config,
            features,
            policy=self._policy,
            dropout=dropout,
            **self._heads,
        )
        return {term: getattr(output, term) for term in self.terms}


def run(settings: PretrainingSettings) -> dict[str, float] | None:
    """Trains and evaluates as the settings say.

    Returns the last evaluation's results, None without ``do_eval``. Raises UserError for bad input.
    """
    environment.quiet_tensorflow(verbose=settings.runtime.verbose)
    if settings.runtime.deterministic:
        tf.compat.v2.config.experimental.enable_op_determinism()
    ranks = distribution.connect(
        horovod=settings.runtime.horovod, num_threads=settings.runtime.num_threads
    )
    config = BertConfig.from_json_file(settings.bert_config_file)
    output_dir = settings.run.output_dir
    if ranks.is_chief:
        make_output_dir(output_dir, flag="output_dir")
    start = ranks.broadcast(find_start(output_dir) if ranks.is_chief else None)
    hardware = precision.probe_hardware()
    chosen = choose_precision(settings.runtime, hardware)
    data = _open_data(settings, config)
    distribution.check_same_on_all_ranks(
        ranks,
        {
            "training data": data.train_identity if settings.run.do_train else "none",
            "precision": chosen,
            "bert_tf version": ledger.versions()["bert_tf"],
        },
    )
    log = RunLog(output_dir) if ranks.is_chief else None
    if log is not None:
        for warning in precision_warnings(settings.runtime, chosen, hardware):
            log.message(f"warning: {warning}")
    job = _make_job(
        settings, config, ranks=ranks, start=start, data=data, hardware=hardware, chosen=chosen
    )
    run_ledger = None
    if settings.run.do_train:
        run_ledger = ledger.training_ledger(
            ranks=ranks,
            batch=job.batch,
            steps=job.steps,
            optimization=settings.optimization,
            precision={
                "policy": chosen,
                "amp": settings.runtime.amp,
                "xla": settings.runtime.use_xla,
                **precision.policy_for(chosen).describe(),
            },
            num_records=len(data.train_records),
            data=data.facts(),
            start_step=start.step,
        )
    if log is not None:
        _announce(settings, config, run_ledger, start=start, log=log)
    trainer = Trainer(job, log)
    if settings.run.do_train:
        _train(trainer, job, start=start, log=log)
    results = trainer.evaluate() if settings.run.do_eval else None
    if log is not None:
        log.message(f"output is in {output_dir}")
    return results


def choose_precision(runtime: RuntimeSettings, hardware: precision.Hardware) -> str:
    """The precision of the products; raises UserError for float16 on a CPU."""
    chosen = precision.resolve_precision(runtime.precision, hardware)
    if chosen == "fp16" and not hardware.has_gpu and not runtime.allow_slow_fp16:
        raise UserError(
            "--precision=fp16 on a CPU is hundreds of times slower than fp32, as TensorFlow only "
            f"emulates it there; use --precision={hardware.fast_precisions()[0]}, or "
            "--allow_slow_fp16 for a test."
        )
    return chosen


def precision_warnings(
    runtime: RuntimeSettings, chosen: str, hardware: precision.Hardware
) -> list[str]:
    """What a user should know of a precision that the hardware is not made for."""
    warnings = [precision.slow_precision_warning(chosen, hardware)]
    if runtime.amp and "bf16" not in hardware.fast_precisions() and not hardware.has_gpu:
        warnings.append(
            "--amp is of no use here: this CPU has no bfloat16 products, and TensorFlow may leave "
            "the graph as it is"
        )
    return [warning for warning in warnings if warning]


def needs_loss_scale(runtime: RuntimeSettings, chosen: str, hardware: precision.Hardware) -> bool:
    """Whether gradients pass through float16, by --precision or by TensorFlow's own rewrite."""
    return chosen == "fp16" or (runtime.amp and hardware.has_gpu)


@dataclasses.dataclass(frozen=True)
class _Data:
    """The records of a run: opened, checked against the flags and the model."""

    train_records: RecordSet | None
    train_info: pipeline.RecordInfo | None
    eval_records: RecordSet | None
    eval_info: pipeline.RecordInfo | None
    masking: MaskingSettings | None

    @property
    def train_identity(self) -> str:
        """One digest of the training data."""
        return self.train_info.data_sha256

    def facts(self) -> dict[str, object]:
        """The ledger's section."""
        manifest = self.train_info.manifest
        return {
            "sha256": self.train_identity,
            "vocabulary_sha256": manifest.vocabulary.sha256 if manifest else None,
            "train_records": len(self.train_records),
            "eval_records": len(self.eval_records) if self.eval_records else 0,
            "masking": "stored" if self.train_info.masked else "at training time",
        }


def _open_data(settings: PretrainingSettings, config: BertConfig) -> _Data:
    train = eval_ = (None, None)
    if settings.run.do_train:
        train = _open_records(settings.data, settings.data.train_files, config)
    if settings.run.do_eval:
        eval_ = _open_records(settings.data, settings.data.eval_files, config)
    infos = [info for _, info in (train, eval_) if info is not None]
    if settings.next_sentence and not all(info.next_sentence for info in infos):
        raise UserError(
            "the records were made without next sentences; give --nsp=false or make them with "
            "--nsp=true."
        )
    if len({manifest.vocabulary.sha256 for info in infos for manifest in info.manifests}) > 1:
        raise UserError(
            f"the held-out records of {infos[1].first_file} were made with another vocabulary than "
            f"the training records of {infos[0].first_file}; give records of one vocabulary."
        )
    return _Data(*train, *eval_, masking=_masking(settings.data, infos))


def _open_records(
    data: DataSettings, files, config: BertConfig
) -> tuple[RecordSet, pipeline.RecordInfo]:
    records = RecordSet(files)
    info = pipeline.inspect_records(records)
    pipeline.check_records(
        info,
        max_seq_length=data.max_seq_length,
        max_predictions_per_seq=data.max_predictions_per_seq,
        vocab_size=config.vocab_size,
    )
    if data.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={data.max_seq_length} is more than the model's "
            f"max_position_embeddings={config.max_position_embeddings}; lower it or use another "
            "--bert_config_file."
        )
    return records, info


def _masking(data: DataSettings, infos: list[pipeline.RecordInfo]) -> MaskingSettings | None:
    """Masking at training time; None where every record stores its masks."""
    unmasked = [info for info in infos if not info.masked]
    if not unmasked:
        return None
    return MaskingSettings(
        masked_lm_prob=data.masked_lm_prob,
        max_predictions_per_seq=data.max_predictions_per_seq,
        vocab_size=unmasked[0].vocab_size,
        special_ids=unmasked[0].special_ids,
        do_whole_word_mask=data.whole_word,
    )


def _make_job(
    settings: PretrainingSettings,
    config: BertConfig,
    *,
    ranks: SingleProcess,
    start: StartPoint,
    data: _Data,
    hardware: precision.Hardware,
    chosen: str,
) -> Job:
    optimization = settings.optimization
    batch = resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=ranks.world_size,
    )
    steps = resolve_step_plan(
        num_train_steps=optimization.num_train_steps,
        num_warmup_steps=optimization.num_warmup_steps,
        learning_rate=optimization.learning_rate,
        world_size=ranks.world_size,
        scale_steps_by_ranks=optimization.scale_steps_by_ranks,
        learning_rate_scaling=optimization.learning_rate_scaling,
    )

    def train_input() -> tf.data.Dataset:
        return pipeline.training_dataset(
            data.train_records,
            info=data.train_info,
            batch=GlobalBatchSlice(batch.global_batch_size, ranks.rank, ranks.world_size),
            start_position=start.data_position,
            seed=settings.run.seed,
            masking=data.masking,
        )

    def eval_input() -> tf.data.Dataset:
        return pipeline.evaluation_dataset(
            data.eval_records,
            info=data.eval_info,
            batch_size=settings.run.eval_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            seed=settings.run.seed,
            masking=data.masking,
        )

    return Job(
        objective=PretrainingObjective(
            config,
            precision.policy_for(chosen),
            masked_lm=settings.masked_lm,
            next_sentence=settings.next_sentence,
            seed=settings.run.seed,
        ),
        perplexity_of=MASKED_LM if settings.masked_lm else None,
        run=settings.run,
        ranks=ranks,
        batch=batch,
        steps=steps,
        optimization=optimization,
        runtime=settings.runtime,
        session=SessionSettings(
            threads=ranks.threads,
            use_xla=settings.runtime.use_xla,
            amp=settings.runtime.amp,
            gpu=ranks.local_rank if hardware.has_gpu else None,
        ),
        needs_loss_scale=needs_loss_scale(settings.runtime, chosen, hardware),
        train_input=train_input,
        eval_input=eval_input,
    )


def _announce(settings, config, run_ledger, *, start: StartPoint, log: RunLog) -> None:
    """Prints and saves what the run will do, before it does it."""
    if run_ledger is not None:
        log.message(ledger.format_ledger(run_ledger))
        if start.checkpoint is not None:
            _compare_with_previous_run(settings.run.output_dir, run_ledger, log)
        ledger.write_run_json(
            settings.run.output_dir,
            ledger=run_ledger,
            flags=settings.run.flags,
            model=config.to_dict(),
        )
    if start.checkpoint is not None:
        ignored = "; --init_checkpoint is not read again" if settings.run.init_checkpoint else ""
        log.message(f"going on from {start.checkpoint} (step {start.step}){ignored}")
    elif not settings.run.do_train and not settings.run.init_checkpoint:
        raise UserError(
            f"--do_eval: {settings.run.output_dir} holds no checkpoint; train first, or give "
            "--init_checkpoint."
        )


def _compare_with_previous_run(output_dir: Path, run_ledger: ledger.Ledger, log: RunLog) -> None:
    """Raises UserError where a run would go on with ids that mean other words."""
    record = output_dir / "run.json"
    if not record.is_file():
        return
    before = read_json(record, what="run record")["ledger"]["data"]
    now = run_ledger["data"]
    if before["vocabulary_sha256"] != now["vocabulary_sha256"]:
        raise UserError(
            f"{output_dir} holds a model of another vocabulary than the records'; choose another "
            "--output_dir, or give records made with that vocabulary."
        )
    if before["sha256"] != now["sha256"]:
        log.message("the training data are not those that this run began with")


def _train(trainer: Trainer, job: Job, *, start: StartPoint, log: RunLog | None) -> None:
    total = job.steps.num_train_steps
    if start.step >= total:
        if log is not None:
            log.message(
                f"nothing to train: {start.checkpoint} is at step {start.step} and the run ends at "
                f"step {total}; raise --num_train_steps to go on."
            )
        return
    trainer.train_and_evaluate()
