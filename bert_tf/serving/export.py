"""What a trained model of any task takes and returns once it is exported."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bert_tf.config.declared import (
    AT_LEAST_ONE,
    Settings,
    group,
    setting,
    with_settings_of_model,
)
from bert_tf.serving import trained
from bert_tf.serving.trained import TrainedModel
from bert_tf.tasks.classification.long_texts import LongTexts
from bert_tf.tasks.question_answering.windows import WindowSettings, fitting_windows
from bert_tf.tasks.vectors.settings import VectorSettings
from bert_tf.util.options import Interval

if TYPE_CHECKING:
    from bert_tf.inference.export import Exportable


@dataclasses.dataclass(frozen=True)
class LengthSettings(Settings):
    """How long sequences may be, and whether they are given as strings."""

    max_seq_length: int | None = setting(
        None,
        "Maximum sequence length (default: the model's).",
        kind=int,
        bounds=Interval(3),
        advice="[CLS], a token, [SEP]",
    )
    text_signature: bool = setting(
        False,
        "Add the signatures that take strings; tensorflow-text is then needed wherever the export "
        "is loaded.",
    )


@dataclasses.dataclass(frozen=True)
class SpanExportSettings(Settings):
    """What an exported span model returns."""

    n_best_size: int = setting(
        20, "Questions: number of best positions to return.", bounds=AT_LEAST_ONE
    )
    max_query_length: int | None = setting(
        None,
        "Questions: their maximum length in the text signature (default: 64, or a quarter of a "
        "shorter --max_seq_length).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )

    def windows(self, longest: int) -> WindowSettings:
        """The lengths in the text signature; raises UserError for impossible ones."""
        query = self.max_query_length or fitting_windows(longest).max_query_length
        windows = WindowSettings(max_seq_length=longest, max_query_length=query)
        windows.validate()
        return windows


@dataclasses.dataclass(frozen=True)
class ExportSettings(Settings):
    """What exported models take and return."""

    length: LengthSettings = group(LengthSettings)
    spans: SpanExportSettings = group(SpanExportSettings)
    vectors: VectorSettings = group(VectorSettings)
    top: int = setting(5, "Masked words: number of words for each [MASK].", bounds=AT_LEAST_ONE)


def exportable_of(found: TrainedModel, settings: ExportSettings) -> Exportable:
    """The network of a model with its signatures.

    Texts are read as in the model's training: up to the length, and of longer ones the part, that
    its run was given. Raises UserError for settings that do not fit the model.
    """
    model, length = found.model, settings.length.max_seq_length
    trained_length = length or model.kept.get("max_seq_length")
    if found.task == trained.CLASSIFICATION:
        from bert_tf.tasks.classification.export import ExportableClassifier

        return ExportableClassifier(
            model,
            found.required_classes,
            max_seq_length=trained_length,
            long_texts=with_settings_of_model(LongTexts(), model.kept),
        )
    if found.task == trained.TAGGING:
        from bert_tf.tasks.tagging.export import ExportableTagger

        return ExportableTagger(model, found.required_classes, max_seq_length=trained_length)
    if found.task == trained.QUESTION_ANSWERING:
        from bert_tf.tasks.question_answering.export import ExportableSpans

        longest = length or model.config.max_position_embeddings
        windows = settings.spans.windows(longest) if settings.length.text_signature else None
        return ExportableSpans(model, num_candidates=settings.spans.n_best_size, windows=windows)
    if found.task == trained.MASKED_WORDS:
        from bert_tf.tasks.pretraining.export import ExportableMaskFiller

        return ExportableMaskFiller(model, top=settings.top, max_seq_length=length)
    from bert_tf.tasks.vectors.export import ExportableVectors

    return ExportableVectors(model, settings.vectors, max_seq_length=length)
