"""Runs that apply trained networks to the inputs of files, part by part on all ranks.

A part that was computed is kept, so a killed run resumes with the next one. Parts do not depend on
the number of ranks: the results have the same bytes on any number of ranks and after any number of
starts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bert_tf.checkpoint.directory import Checkpoint, find_checkpoints
from bert_tf.durable.resumable import ArrayParts, Identity, resumable_map
from bert_tf.inference.settings import InferenceSettings
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.run import Run
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.progress import Progress


class Computation(Protocol):
    """What a network makes of inputs in parts."""

    @property
    def name(self) -> str:
        """Its name in progress lines."""

    @property
    def unit(self) -> str:
        """What progress lines count."""

    @property
    def sizes(self) -> Sequence[int]:
        """The units in each part."""

    def results(self, parts: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Yields the arrays of each of these parts, by name."""

    def resumed(self, missing: Sequence[int]) -> str:
        """What is said of a run that has only these parts left to compute."""


def open_model(settings: InferenceSettings, run: Run) -> CompleteModel:
    """The model that the settings name; prints what is noted of it. UserError as `find_model`."""
    model = find_model(
        init_checkpoint=settings.run.start.init_checkpoint,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    for note in model.notes:
        run.message(note)
    return model


@dataclasses.dataclass(frozen=True)
class Inference:
    """A run that applies a model to inputs, which are the same on all ranks.

    Attributes:
      run, model: the run and its model.
      inputs_digest: a digest of all inputs.
      checkpoints: the weights that are applied, one after the other.
      arithmetic: how their networks compute.
    """

    run: Run
    model: CompleteModel
    inputs_digest: str
    checkpoints: Sequence[Checkpoint]
    arithmetic: Arithmetic

    @property
    def predicting(self) -> dict[str, Any]:
        """How networks are opened: arguments of ``inference.predictor.Predictor``."""
        session = self.arithmetic.session
        options = self.arithmetic.options
        return {"options": options, "threads": session.threads, "gpu": session.gpu}

    def identity(self, *, with_weights: bool) -> dict[str, Any]:
        """What the results of every task depend on; ``with_weights`` if there is one checkpoint."""
        weights = {}
        if with_weights:
            weights["sha256 of the weights"] = self.checkpoints[0].weights_digest
        return {
            **self.arithmetic.entries(),
            "sha256 of the texts": self.inputs_digest,
            "sha256 of the vocabulary": self.model.tokenizer.vocab_digest,
            **weights,
            "network": self.model.config.to_dict(),
        }

    def compute(
        self,
        computation: Computation,
        directory: Path,
        identity: Identity,
        *,
        through_chief: bool = False,
    ) -> ArrayParts:
        """All parts, after computing those that ``directory`` lacks on all ranks. Collective.

        ``identity`` is everything that the results depend on; ``through_chief`` is as in
        ``resumable_map``.
        """
        ranks = self.run.ranks
        parts = ArrayParts(directory, len(computation.sizes), identity)
        missing = ranks.broadcast(parts.missing() if self.run.keeps_files else None)
        if len(missing) < len(parts):
            self.run.message(computation.resumed(missing))
        results = functools.partial(_with_progress, computation, ranks)
        resumable_map(missing, results, parts, ranks, through_chief=through_chief)
        return parts


def agreed(
    run: Run,
    model: CompleteModel,
    inputs_digest: str,
    *,
    earlier: Identity | None,
    every_checkpoint: bool = False,
) -> Inference:
    """Decides weights, precision and operations, unless an earlier start did. Collective.

    Prints what is chosen.

    Args:
      run, model, inputs_digest: as in :class:`Inference`.
      earlier: on rank 0, the identity that an earlier start kept; None if there was none.
      every_checkpoint: whether all checkpoints in the model's directory are applied.

    Raises UserError if there is no checkpoint, if inputs or weights differ between ranks, or if the
    precision cannot be used (see ``Run.keep_arithmetic``).
    """
    checkpoints = find_checkpoints(model.checkpoint, every_one=every_checkpoint)
    weights = {f"the weights of {c.name}": c.weights_digest for c in checkpoints}
    check_same_on_all_ranks(run.ranks, {"the texts of --input_file": inputs_digest, **weights})
    arithmetic = run.keep_arithmetic(model.config, earlier if run.keeps_files else None)
    return Inference(run, model, inputs_digest, checkpoints, arithmetic)


def _with_progress(
    computation: Computation, ranks: Ranks, own: Sequence[int]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The results of a rank's parts, with rank 0's progress as that of all."""
    total = sum(computation.sizes[part] for part in own) * ranks.world_size
    progress = Progress(computation.name, total, computation.unit) if ranks.is_chief else None
    # The computation comes first in zip, which so lets it finish.
    for result, part in zip(computation.results(own), own):
        yield result
        if progress is not None:
            progress.advance(computation.sizes[part] * ranks.world_size)
    if progress is not None:
        progress.finish()
