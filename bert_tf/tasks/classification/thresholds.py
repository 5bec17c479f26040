"""The probabilities from which a text has a class, where it may have several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.config.declared import Settings, setting
from bert_tf.model_directory.record import ModelRecord, require_record, write_record
from bert_tf.util.console import say
from bert_tf.util.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_ALL = ""  # the name that stands for all classes


def _thresholds(given: str) -> dict[str, float]:
    """Class -> threshold, of ``0.4`` or ``first=0.4,second=0.7``."""
    found = {}
    for part in given.split(",") if given else ():
        name, _, number = part.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            found[name.strip()] = -1.0
    is_mixed = _ALL in found and len(found) > 1
    if is_mixed or not all(0 <= value <= 1 for value in found.values()):
        raise UserError(
            f"--threshold={given} must be a probability such as 0.4, or one for each of some "
            "classes, such as spam=0.4,toxic=0.7."
        )
    return found


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

    def check(self, classes: tuple[str, ...], *, multi_label: bool) -> None:
        """Raises UserError for settings that do not suit the classes of a model."""
        if self != ThresholdSettings() and not multi_label:
            raise UserError(
                "--threshold and --tune_threshold are for texts that may have several classes "
                "(--multi_label); leave them out."
            )
        unknown = [name for name in self.threshold if name not in (_ALL, *classes)]
        if unknown:
            raise UserError(
                f"--threshold names {unknown[0]!r}, which is not one of the classes: "
                f"{', '.join(classes)}."
            )

    def stored(self, output_dir: Path) -> tuple[float, ...]:
        """The model's thresholds, after those that the user gave were stored with it."""
        record = require_record(output_dir)
        classes = record.required_classes
        for_all = self.threshold.get(_ALL)
        before = classes.thresholds if for_all is None else (for_all,) * len(classes.labels)
        return _stored(record, tuple(map(self.threshold.get, classes.labels, before)), None)

    def chosen(
        self,
        output_dir: Path,
        labels: np.ndarray,
        probabilities: np.ndarray,
        *,
        digest: str,
        trains: bool,
    ) -> tuple[float, ...]:
        """The thresholds with which a file is evaluated, stored with the model if they are new.

        A run that trains chooses the one that is best for its development file, and so does a run
        of which the user wants it. On a file that only tests the model, it would make the scores
        too good. ``labels`` are bool [N, classes], ``probabilities`` [N, classes]; ``digest`` is
        that of the file's records.
        """
        # Imported here, because defining flags does not need numpy.
        from bert_tf.tasks.classification.metrics import best_threshold

        record = require_record(output_dir)
        is_own = trains and record.chosen_on in (None, digest)
        if self.threshold or not (self.tune_threshold or is_own):
            if trains and not self.threshold:
                say(
                    "the thresholds were chosen on another development file and stay as they are; "
                    "--tune_threshold chooses new ones"
                )
            return self.stored(output_dir)
        best = best_threshold(labels, probabilities)
        return _stored(record, (best,) * len(record.required_classes.labels), digest)


def _stored(
    record: ModelRecord, thresholds: tuple[float, ...], digest: str | None
) -> tuple[float, ...]:
    """The thresholds, which replace those of the record if they differ or have a digest."""
    classes = record.required_classes
    if thresholds != classes.thresholds or digest is not None:
        classes = dataclasses.replace(classes, thresholds=thresholds)
        write_record(dataclasses.replace(record, classes=classes, chosen_on=digest))
    return thresholds
