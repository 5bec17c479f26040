"""Optimizers, one module per algorithm; the registry is ``bert_tf.config.optimizers``."""

from __future__ import annotations

import importlib

from bert_tf.config.optimizers import optimizer_row
from bert_tf.update.optimizers.adam import AdamW
from bert_tf.update.optimizers.base import (
    UPDATE_COUNT,
    Optimizer,
    Parameter,
    clip_factor,
    decays,
)
from bert_tf.update.optimizers.lamb import Lamb
from bert_tf.update.optimizers.lans import Lans
from bert_tf.update.optimizers.muon import Muon

__all__ = [
    "UPDATE_COUNT",
    "AdamW",
    "Lamb",
    "Lans",
    "Muon",
    "Optimizer",
    "Parameter",
    "clip_factor",
    "decays",
    "optimizer_class",
]


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of a registered optimizer; raises UserError for an unknown name."""
    module, _, attribute = optimizer_row(name).implementation.partition(":")
    return getattr(importlib.import_module(module), attribute)
