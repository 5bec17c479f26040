"""Classifies or rates texts with a model kept in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config.declared import with_settings_of_model
from bert_tf.inference.sequences import SequencePredictor, Text, listed, parts_of
from bert_tf.model_directory.classes import REGRESSION, Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.records.sequences import inputs_of
from bert_tf.tasks.classification.answers import Answers, logits_of_texts
from bert_tf.tasks.classification.features import check_length, sequences_of
from bert_tf.tasks.classification.texts import LongTexts, Row


@dataclasses.dataclass(frozen=True)
class ClassifiedText:
    """What is predicted of a text.

    Attributes:
      labels: its class; where a text may have any number of classes, those from the model's
        thresholds on; () for a rating.
      probabilities: the probability of every class; {} for a rating.
      rating: the predicted number; None for classes.
    """

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    rating: float | None = None

    @property
    def label(self) -> str | None:
        """The only class; None for a rating, and if there are several classes or none."""
        return self.labels[0] if len(self.labels) == 1 else None

    @property
    def probability(self) -> float | None:
        """The probability of :attr:`label`."""
        return None if self.label is None else self.probabilities[self.label]


class TextClassifier(SequencePredictor):
    """A classification network with its weights.

    Attributes:
      classes: what its outputs mean.
    """

    def __init__(
        self,
        model: CompleteModel,
        classes: Classes,
        *,
        max_seq_length: int | None = None,
        long_texts: LongTexts | None = None,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          classes: what its outputs mean, from ``ModelDirectory.classes_of``.
          max_seq_length: the most tokens of a sequence; None for that of the model's training, or
            else the network's positions.
          long_texts: what is read of texts with more tokens; None for what its training read.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: the weights do not belong to such a model, or it has fewer positions.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.classification.task import ClassificationTask

        self.classes, self._tokenizer = classes, model.tokenizer
        self._long_texts = long_texts or with_settings_of_model(LongTexts(), model.kept)
        length = max_seq_length or model.usual_length
        check_length("texts", 1, length)
        task = ClassificationTask(model.config, classes.num_outputs)
        super().__init__(task, model.checkpoint, length, **options)

    def predict(self, texts: Sequence[Text]) -> list[ClassifiedText]:
        """What is predicted of texts or pairs of texts, in their order.

        A model that was trained on pairs needs pairs.
        """
        texts = listed(texts)
        if not texts:
            return []
        answers = self.answers(texts)
        if self.classes.kind == REGRESSION:
            return [ClassifiedText((), {}, rating) for rating in answers.predicted.tolist()]
        return [
            ClassifiedText(answers.names(number), dict(zip(self.classes.labels, row)))
            for number, row in enumerate(answers.probabilities.tolist())
        ]

    def answers(self, texts: Sequence[Text]) -> Answers:
        """The predictions for at least one text, as arrays."""
        length = self.max_seq_length
        parts = map(parts_of, listed(texts))
        rows = [Row(first, second[0] if second else None, None) for first, *second in parts]
        encoded = [sequences_of(row, self._tokenizer, length, self._long_texts)[0] for row in rows]
        sequences = [sequence for of_row in encoded for sequence in of_row]
        width = self.padded(max(len(ids) for ids, _ in sequences))
        outputs = self.run(inputs_of(sequences, width, self._tokenizer))
        windows = np.array([len(of_row) for of_row in encoded])
        logits = logits_of_texts(outputs["logits"], windows)
        return Answers(self.classes, logits)
