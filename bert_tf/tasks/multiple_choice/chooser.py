"""Chooses among several answers or continuations with a model kept in memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.finetune.scores import softmax
from bert_tf.inference.sequences import SequencePredictor, listed
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.records.sequences import inputs_of
from bert_tf.tasks.multiple_choice.files import check_length, question_of, sequences_of


class Chosen(NamedTuple):
    """What is chosen for a question.

    Attributes:
      choice: the text of the most probable choice.
      number: its number, from 0.
      probabilities: the probability of each choice.
    """

    choice: str
    number: int
    probabilities: tuple[float, ...]


class Chooser(SequencePredictor):
    """A multiple-choice network with its weights."""

    def __init__(
        self,
        model: CompleteModel,
        classes: Classes,
        *,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          classes: what its outputs mean, from ``ModelDirectory.classes_of``.
          max_seq_length: the most tokens of a context with a choice; None for that of the model's
            training, or else the network's positions.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: the weights do not belong to such a model, or it has fewer positions.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.multiple_choice.task import ChoiceTask

        del classes
        self._tokenizer = model.tokenizer
        length = max_seq_length or model.usual_length
        check_length(length)
        super().__init__(ChoiceTask(model.config), model.checkpoint, length, **options)

    def predict(self, questions: Sequence[Mapping[str, Any]]) -> list[Chosen]:
        """What is chosen for each question, in their order.

        Questions have ``context``, ``choices`` and, optionally, ``question``, as in files; they may
        have different numbers of choices. Raises UserError for others.
        """
        asked = [
            question_of(values, where=f"question {number}")
            for number, values in enumerate(listed(questions), start=1)
        ]
        if not asked:
            return []
        length = self.max_seq_length
        sequences = [
            sequence
            for question in asked
            for sequence in sequences_of(question, self._tokenizer, length)[0]
        ]
        width = self.padded(max(len(ids) for ids, _ in sequences))
        scores = iter(self.run(inputs_of(sequences, width, self._tokenizer))["scores"])
        found = []
        for question in asked:
            own = softmax(np.array([*itertools.islice(scores, len(question.choices))]))
            number = int(own.argmax())
            found.append(Chosen(question.choices[number], number, tuple(own.tolist())))
        return found
