"""The settings of pre-training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, path_setting, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.options import Interval

if TYPE_CHECKING:
    from bert_tf.tasks.distillation.settings import DistillationSettings


@dataclasses.dataclass(frozen=True)
class DataSettings(Settings):
    """Where the records are and what they must look like.

    Attributes:
      train_files: TFRecord files to train on; empty if a command has to make them first.
      eval_files: held-out TFRecord files; the training files if none were given.
      train_patterns, eval_patterns: the files, globs and directories that these come from.
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
        "Share of tokens to mask in the last update; it goes there from --masked_lm_prob in a "
        "straight line (Ankner et al. 2024). For records masked at training time.",
        kind=float,
        bounds=Interval(0, 1, open_low=True, open_high=True),
    )
    length_buckets: bool = setting(
        False,
        "Batch records of similar length and cut the padding behind the longest. Lengths are "
        "counted once, and kept in FILE.lengths.",
    )
    local_cache_dir: Path | None = path_setting(
        "Directory on each host's own disk, to which the records are copied before training; "
        "copies of earlier runs that fit are used again.",
    )
    local_cache_gb: float | None = setting(
        None,
        "Most that --local_cache_dir may hold, in GB (default: what the disk has).",
        kind=float,
        bounds=Interval(0, open_low=True),
        per_host=True,
    )

    def contradictions(self) -> Iterator[str]:
        """A bound on a cache that there is not."""
        if self.local_cache_gb is not None and self.local_cache_dir is None:
            yield f"{self.given('local_cache_gb')} needs --local_cache_dir; give it."


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(Settings):
    """A pre-training run.

    Attributes:
      bert_config_file: None uses the file stored with the weights that the run starts from.
      tokenizer_files: override those stored with the records or with those weights.
      network: architecture settings that were given individually, under the keys of ``BertConfig``.
      distillation: None trains without a teacher.
      objective: another objective than the two heads of BERT, see
        ``tasks.pretraining.objective.Objective``; None trains these.
    """

    bert_config_file: Path | None
    data: DataSettings
    run: RunSettings
    optimization: OptimizationSettings
    runtime: RuntimeSettings
    next_sentence: bool = setting(
        True,
        "Train the next-sentence head, on next sentences or the sentence order.",
        flag="nsp",
    )
    masked_lm: bool = setting(True, "Train the masked-LM head.", flag="mlm")
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_files: TokenizerFiles = dataclasses.field(default_factory=TokenizerFiles)
    distillation: DistillationSettings | None = None
    objective: Any = None
    before_training: str | None = setting(
        None,
        "Shell command to run once on each host before the records are opened, for example to "
        "mount or fetch them; if it fails, all ranks end.",
        kind=str,
        parse=lambda given: given or None,
        per_host=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Nothing to train, and ways of making batches or targets that exclude each other."""
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
        """What needs more of a teacher than its targets on disk."""
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
                "--length_ramp cuts records, but --cache_teacher keeps the targets of whole ones; "
                "drop one of them."
            )
        if self.data.final_masked_lm_prob is not None:
            yield (
                "--final_masked_lm_prob masks other numbers of words than --cache_teacher keeps "
                "targets of; drop one of them."
            )
