"""The settings of pre-training runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, path_setting, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.options import Interval

if TYPE_CHECKING:
    from bert_tf.model.config import BertConfig
    from bert_tf.tasks.distillation.settings import DistillationSettings
    from bert_tf.tasks.pretraining.task import ObjectiveTask


@dataclasses.dataclass(frozen=True)
class DataSettings(Settings):
    """Which records to use, and what they must look like.

    Attributes:
      train_files: TFRecord files to train on; empty if --before_training makes them first.
      eval_files: held-out TFRecord files; the training files if none were given.
      train_patterns, eval_patterns: the files, globs and directories given, some with weights.
      masks: how tokens are masked in records that store no masks; the number of predictions is also
        that of records that do.
    """

    train_files: tuple[Path, ...]
    eval_files: tuple[Path, ...]
    train_patterns: str
    eval_patterns: str
    max_seq_length: int = setting(
        128, "Tokens per sequence; must match the records.", bounds=AT_LEAST_ONE
    )
    masks: MaskingOptions = group(MaskingOptions)
    final_masked_lm_prob: float | None = setting(
        None,
        "Fraction of tokens to mask in the last update, reached linearly from --masked_lm_prob "
        "(Ankner et al. 2024). For records masked at training time.",
        kind=float,
        bounds=Interval(0, 1, open_low=True, open_high=True),
    )
    length_buckets: bool = setting(
        False,
        "Batch records of similar length and cut off padding beyond the longest. Lengths are "
        "counted once, and kept in FILE.lengths.",
    )
    local_cache_dir: Path | None = path_setting(
        "Directory on each host's own disk, to which the records are copied before training; "
        "matching copies from earlier runs are reused.",
    )
    local_cache_gb: float | None = setting(
        None,
        "Maximum size of --local_cache_dir in GB (default: the space on its disk).",
        kind=float,
        bounds=Interval(0, open_low=True),
        per_host=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Yields an error for a cache limit without a cache."""
        if self.local_cache_gb is not None and self.local_cache_dir is None:
            yield f"{self.given('local_cache_gb')} needs --local_cache_dir; give it."


class Objective(Protocol):
    """The settings of a pre-training objective."""

    def task(self, config: BertConfig) -> ObjectiveTask:
        """The task for a network."""


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(Settings):
    """The settings of a pre-training run.

    Attributes:
      bert_config_file: None uses the file stored with the weights that the run starts from.
      tokenizer_files: override the files stored with the records or with those weights.
      network: architecture settings given individually, keyed as in ``BertConfig``.
      distillation: None to train without a teacher.
      objective: an objective that replaces BERT's two heads; None for these heads.
    """

    bert_config_file: Path | None
    data: DataSettings
    run: RunSettings
    optimization: OptimizationSettings
    runtime: RuntimeSettings
    next_sentence: bool = setting(
        True,
        "Train the next-sentence head, on next sentences or sentence order.",
        flag="nsp",
    )
    masked_lm: bool = setting(True, "Train the masked-LM head.", flag="mlm")
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    distillation: DistillationSettings | None = None
    objective: Objective | None = None
    before_training: str | None = setting(
        None,
        "Shell command to run once on each host before the records are opened, for example to "
        "mount or fetch them; if it fails, all ranks stop.",
        kind=str,
        parse=lambda given: given or None,
        per_host=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Yields an error if nothing is trained, or if ways to make batches or targets conflict."""
        if not self.next_sentence and not self.masked_lm:
            yield "--nsp=false --mlm=false leaves nothing to train; turn one of them on."
        ramps = {
            "batch_ramp": self.optimization.batch.ramp,
            "length_ramp": self.optimization.length_ramp,
        }
        for name, ramp in ramps.items():
            if self.data.length_buckets and ramp is not None:
                yield (
                    f"--length_buckets makes batches of one size, of whole records; it cannot be "
                    f"combined with --{name}, drop one of them."
                )
        if self.distillation is not None and self.distillation.teacher_cache is not None:
            yield from self._contradictions_of_kept_targets(self.distillation)

    def _contradictions_of_kept_targets(self, teacher: DistillationSettings) -> Iterator[str]:
        """Yields an error for every setting that needs more than cached soft targets."""
        needed = {
            "--restrict_ce_to_mask": teacher.restrict_ce_to_mask,
            "--alpha_ce of more than 0": teacher.alpha_ce > 0,
            "--alpha_cos=0": teacher.alpha_cos == 0,
            "--alpha_hidden=0": teacher.alpha_hidden == 0,
            "--alpha_attention=0": teacher.alpha_attention == 0,
            "--top_k_targets or --min_target_probability": teacher.top_k_targets
            or teacher.min_target_probability,
        }
        for name, is_given in needed.items():
            if not is_given:
                yield (
                    f"--cache_teacher keeps soft targets of masked tokens only, so it needs "
                    f"{name}; give that or drop the flag."
                )
        if self.optimization.length_ramp is not None:
            yield (
                "--length_ramp truncates records, but --cache_teacher keeps targets of whole ones; "
                "drop one of them."
            )
        if self.data.final_masked_lm_prob is not None:
            yield (
                "--final_masked_lm_prob changes how many words are masked, but --cache_teacher "
                "needs a fixed number; drop one of them."
            )
