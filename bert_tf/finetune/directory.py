"""Settings and flags of tasks that train, evaluate and predict on the files of a directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, require
from bert_tf.cli.training_flags import define_evaluation_flags, warn_of_ignored
from bert_tf.config.declared import AT_LEAST_ONE, Settings, path_setting, setting
from bert_tf.finetune.flags import define_finetuning_flags, finetuning_settings
from bert_tf.finetune.settings import EVAL, PREDICT, TRAIN, FinetuningSettings
from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class DirectorySettings(FinetuningSettings):
    """Fine-tuning and prediction on the files of a directory.

    Attributes:
      data_dir: None if no file of it is needed.
    """

    data_dir: Path | None = path_setting("Directory of the files.")
    do_predict: bool = setting(False, "Predict the test set and write the results.")
    train_file: Path | None = path_setting(
        "Training file instead of the one in --data_dir.", flag_of_file="train_file"
    )
    eval_file: Path | None = path_setting(
        "File to evaluate instead of the one in --data_dir.", flag_of_file="eval_file"
    )
    predict_file: Path | None = path_setting(
        "File to predict instead of the one in --data_dir.", flag_of_file="predict_file"
    )
    predict_batch_size: int = setting(
        8, "Sequences per prediction batch and rank.", bounds=AT_LEAST_ONE
    )

    @property
    def files(self) -> dict[str, Path | None]:
        """The files that the run uses, by kind; None for one that no flag of its own names."""
        uses = {TRAIN: self.run.do_train, EVAL: self.run.evaluation.do_eval}
        uses[PREDICT] = self.do_predict
        return {kind: getattr(self, f"{kind}_file") for kind, is_used in uses.items() if is_used}

    @property
    def missing_files(self) -> list[str]:
        """The kinds of those that no flag of its own names."""
        return [kind for kind, path in self.files.items() if path is None]

    @property
    def needs_directory(self) -> bool:
        """Whether files of --data_dir are needed."""
        return bool(self.missing_files)


@dataclasses.dataclass(frozen=True)
class DirectoryFlags:
    """The flags of a script that fine-tunes on the files of a directory.

    Attributes:
      kind: the settings that are made from them.
      heading: what the task's own flags are about.
      groups: groups of these settings that have flags.
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
    groups: tuple[type[Settings], ...] = ()
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
        for group in self.groups:
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
