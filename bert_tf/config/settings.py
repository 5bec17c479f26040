"""The settings of a run, as frozen dataclasses.

Entry scripts build them from flags, users' programs directly; the defaults here are those of the
flags.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from bert_tf.config.ramps import RampSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.options import Options

# What run_evaluation.py computes, and what it takes for a text in a text file.
METRICS = MASKED, PSEUDO = "masked", "pseudo"
TEXT_UNITS = LINE, DOCUMENT = "line", "document"

# Skipped updates in a row that end a run with a loss scale: more than it takes to halve the largest
# scale, 2**32, to 1.
DEFAULT_MAX_SKIPPED = 40


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Where the records are and what they must look like.

    Attributes:
      train_files: TFRecord files to train on; empty if a command has to make them first.
      eval_files: held-out TFRecord files; the training files if none were given.
      train_patterns, eval_patterns: the files, globs and directories that these come from.
      masked_lm_prob, whole_word, ngram, favor_shorter_ngram: masking at training time, for records
        without stored masks.
      final_masked_lm_prob: the share of the last update; None for one share in all.
      length_buckets: train on batches of records of similar length, without the padding behind the
        longest, instead of random batches of whole records.
      local_cache_dir: where each host keeps copies to train on; None reads the files themselves.
      local_cache_gb: the most that is kept there, in 10^9 bytes; None for what the disk has.
    """

    train_files: tuple[Path, ...]
    eval_files: tuple[Path, ...]
    train_patterns: str
    eval_patterns: str
    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    whole_word: bool
    final_masked_lm_prob: float | None = None
    ngram: int = 1
    favor_shorter_ngram: bool = True
    length_buckets: bool = False
    local_cache_dir: Path | None = None
    local_cache_gb: float | None = None


@dataclasses.dataclass(frozen=True)
class OptimizationSettings:
    """Batch, schedule and optimizer, as requested by the user (before scaling by ranks).

    Attributes:
      num_train_steps, num_warmup_steps: on one rank; None if given as the following two.
      num_train_epochs: passes over the training records, on all ranks together, unless steps are
        given.
      warmup_proportion: share of the steps in the warm-up, unless its steps are given.
      stop_after_steps: on one rank, the update after which the run ends before its schedule does;
        None runs the whole schedule.
      scale_steps_by_ranks: None keeps the setting of the run that is resumed; in a new run, on with
        Horovod.
      learning_rate, end_learning_rate: the peak, and the rate after the last step.
      schedule: its name in ``update.schedules.SCHEDULES``.
      schedule_options: its options, by keyword; defaults apply to those that are left out.
      rewarm_at_step, num_rewarm_steps: where the schedule begins again, with a warm-up of so many
        steps, on one rank; None if it does not.
      optimizer: its name in ``update.optimizers.OPTIMIZERS``.
      optimizer_options: its options; defaults apply to those that are left out.
      batch_ramp: how the global batch grows up to the full one; None if it does not.
      length_ramp: how the sequences grow that records are cut to; None keeps them whole.
      micro_batch_flag: the name by which the user gave the micro batch size.
      shard_optimizer_state: share out the optimizer's slots over the ranks, so that each has those
        of a part of every weight.
      rate_factors: (regular expression, factor) pairs: a variable's learning rate is multiplied by
        the factor of the first expression found in its name; 0 freezes it.
    """

    micro_batch_size: int | None = None
    accumulation_steps: int | None = None
    global_batch_size: int | None = None
    num_train_steps: int | None = None
    num_warmup_steps: int | None = None
    learning_rate: float = 5e-5
    end_learning_rate: float = 0.0
    schedule: str = "polynomial"
    scale_steps_by_ranks: bool | None = None
    learning_rate_scaling: str = "none"
    optimizer: str = "adam"
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    loss_normalization: str = "global_batch"
    allreduce_every_micro_batch: bool = False
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    schedule_options: Options = dataclasses.field(default_factory=dict)
    rewarm_at_step: int | None = None
    num_rewarm_steps: int | None = None
    stop_after_steps: int | None = None
    batch_ramp: RampSettings | None = None
    length_ramp: RampSettings | None = None
    micro_batch_flag: str = "train_batch_size"
    rate_factors: tuple[tuple[str, float], ...] = ()
    shard_optimizer_state: bool = False
    num_train_epochs: float | None = None
    warmup_proportion: float | None = None

    @property
    def counts_epochs(self) -> bool:
        """Whether the length of training is given in epochs.

        It is then an amount of data, so a run resumed with a different global batch needs a
        different number of steps.
        """
        return self.num_train_steps is None

    def scales_steps(self, *, by_default: bool) -> bool:
        """Whether the steps of a new run are divided by the number of ranks."""
        given = self.scale_steps_by_ranks
        return by_default if given is None else given

    def rate_factor(self, variable_name: str) -> float:
        """The factor of a variable's learning rate, 1 if no expression matches its name."""
        found = (f for pattern, f in self.rate_factors if re.search(pattern, variable_name))
        return next(found, 1.0)


