"""What a trained model of any task takes and returns once it is exported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
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
    return _EXPORTABLES[found.task](found, settings)


def _classifier(found: TrainedModel, settings: ExportSettings) -> Exportable:
    from bert_tf.tasks.classification.export import exportable_classifier

    return exportable_classifier(
        found.model,
        found.required_classes,
        max_seq_length=_length(found, settings),
        long_texts=with_settings_of_model(LongTexts(), found.model.kept),
    )


def _tagger(found: TrainedModel, settings: ExportSettings) -> Exportable:
    from bert_tf.tasks.tagging.export import exportable_tagger

    return exportable_tagger(
        found.model, found.required_classes, max_seq_length=_length(found, settings)
    )


def _spans(found: TrainedModel, settings: ExportSettings) -> Exportable:
    from bert_tf.tasks.question_answering.export import exportable_spans

    longest = settings.length.max_seq_length or found.model.config.max_position_embeddings
    return exportable_spans(
        found.model,
        num_candidates=settings.spans.n_best_size,
        windows=settings.spans.windows(longest) if settings.length.text_signature else None,
    )


def _mask_filler(found: TrainedModel, settings: ExportSettings) -> Exportable:
    from bert_tf.tasks.pretraining.export import exportable_mask_filler

    length = settings.length.max_seq_length
    return exportable_mask_filler(found.model, top=settings.top, max_seq_length=length)


def _encoder(found: TrainedModel, settings: ExportSettings) -> Exportable:
    from bert_tf.tasks.vectors.export import exportable_vectors

    length = settings.length.max_seq_length
    return exportable_vectors(found.model, settings.vectors, max_seq_length=length)


def _length(found: TrainedModel, settings: ExportSettings) -> int | None:
    return settings.length.max_seq_length or found.model.kept.get("max_seq_length")


_EXPORTABLES: Mapping[str, Callable[[TrainedModel, ExportSettings], Exportable]] = {
    trained.CLASSIFICATION: _classifier,
    trained.TAGGING: _tagger,
    trained.QUESTION_ANSWERING: _spans,
    trained.MASKED_WORDS: _mask_filler,
    trained.VECTORS: _encoder,
}
