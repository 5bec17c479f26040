"""Norms and ratios of every trained variable and layer, for selected updates.

Updates do not report how far they moved a variable, and optimizers differ. So the weights before a
selected update are kept until it is done and compared with those after it; all other updates run as
without summaries. Nothing here depends on the optimizer's slots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.train.hooks import Fetched, StepHook
from bert_tf.train.run_log import RunLog
from bert_tf.update.optimizers.row import euclidean_norm
from bert_tf.update.train_op import TrainOutputs

# The metrics of a variable. Norms are Euclidean; the ratio is the norm of the update over that of
# the weights. Those of a layer are taken over all its variables.
WEIGHT_NORM, GRADIENT_NORM = "weight_norm", "gradient_norm"
UPDATE_NORM, UPDATE_RATIO = "update_norm", "update_ratio"
_NORMS = (WEIGHT_NORM, GRADIENT_NORM, UPDATE_NORM)

Figures = dict[str, float]

_LAYER = re.compile(r"layer_\d+")


class LayerSummaries(StepHook):
    """Logs the metrics of variables and layers in every N-th update, on rank 0.

    The weights before the update are those that TensorFlow already holds: on a CPU, only the update
    makes a copy, because it writes to new memory while the old is in use.
    """

    def __init__(self, outputs: TrainOutputs, *, every_steps: int, log: RunLog | None) -> None:
        """Logs to ``log`` whenever the step is a multiple of ``every_steps``.

        Without a log it only fetches what rank 0 logs, which ranks that shard optimizer state must
        do together.
        """
        super().__init__(outputs)
        self._every_steps = every_steps
        self._log = log
        self._variables = outputs.figures.variables
        self._is_chosen = False
        self._weights: list[np.ndarray] = []

    def begin(self) -> None:
        super().begin()
        self._before = [tf.placeholder(v.dtype.base_dtype, v.shape) for v in self._variables]
        changes = [v.read_value() - w for v, w in zip(self._variables, self._before)]
        self._norms = [
            tf.stack([euclidean_norm([tensor]) for tensor in tensors])
            for tensors in (self._before, changes)
        ]

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._is_chosen = (self.step + 1) % self._every_steps == 0
        if self._is_chosen and self._log is not None:
            self._weights = run_context.session.run(self._variables)
        return super().before_run(run_context)

    def fetches(self) -> dict[str, object]:
        figures = self.outputs.figures
        if not self._is_chosen:
            return {}
        return {GRADIENT_NORM: figures.gradient_norms, **figures.trust_ratios}

    def after_update(self, session: tf.Session, fetched: Fetched, *, applied: bool) -> None:
        weights, self._weights = self._weights, []
        if not weights or not applied:
            return
        norms = session.run(self._norms, dict(zip(self._before, weights)))
        found = dict(zip((WEIGHT_NORM, UPDATE_NORM), norms))
        found.update((name, value) for name, value in fetched.items() if name != "is_finite")
        names = [variable.op.name for variable in self._variables]
        by_variable = figures_of_variables(names, found)
        if self._log is not None:
            self._log.layers(self.step, figures_of_layers(by_variable), by_variable)


def figures_of_variables(
    names: Sequence[str], found: Mapping[str, np.ndarray]
) -> dict[str, Figures]:
    """Returns variable -> metric -> value; leaves out trust ratios of NaN.

    ``found`` are the norms and trust ratios, [variables] each.
    """
    by_variable: dict[str, Figures] = {}
    for index, name in enumerate(names):
        norms = {figure: float(found[figure][index]) for figure in _NORMS}
        ratios = {kind: float(of[index]) for kind, of in found.items() if kind not in _NORMS}
        by_variable[name] = {
            **with_ratio(norms),
            **{kind: ratio for kind, ratio in ratios.items() if not math.isnan(ratio)},
        }
    return by_variable


def figures_of_layers(by_variable: Mapping[str, Figures]) -> dict[str, Figures]:
    """Returns layer -> metric -> value; for trust ratios, the smallest and the largest."""
    members: dict[str, list[Figures]] = {}
    for name, figures in by_variable.items():
        members.setdefault(layer_of(name), []).append(figures)
    layers = {}
    for layer, found in members.items():
        figures = with_ratio({norm: math.hypot(*(f[norm] for f in found)) for norm in _NORMS})
        kinds = {kind for f in found for kind in f} - figures.keys()
        for kind in sorted(kinds):
            ratios = [f[kind] for f in found if kind in f]
            figures.update({f"smallest_{kind}": min(ratios), f"largest_{kind}": max(ratios)})
        layers[layer] = figures
    return layers


def with_ratio(norms: Figures) -> Figures:
    """Adds the ratio of update to weights to the norms: NaN for weights of zero."""
    weights = norms[WEIGHT_NORM]
    return {**norms, UPDATE_RATIO: norms[UPDATE_NORM] / weights if weights else math.nan}


def layer_of(variable_name: str) -> str:
    """The layer that a variable belongs to: ``layer_3``, ``embeddings``, ``cls/predictions``.

    Outside the encoder's layers, this is the first two parts of the name, without BERT's own scope.
    """
    found = _LAYER.search(variable_name)
    if found:
        return found.group()
    *scopes, last = variable_name.split("/")
    parts = scopes[:2] or [last]
    return "/".join(parts[1:] if parts[0] == "bert" and len(parts) > 1 else parts)
