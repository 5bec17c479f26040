"""Opens a model directory of any task in a program.

    from bert_tf.serving.load import load_model

    model = load_model("model")
    print(model.predict(["A text.", "Another text."]))

The model is loaded once and stays in memory.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from bert_tf.inference.settings import options_of
from bert_tf.serving.trained import TASKS, open_trained
from bert_tf.util.console import say
from bert_tf.util.files import PathLike


class LoadedModel(Protocol):
    """A network with its weights that predicts as its task does."""

    def predict(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """One prediction per input, in their order."""

    def close(self) -> None:
        """Frees the network's memory; nothing can be predicted any more."""


def load_model(
    model_dir: PathLike,
    *,
    task: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    **settings: Any,
) -> LoadedModel:
    """Loads a model; its ``predict`` takes a list of inputs and returns a list of predictions.

    By task, the class that is returned, its inputs and its predictions:

    * ``classification``: ``TextClassifier``, texts or pairs of texts, ``ClassifiedText``;
    * ``tagging``: ``Tagger``, lists of words or texts, ``TaggedText``;
    * ``multiple_choice``: ``Chooser``, questions with choices as in JSON lines, ``Chosen``;
    * ``question_answering``: ``Answerer``, questions with texts, lists of ``FoundAnswer``;
    * ``masked_words``: ``MaskFiller``, texts with ``[MASK]``, for each mask a list of ``Guess``;
    * ``vectors``: ``TextEncoder``, texts or pairs of texts, float32 arrays [D].

    Args:
      model_dir: the output directory of a training run, a directory of one of its checkpoints, or
        a published model.
      task: a name from the list; None for the task of the model's head, vectors without one.
      precision: ``fp32``, ``bf16`` or ``fp16``, or ``auto`` for what is fastest on this kind of
        machine; None for that of the model's training, or else fp32.
      threads: number of threads; None for one per core.
      **settings: further arguments of the task's class; the default is what the model was trained
        with, such as ``max_seq_length`` and what is read of texts that are too long.

    A warning says once if many tokens of the first texts are unknown to its vocabulary.

    Raises:
      UserError: a part of the model is missing or malformed, or it has no such head.
    """
    trained = open_trained(model_dir, task)
    model = trained.model.with_unknown_hint()
    options, warnings = options_of(model, precision=precision)
    for line in [*model.notes, *(f"warning: {warning}" for warning in warnings)]:
        say(line, stream=sys.stderr)
    module, _, name = TASKS[trained.task].predictor.partition(":")
    open_loaded = getattr(importlib.import_module(module), name)
    classes = [] if trained.classes is None else [trained.classes]
    return open_loaded(model, *classes, options=options, threads=threads, **settings)
