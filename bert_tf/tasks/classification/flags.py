"""The settings of run_classifier.py, and their flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from bert_tf.config.declared import Settings, group, setting
from bert_tf.finetune.flags import DirectoryFlags
from bert_tf.finetune.settings import DirectorySettings
from bert_tf.model_directory.classes import MULTI_LABEL, Classes
from bert_tf.tasks.classification.glue import GLUE_TASKS, GlueTask, find_task
from bert_tf.tasks.classification.own_files import TableSettings
from bert_tf.tasks.classification.texts import WINDOWS, LongTexts
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

EQUAL, BALANCED = "equal", "balanced"
_ALL = ""  # the name that stands for all classes


@dataclasses.dataclass(frozen=True)
class LossSettings(Settings):
    """What a classifier is trained for."""

    class_weights: str = setting(
        EQUAL,
        "balanced: rare classes count for more, in proportion to their rarity.",
        choices=(EQUAL, BALANCED),
    )
    label_smoothing: float = setting(
        0.0,
        "Part of each label that all classes share, as 0.1.",
        bounds=Interval(0, 1, open_high=True),
    )


def _thresholds(given: str) -> dict[str, float]:
    """Class -> threshold, of ``0.4`` or ``first=0.4,second=0.7``."""
    thresholds = {}
    for part in given.split(",") if given else ():
        name, _, number = part.rpartition("=")
        try:
            thresholds[name.strip()] = float(number)
        except ValueError:
            thresholds[name.strip()] = -1.0
    is_mixed = _ALL in thresholds and len(thresholds) > 1
    if is_mixed or not all(0 <= value <= 1 for value in thresholds.values()):
        raise UserError(
            f"--threshold={given} must be a probability such as 0.4, or one for each of some "
            "classes, such as spam=0.4,toxic=0.7."
        )
    return thresholds


@dataclasses.dataclass(frozen=True)
class ThresholdSettings(Settings):
    """From which probability on a text has a class."""

    threshold: Mapping[str, float] = setting(
        {},
        "With --multi_label: the probability from which a text has a class, or some classes, as in "
        "spam=0.4,toxic=0.7; stored with the model (default: the model's, which its training "
        "chooses for the development file).",
        kind=str,
        parse=_thresholds,
    )
    tune_threshold: bool = setting(
        False,
        "With --multi_label: choose the threshold with the best micro F1 on the file to evaluate, "
        "and store it with the model, although the run does not train.",
    )

    def check(self, classes: Classes) -> None:
        """Raises UserError for settings that do not suit the classes of a model."""
        if self != ThresholdSettings() and classes.kind != MULTI_LABEL:
            raise UserError(
                "--threshold and --tune_threshold are for texts that may have several classes "
                "(--multi_label); leave them out."
            )
        unknown = [name for name in self.threshold if name not in (_ALL, *classes.labels)]
        if unknown:
            raise UserError(
                f"--threshold names {unknown[0]!r}, which is not one of the classes: "
                f"{', '.join(classes.labels)}."
            )

    def of_classes(self, classes: Classes) -> tuple[float, ...]:
        """The thresholds that the user gave, those of the classes for others."""
        for_all = self.threshold.get(_ALL)
        others = classes.thresholds if for_all is None else (for_all,) * len(classes.labels)
        return tuple(map(self.threshold.get, classes.labels, others))


def _languages(given: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(","))
    if "" in names or len(set(names)) != len(names):
        raise UserError(f"--language={given} must be different languages, separated by commas.")
    return names


@dataclasses.dataclass(frozen=True)
class LanguageSettings(Settings):
    """The languages of a task that has its sets in several."""

    language: tuple[str, ...] = setting(
        ("zh",),
        "XNLI: language to evaluate and predict, as de; several are scored apart: en,de,fr "
        "(default: zh, as in google-research/bert).",
        kind=str,
        parse=_languages,
    )
    train_language: str = setting(
        "", "XNLI: language of the training set (default: the first of --language)."
    )


@dataclasses.dataclass(frozen=True)
class ClassificationSettings(DirectorySettings):
    """Fine-tuning and prediction for classification and regression of sentences and pairs.

    Attributes:
      task_name: a key of ``tasks.classification.glue.GLUE_TASKS``, "" for a user's own files.
    """

    task_name: str = setting(
        "",
        "Task with published files (GLUE, XNLI, ChemProt): "
        f"{', '.join(task.name for task in GLUE_TASKS.values())}. Not for own files.",
        kind=str,
        parse=lambda given: find_task(given, flag="task_name") if given else "",
    )
    languages: LanguageSettings = group(LanguageSettings)
    table: TableSettings = group(TableSettings)
    loss: LossSettings = group(LossSettings)
    length: LongTexts = group(LongTexts)
    thresholds: ThresholdSettings = group(ThresholdSettings)

    @property
    def glue(self) -> GlueTask | None:
        """The task that is named, in the languages that are chosen; None for own files."""
        if not self.task_name:
            return None
        task, chosen = GLUE_TASKS[self.task_name], self.languages
        if not task.part_column:
            return task
        return task.in_languages(chosen.language, chosen.train_language or chosen.language[0])

    @property
    def needs_directory(self) -> bool:
        """Whether files of --data_dir are needed, as only published tasks have them."""
        return bool(self.task_name) and super().needs_directory

    def contradictions(self) -> Iterator[str]:
        """Actions without files, and what one kind of labels or files does not have."""
        yield from super().contradictions()
        if not self.task_name:  # every file is named by its flag
            given = any((self.train_file, self.eval_file, self.predict_file))
            if self.data_dir is not None or not given:
                yield (
                    "give --task_name for a task of GLUE, or files of your own as --train_file, "
                    "--eval_file and --predict_file."
                )
            for kind in self.missing_files:
                yield f"--do_{kind} needs --{kind}_file, or --task_name and --data_dir."
        glue = self.glue
        has_pairs = self.table.pair_column if glue is None else glue.second is not None
        if has_pairs and self.length.long_texts == WINDOWS:
            yield "--long_texts=windows is for single texts, not for pairs; give another value."
        is_rating = self.table.regression if glue is None else glue.is_regression
        if is_rating and self.loss != LossSettings():
            yield (
                "--class_weights and --label_smoothing are for classes, but ratings are predicted; "
                "leave them out."
            )
        if glue is not None and self.table != TableSettings():
            yield (
                f"--task_name={self.task_name} says what the columns and labels are; leave out the "
                "flags that describe a table of your own, or --task_name."
            )
        if (glue is None or not glue.part_column) and self.languages != LanguageSettings():
            yield (
                "--language and --train_language are for --task_name=XNLI, whose files name the "
                "languages; leave them out."
            )


_FLAGS = DirectoryFlags(
    ClassificationSettings,
    "Sentences and labels",
    examples="examples",
    longest="Maximum tokens of a sentence or a pair; see --long_texts.",
    files="the task's train.tsv, dev.tsv and test.tsv",
    predictions="test_results.tsv",
    changes={"task_name": {"default": None}},
)
define_classification_flags, classification_settings = _FLAGS.define, _FLAGS.settings
