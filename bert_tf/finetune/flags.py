"""Flags shared by the fine-tuning scripts, and the settings made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags, optional_file, require
from bert_tf.cli.training_flags import (
    checked_runtime_settings,
    define_evaluation_flags,
    define_optimization_flags,
    define_run_flags,
    define_runtime_flags,
    optimization_settings,
    run_settings,
    warn_of_ignored,
)
from bert_tf.config.declared import groups_of
from bert_tf.finetune.settings import DirectorySettings, FinetuningSettings, LayerSettings
from bert_tf.tasks.distillation.settings import (
    FOR_PRETRAINING,
    define_teacher_flags,
    teacher_settings,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

_Settings = TypeVar("_Settings", bound=FinetuningSettings)

# The loss weights of Hugging Face's run_squad_w_distillation.py, which does not compare hidden
# states.
_TEACHER_DEFAULTS = {
    "alpha_ce": {"default": 0.5},
    "alpha_label": {"default": 0.5},
    "alpha_cos": {"default": 0.0},
}

# Without it, the updates of a short training are several times larger than its learning rate says:
# it needs another rate than others publish, or gets stuck (Zhang et al. 2021, Revisiting Few-sample
# BERT Fine-tuning, section 4).
_CORRECTED = {
    "default": True,
    "help_text": "Adam with bias correction; google-research/bert has none, with which a short "
    "training can get stuck.",
}


def define_finetuning_flags(
    define: Definer,
    define_task_flags: Callable[[Definer], None],
    *,
    examples: str,
    label_flag: str,
    max_seq_length: Mapping[str, Any],
    length_buckets: bool,
) -> None:
    """Defines the flags of a fine-tuning script.

    Args:
      define: the definer to use.
      define_task_flags: defines the task's own flags.
      examples: what help texts call the contents of a record.
      label_flag: see ``define_teacher_flags``.
      max_seq_length: default and help text of that flag, whose meaning depends on the task.
      length_buckets: the flag's default.
    """
    define_model_flags(define)
    define_task_flags(define)
    _define_record_flags(
        define, examples, max_seq_length=max_seq_length, length_buckets={"default": length_buckets}
    )
    define_teacher_flags(
        define, label_flag=label_flag, without=FOR_PRETRAINING, **_TEACHER_DEFAULTS
    )
    define_run_flags(define)
    epochs = f"Passes over the training {examples}, on all ranks together."
    define_optimization_flags(
        define,
        without=["ramp"],
        num_train_epochs={"default": 3.0, "help_text": epochs},
        adam_bias_correction=_CORRECTED,
        warmup_proportion={"default": 0.1, "help_text": "Fraction of the steps used for warm-up."},
    )
    define_runtime_flags(define)


@flag_group("Model")
def define_model_flags(define: Definer) -> None:
    """Defines the flags of network and vocabulary, for weights stored without them."""
    default = " (default: the one stored with --init_checkpoint)."
    define.string("bert_config_file", None, f"JSON file of the model's architecture{default}")
    define.string("vocab_file", None, f"WordPiece vocabulary{default}")
    define.string("spm_model_file", None, f"SentencePiece model{default}")
    define.per_host("bert_config_file", "vocab_file", "spm_model_file")
    define.boolean("do_lower_case", None, "Lower-case the text (default: as the vocabulary).")
    define.boolean("strip_accents", None, "Strip its accents (default: as the model states).")


@flag_group("Fine-tuning")
def _define_record_flags(define: Definer, examples: str, **of_task: Mapping[str, Any]) -> None:
    """Defines the flags of length, batching, seeds, records and the layers that are trained."""
    where = f"Directory of the {examples}' records (output_dir/features)."
    define.settings(FinetuningSettings, features_dir={"help_text": where}, **of_task)
    define.settings(LayerSettings)


def finetuning_settings(
    kind: type[_Settings], values: flags.FlagValues, *, does: Iterable[str], **task_settings: Any
) -> _Settings:
    """The settings of a run, made from its flags and ``task_settings``.

    ``does`` is as in ``run_settings``. Raises UserError for invalid flags.
    """
    if values.seeds and values.dllog_path:
        raise UserError("--seeds makes several runs, but --dllog_path is a single file; drop one.")
    run = run_settings(values, does=does)
    optimization = optimization_settings(values)
    if values.do_train:
        optimization.check_lengths()
    features_dir = Path(values.features_dir or run.output_dir / "features")
    return from_flags(
        kind,
        values,
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        run=run,
        optimization=optimization,
        runtime=checked_runtime_settings(values, optimization),
        distillation=teacher_settings(values),
        features_dir=features_dir,
        **task_settings,
    )


@dataclasses.dataclass(frozen=True)
class DirectoryFlags:
    """The flags of a script that fine-tunes on the files of a directory.

    Attributes:
      kind: the settings that are made from them.
      heading: what the task's own flags are about.
      examples: what help texts call the contents of a record.
      longest: help text of --max_seq_length.
      files, predictions: what help texts call the input files and the output.
      changes: field of ``kind`` -> facts of its flag that are different.
      ignored: flags of NVIDIA's script, by name and type, that have no effect, and
      why: the reason.
      peer: that script in ``compat.nvidia_defaults``.
    """

    kind: type[DirectorySettings]
    heading: str
    examples: str
    longest: str
    files: str
    predictions: str
    changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    ignored: Mapping[str, type] = dataclasses.field(default_factory=dict)
    why: str = ""
    peer: str | None = None

    def define(self, values: flags.FlagValues) -> None:
        """Defines the flags."""
        define_finetuning_flags(
            Definer(values),
            flag_group(self.heading)(self._define_own),
            examples=self.examples,
            label_flag="alpha_label",
            max_seq_length={"default": 128, "help_text": self.longest},
            length_buckets=False,
        )

    def _define_own(self, define: Definer) -> None:
        define.settings(self.kind, **self.changes)
        shared = groups_of(DirectorySettings)
        for name, group in groups_of(self.kind).items():
            if name not in shared:
                define.settings(group)
        define.settings(
            DirectorySettings,
            data_dir={"help_text": f"Directory of {self.files}."},
            do_predict={"help_text": f"Predict the test set and write {self.predictions}."},
        )
        define_evaluation_flags(
            define,
            without=["max_eval_steps"],
            do_eval={"help_text": "Evaluate on the development set."},
        )
        define.ignored(self.ignored, self.why)

    def settings(self, values: flags.FlagValues) -> Any:
        """Turns parsed flags into settings; raises UserError for invalid flags."""
        warn_of_ignored(values, also=self.ignored)
        if self.peer is not None and any(values[name].present for name in self.ignored):
            from bert_tf.compat import nvidia_defaults

            nvidia_defaults.adopt_and_say(values, getattr(nvidia_defaults, self.peer))
        require(values, "output_dir")
        does = ["do_train", "do_eval", "do_predict"]
        settings = finetuning_settings(self.kind, values, does=does)
        if settings.needs_directory:
            require(values, "data_dir")
        if settings.data_dir is not None and not settings.data_dir.is_dir():
            raise UserError(
                f"--data_dir={settings.data_dir} is not a directory; give the directory of the "
                "task's files."
            )
        return settings
