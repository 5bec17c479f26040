"""Answers questions about texts of any length with a model kept in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.config.declared import with_settings_of_model
from bert_tf.inference.sequences import SequencePredictor, listed, parts_of
from bert_tf.input.length_buckets import in_record_order
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.question_answering.answers import AnswerSettings, decode_answers
from bert_tf.tasks.question_answering.examples import Example, SquadFile
from bert_tf.tasks.question_answering.features import sequence_arrays
from bert_tf.tasks.question_answering.windows import (
    SpanCandidates,
    WindowSettings,
    fitting_windows,
    question_windows,
)
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.progress import Progress

# Windows; larger batches need more memory.
_BATCH_SIZE = 8

_QUESTION_ID = "question"


@dataclasses.dataclass(frozen=True)
class FoundAnswer:
    """A possible answer to a question.

    Attributes:
      text: the context from ``start`` to ``end``; "" if there is no answer.
      probability: its probability among the n-best answers.
      score: sum of the logits of its first and last token.
      start, end: character offsets in the context, ``end`` exclusive; None if it is not a span.
    """

    text: str
    probability: float
    score: float
    start: int | None
    end: int | None


class Answerer(SequencePredictor):
    """A span model, with the ``windows`` of contexts and ``settings`` for choosing its answers."""

    def __init__(
        self,
        model: CompleteModel,
        *,
        windows: WindowSettings | None = None,
        settings: AnswerSettings | None = None,
        batch_size: int = _BATCH_SIZE,
        **options: Any,
    ) -> None:
        """Restores the weights.

        Args:
          model: the model, from ``model_directory.complete.find_model``.
          windows: None for those of the model's training, or else run_squad.py's defaults, limited
            to the network's maximum length.
          settings: None for those of the model's training, or else run_squad.py's defaults.
          batch_size: maximum number of windows per batch.
          **options: further arguments of :class:`SequencePredictor`.

        Raises:
          UserError: if the weights do not belong to such a model, or sequences are too long for
            it.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.tasks.question_answering.task import SpanTask

        self.windows = windows or kept_windows(model)
        self.windows.validate()
        self.settings = settings or with_settings_of_model(AnswerSettings(), model.kept)
        self._tokenizer = model.tokenizer
        super().__init__(
            SpanTask(model.config, num_candidates=self.settings.n_best_size),
            model.checkpoint,
            self.windows.max_seq_length,
            batch_size=batch_size,
            **options,
        )

    def answer(
        self, question: str, context: str, *, shows_progress: bool = False
    ) -> list[FoundAnswer]:
        """The n-best answers to a question about a text, best first, at least one.

        The first is the model's answer: in v2.0, "" if its score exceeds the others' by more than
        the threshold. Up to ``settings.n_best_size`` others follow in order of score.
        ``shows_progress`` reports progress on standard error.
        """
        example = Example(
            question_id=_QUESTION_ID,
            question=question,
            context=context,
            title="",
            paragraph=0,
            answers=(),
            is_impossible=False,
        )
        predictions = decode_answers(
            SquadFile(path=Path(), examples=(example,), unusable=()),
            self._tokenizer,
            self.windows,
            self._candidates(question, context, shows_progress=shows_progress),
            self.settings,
        )
        found = [
            FoundAnswer(
                # Google's placeholder for "nothing found" in v1.1 is not part of the context.
                text=entry["text"] if "start" in entry else "",
                probability=entry["probability"],
                score=entry["start_logit"] + entry["end_logit"],
                start=entry.get("start"),
                end=entry.get("end"),
            )
            for entry in predictions.nbest[_QUESTION_ID]
        ]
        chosen = predictions.answers[_QUESTION_ID]
        # The sort is stable: the chosen answer comes first and the others keep their order.
        return sorted(found, key=lambda answer: answer.text != chosen)

    def predict(self, inputs: Sequence[tuple[str, str]]) -> list[list[FoundAnswer]]:
        """The answers to each question about a text, as :meth:`answer` gives them."""
        pairs = [(given, parts_of(given)) for given in listed(inputs)]
        for given, parts in pairs:
            if len(parts) != 2:
                raise UserError(
                    f"{short_repr(given)} is not a question with its text; give such pairs."
                )
        return [self.answer(*parts) for _, parts in pairs]

    def _candidates(self, question: str, context: str, *, shows_progress: bool) -> SpanCandidates:
        """The best start and end positions in every window of the context."""
        context_ids = self._tokenizer.encode(context)
        windows = question_windows(self._tokenizer.encode(question), len(context_ids), self.windows)
        if not windows:
            indices, logits = np.zeros([0, 1], np.int32), np.zeros([0, 1], np.float32)
            return SpanCandidates(indices, logits, indices, logits, logits[:, 0])
        width = self.padded(max(window.length for window in windows))
        pairs = [(window, context_ids) for window in windows]
        progress = Progress("answering", len(windows), "windows") if shows_progress else None
        batches = []
        for numbers, found in self.batches(sequence_arrays(pairs, self._tokenizer, width)):
            batches.append((numbers, found))
            if progress is not None:
                progress.advance(len(numbers))
        return SpanCandidates(**in_record_order(batches, len(windows)))


def kept_windows(model: CompleteModel) -> WindowSettings:
    """The lengths of a model's training, or else run_squad.py's defaults, as far as they fit it."""
    usual = fitting_windows(model.config.max_position_embeddings)
    names = [field.name for field in dataclasses.fields(usual)]
    return dataclasses.replace(usual, **{n: model.kept[n] for n in names if n in model.kept})