@dataclasses.dataclass(frozen=True)
class CommunicationSettings:
    """How ranks sum their gradients; None leaves Horovod's default or its environment variable.

    Attributes:
      compression: how gradients are sent: ``none`` (float32) or ``fp16``.
      adasum: combine gradients with Adasum (Maleki et al. 2020) instead of summing them.
      groups: send gradients in this many groups, each as soon as it is complete; 0 lets Horovod
        fuse whatever is ready; None uses one group if all gradients are complete at once.
      embedding_rows: send the gradient of a table that is used only for look-ups as the batch's
        rows, gathered by every rank, instead of the full table; None decides by size.
      fusion_threshold_mb: size of Horovod's fusion buffer, in MiB.
      cycle_time_ms: milliseconds between Horovod's cycles.
      hierarchical: reduce within each host first.
      autotune: let Horovod tune the settings above by trial.
      nccl_streams: parallel NCCL streams, on GPUs.
    """

    compression: str = "none"
    adasum: bool = False
    groups: int | None = None
    embedding_rows: bool | None = None
    fusion_threshold_mb: float | None = None
    cycle_time_ms: float | None = None
    hierarchical: bool | None = None
    autotune: bool | None = None
    nccl_streams: int | None = None


@dataclasses.dataclass(frozen=True)
class RuntimeSettings:
    """Precision, compiler, ranks and threads: what should change speed, not results.

    Attributes:
      library: what ranks communicate with, a name in ``ranks.connect.LIBRARIES``; None for a single
        process.
      rank_timeout_seconds: how long a rank may be silent or hang before the job ends; 0: forever.
      policy_changes: module class -> data type, where it differs from that of ``precision``.
      amp: use TensorFlow's rewrite of a float32 graph.
      use_xla: compile clusters; None takes whichever is faster, by trial.
      loss_scale: the constant loss scale of float16; None for a dynamic one.
      initial_loss_scale, min_loss_scale, loss_scale_window: where a dynamic scale starts, its
        smallest value, and the good updates in a row after which it is doubled.
      allow_slow_fp16: allow float16 even on a CPU.
      native_ops: update weights with natively compiled operations, or fail without them; None uses
        them if they are available.
      recompute: keep each layer's input for the backward pass, and recompute the layer there.
      precision_flag, amp_flag: the flags by which the user requested float16 and TensorFlow's
        rewrite.
    """

    library: str | None = None
    rank_timeout_seconds: float = 300.0
    communication: CommunicationSettings = dataclasses.field(default_factory=CommunicationSettings)
    precision: str = "auto"
    policy_changes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    amp: bool = False
    use_xla: bool | None = False
    initial_loss_scale: float = 2.0**16
    loss_scale: float | None = None
    min_loss_scale: float = 1.0
    loss_scale_window: int = 1000
    allow_slow_fp16: bool = False
    native_ops: bool | None = None
    num_threads: int | None = None
    deterministic: bool = False
    verbose: bool = False
    recompute: bool = False
    precision_flag: str = "--precision=fp16"
    amp_flag: str = "--amp"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What a run does, where it writes and how often.

    Attributes:
      init_checkpoint: weights to start from, used while output_dir contains no checkpoint.
      resume_from: a checkpoint of another directory to resume from, with optimizer state and
        counts, used while output_dir contains none.
      reset_step: keep its optimizer state, but count steps and data from 0.
      allowed_fresh: scopes that init_checkpoint may lack.
      max_eval_steps: batches per rank in an evaluation, None for all.
      eval_every_steps: steps between evaluations during training, None to evaluate only afterwards.
      dry_run: show the plan of the run and its memory estimate, then exit.
      keep_best: keep a copy of the checkpoint with the best evaluation.
      early_stopping_evaluations: stop after this many evaluations in a row without improvement.
      flags: every flag with its value, for the record.
      defaulted: the flags that nobody gave; some of these defaults follow the model or the records.
      host_flags: flags that may differ between hosts: paths of files whose contents are compared
        instead, or that only rank 0 reads and writes; threads and verbosity.
      report_loss: show losses in progress lines.
      max_skipped_updates: stop after this many skipped updates in a row; None for the default,
        which is 1 without loss scaling.
      rollback_rate_factor: what the learning rate is multiplied by when the run goes back to its
        last good checkpoint instead of stopping so; None to stop.
      max_rollbacks: how often it may do so.
      layer_summary_steps: steps between logs of the norms and ratios of layers and variables; 0
        for none.
      dllog_path: a file to which the metrics of steps and evaluations are also logged, as DLLogger
        lines.
      replay_batch: a saved batch whose gradients are computed again, instead of training; needs
        ``dry_run``.
      plan_dir: the directory of the plan that the run is a phase of; None for a run by itself.
    """

    output_dir: Path
    init_checkpoint: str | None = None
    resume_from: str | None = None
    reset_step: bool = False
    allowed_fresh: tuple[str, ...] = ()
    do_train: bool = False
    do_eval: bool = False
    dry_run: bool = False
    eval_batch_size: int = 8
    max_eval_steps: int | None = None
    save_checkpoints_steps: int = 1000
    eval_every_steps: int | None = None
    keep_best: bool = True
    early_stopping_evaluations: int | None = None
    keep_checkpoint_max: int = 5
    display_loss_steps: int = 10
    max_skipped_updates: int | None = None
    rollback_rate_factor: float | None = None
    max_rollbacks: int = 3
    layer_summary_steps: int = 0
    seed: int = 12345
    flags: Mapping[str, object] = dataclasses.field(default_factory=dict)
    defaulted: frozenset[str] = frozenset()
    report_loss: bool = True
    dllog_path: str | None = None
    replay_batch: Path | None = None
    plan_dir: Path | None = None
    host_flags: frozenset[str] = frozenset()

    def compared_flags(self) -> dict[str, object]:
        """The flags that must be equal on all ranks, by name as shown in messages."""
        compared = self.flags.keys() - self.host_flags
        return {f"--{name}": value for name, value in self.flags.items() if name in compared}


@dataclasses.dataclass(frozen=True)
class DistillationSettings:
    """What a student learns from its teacher, in addition to the labels.

    The weights of the losses are those of the published DistilBERT run (the options of its training
    command, in the README of Hugging Face's distillation example).

    Attributes:
      teacher_checkpoint: the teacher's weights, in any format that is read.
      teacher_config_file: its architecture; None uses the one stored with the weights.
      student_layers: the teacher's layers, from 0, that the student's start from; None spreads them
        evenly, and a student with none of them starts from random weights.
      alpha_ce: weight of the divergence from the teacher's soft targets, times temperature^2.
      alpha_label: weight of the loss on labels.
      alpha_cos: weight of 1 - cosine of the last hidden states.
      alpha_hidden: weight of the squared differences of all hidden states.
      alpha_attention: weight of the squared differences of attention's scores.
      temperature: divides the scores of both networks before their softmax.
      restrict_ce_to_mask: compare soft targets at masked tokens only.
      min_target_probability: the least probability of a soft target.
      top_k_targets: the largest number of soft targets of a decision; None for all.
      teacher_cache: directory where the teacher's soft targets are kept, so that it computes each
        record once; None computes them in every update.
    """

    teacher_checkpoint: str
    teacher_config_file: Path | None = None
    student_layers: tuple[int, ...] | None = None
    alpha_ce: float = 5.0
    alpha_label: float = 2.0
    alpha_cos: float = 1.0
    alpha_hidden: float = 0.0
    alpha_attention: float = 0.0
    temperature: float = 2.0
    restrict_ce_to_mask: bool = False
    min_target_probability: float = 0.0
    top_k_targets: int | None = None
    teacher_cache: Path | None = None


@dataclasses.dataclass(frozen=True)
class PretrainingSettings:
    """A pre-training run.

    Attributes:
      bert_config_file: None uses the file stored with the weights that the run starts from.
      tokenizer_files: override those stored with the records or with those weights.
      network: architecture settings that were given individually, under the keys of ``BertConfig``.
      distillation: None trains without a teacher.
      before_training: a shell command to run on each host first; None for none.
      objective: another objective than the two heads of BERT, see
        ``tasks.pretraining.objective.Objective``; None trains these.
    """

    bert_config_file: Path | None
    next_sentence: bool
    masked_lm: bool
    data: DataSettings
    run: RunSettings
    optimization: OptimizationSettings
    runtime: RuntimeSettings
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    distillation: DistillationSettings | None = None
    before_training: str | None = None
    objective: Any = None


@dataclasses.dataclass(frozen=True)
class FinetuningSettings:
    """The settings that all fine-tuning runs share.

    Attributes:
      bert_config_file: None uses the file stored with init_checkpoint.
      tokenizer_files: override those stored with init_checkpoint.
      length_buckets: batch sequences of similar length instead of padding to max_seq_length.
      seeds: repeat the run with each of these; empty for a single run with ``run.seed``.
      features_dir: where records are kept between runs.
      num_workers: processes that write records, 0 for one per core.
      distillation: None trains without a teacher.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    max_seq_length: int
    length_buckets: bool
    seeds: tuple[int, ...]
    features_dir: Path
    num_workers: int
    run: RunSettings
    optimization: OptimizationSettings
    runtime: RuntimeSettings
    distillation: DistillationSettings | None


@dataclasses.dataclass(frozen=True)
class SquadSettings(FinetuningSettings):
    """Fine-tuning and prediction for question answering.

    Attributes:
      train_file, predict_file: SQuAD JSON.
      max_predict_questions: number of predict_file's questions to answer, None for all.
      version_2_with_negative: questions may have no answer.
      null_score_diff_threshold: predict no answer if the null score exceeds the best span's score
        by more than this.
    """

    train_file: Path | None
    predict_file: Path | None
    max_predict_questions: int | None
    doc_stride: int
    max_query_length: int
    n_best_size: int
    max_answer_length: int
    version_2_with_negative: bool
    null_score_diff_threshold: float


@dataclasses.dataclass(frozen=True)
class DirectorySettings(FinetuningSettings):
    """Fine-tuning and prediction on the files of a directory.

    Attributes:
      data_dir: directory of the files; None if none of them is read.
      do_predict: predict a file without labels and write the results.
      predict_batch_size: sequences per prediction batch and rank.
      eval_file, predict_file: None uses those in ``data_dir``.
    """

    data_dir: Path | None
    do_predict: bool
    predict_batch_size: int
    eval_file: Path | None
    predict_file: Path | None


@dataclasses.dataclass(frozen=True)
class ClassificationSettings(DirectorySettings):
    """Fine-tuning and prediction for classification and regression of sentences and pairs.

    Attributes:
      task_name: a key of ``tasks.classification.formats.GLUE_TASKS``.
    """

    task_name: str


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Perplexities of a masked language model.

    Attributes:
      bert_config_file: None uses the file stored with ``run.init_checkpoint``.
      tokenizer_files: override those stored with ``run.init_checkpoint``.
      all_checkpoints: evaluate every checkpoint in the directory ``run.init_checkpoint``.
      input_files: texts, tables or records.
      has_records: whether they are pre-training records.
      text_unit: one of ``TEXT_UNITS``.
      text_column: name or number, from 1, of the column of a table; None for text files.
      wikitext: undo the markers of WikiText.
      score_unknown: score [UNK]; otherwise it is context only.
      max_seq_length: most tokens of a sequence of a text.
      sample: share of the texts to score, in (0, 1].
      metrics: some of ``METRICS``.
      num_draws, masked_lm_prob: how masks are drawn for the masked perplexity.
      batch_tokens: most tokens in a batch of a rank.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    all_checkpoints: bool
    input_files: tuple[Path, ...]
    has_records: bool
    text_unit: str
    text_column: str | None
    wikitext: bool
    score_unknown: bool
    max_seq_length: int
    sample: float
    metrics: tuple[str, ...]
    num_draws: int
    masked_lm_prob: float
    batch_tokens: int
    run: RunSettings
    runtime: RuntimeSettings


_TaskSettings = TypeVar("_TaskSettings", PretrainingSettings, FinetuningSettings)


def dry(settings: _TaskSettings) -> _TaskSettings:
    """The settings of the same run, which writes nothing."""
    return dataclasses.replace(settings, run=dataclasses.replace(settings.run, dry_run=True))
