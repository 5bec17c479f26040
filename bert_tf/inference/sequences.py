"""Predicts any number of texts or sequences with a network that is kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar, Union, cast

import numpy as np

from bert_tf.input.length_buckets import in_record_order, padded_length
from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike
from bert_tf.util.progress import Progress

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions
    from bert_tf.model.task import Task

# A text, or a pair of texts.
Text = Union[str, tuple[str, str]]
Input = TypeVar("Input")

BATCH_SIZE = 32
_NOT_LISTS = (str, bytes, Mapping)
# Tokens per batch on CPUs. The numbers of larger ones do not stay in the caches.
_MOST_TOKENS_ON_CPU = 512


def listed(inputs: Iterable[Input]) -> list[Input]:
    """The inputs; raises UserError for what is none, such as a text in place of a list of texts."""
    if isinstance(inputs, _NOT_LISTS) or not isinstance(inputs, Iterable):
        what = "a text" if isinstance(inputs, str) else "no list"
        raise UserError(
            f"{short_repr(inputs)} is {what}, and a list of inputs is needed; put it in brackets."
        )
    return list(inputs)


def texts_of(given: object, *, wanted: str) -> tuple[str, ...]:
    """A text, or several, as a tuple; raises UserError for anything else than the ``wanted``."""
    texts: tuple[object, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, _NOT_LISTS):
        texts = tuple(given)
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{short_repr(given)} is not {wanted}; give strings.")
    return cast("tuple[str, ...]", texts)


def parts_of(text: Text) -> tuple[str, ...]:
    """The one or two texts that a sequence is made of; raises UserError for more or for others."""
    parts = texts_of(text, wanted="a text, or a pair of texts")
    if len(parts) not in (1, 2):
        raise UserError(
            f"{short_repr(text)} has {len(parts)} parts; give a text, or a pair of texts."
        )
    return parts


class SequencePredictor:
    """Predicts sequences in batches of similar lengths.

    Attributes:
      max_seq_length: the most tokens of a sequence.
    """

    def __init__(
        self,
        task: Task,
        checkpoint: PathLike,
        max_seq_length: int,
        *,
        batch_size: int = BATCH_SIZE,
        options: ForwardOptions | None = None,
        threads: int | None = None,
        gpu: int | None = None,
    ) -> None:
        """Restores the weights from a file or directory.

        No batch is padded beyond ``max_seq_length`` tokens or has more than ``batch_size``
        sequences. ``options``, ``threads`` and ``gpu`` are as for ``predictor.Predictor``. Raises
        UserError if the weights do not fit the task's network, it has fewer positions, or batches
        would be empty.
        """
        # Imported here, so that mistakes in flags are reported before TensorFlow starts.
        from bert_tf.inference.predictor import Predictor
        from bert_tf.tuning.hardware import probe_hardware

        task.config.check_length(max_seq_length, f"--max_seq_length={max_seq_length} is")
        if batch_size < 1:
            raise UserError(f"--batch_size={batch_size} must be at least 1.")
        self.max_seq_length, self._batch_size = max_seq_length, batch_size
        on_cpu = not probe_hardware().has_gpu
        self._most_tokens = _MOST_TOKENS_ON_CPU if on_cpu else batch_size * max_seq_length
        self._at_once = (threads or available_cores()) if on_cpu else 1
        self._predictor = Predictor(task, checkpoint, options=options, threads=threads, gpu=gpu)

    def padded(self, length: int) -> int:
        """The width of features whose longest sequence has ``length`` tokens."""
        return padded_length(length, max_length=self.max_seq_length)

    def batches(
        self, features: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields batches, longest first: the numbers of their sequences, and the predictions.

        ``features`` are the task's inputs, integers [N, :meth:`padded`] padded at the end, with
        ``input_mask``.
        """
        lengths = features["input_mask"].sum(axis=1)
        batches = list(self._batches(lengths))
        inputs = (
            {name: features[name][numbers, :longest] for name in self._predictor.inputs}
            for numbers, longest in batches
        )
        results = self._predictor.run_all(inputs, at_once=self._at_once)
        for (numbers, _), predictions in zip(batches, results):
            yield numbers, predictions

    def run(
        self, features: Mapping[str, np.ndarray], *, progress: Progress | None = None
    ) -> dict[str, np.ndarray]:
        """The task's predictions for all sequences, [N, ...] each, in their order.

        ``features`` are as for :meth:`batches`; there is at least one sequence. Predictions of
        shorter batches are padded with zeros. ``progress`` counts sequences.
        """
        parts = []
        for numbers, predictions in self.batches(features):
            parts.append((numbers, predictions))
            if progress is not None:
                progress.advance(len(numbers))
        return in_record_order(parts, len(features["input_mask"]))

    def close(self) -> None:
        """Frees the network's memory; nothing can be predicted any more."""
        self._predictor.session.close()

    def _batches(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """The numbers of the sequences in each batch, longest first, and its padded length."""
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = self.padded(int(lengths[order[start]]))
            size = min(self._batch_size, max(1, self._most_tokens // longest))
            yield order[start : start + size], longest
            start += size
