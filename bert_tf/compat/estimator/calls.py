"""Calls users' functions with the arguments that their signatures name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Callable

import tensorflow.compat.v1 as tf


class _InitializeIterator(tf.train.SessionRunHook):
    """Initialises the iterator of a tf.data.Dataset in each new session."""

    def __init__(self, iterator: tf.data.Iterator) -> None:
        self._iterator = iterator

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._iterator.initializer)


def arguments(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments that a caller may pass, except those bound by a partial."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return {parameter.name for parameter in parameters if parameter.kind in kinds} - set(bound)


def call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Calls a function with the arguments in ``offered`` that it accepts."""
    accepted = arguments(function)
    return function(**{name: value for name, value in offered.items() if name in accepted})


def call_input_fn(
    input_fn: Callable[..., Any], offered: Mapping[str, Any]
) -> tuple[Any, Any, list[tf.train.SessionRunHook]]:
    """Adds an input to the current graph.

    Returns features and labels of a batch, None for missing labels, and hooks that the input needs.
    Raises ValueError for a tuple that is not a pair.
    """
    with tf.device("/cpu:0"):
        batch = call(input_fn, offered)
    hooks = []
    if isinstance(batch, tf.compat.v2.data.Dataset):
        iterator = tf.data.make_initializable_iterator(batch)
        hooks.append(_InitializeIterator(iterator))
        batch = iterator.get_next()
    if not isinstance(batch, (list, tuple)):
        return batch, None, hooks
    if len(batch) != 2:
        raise ValueError(f"{input_fn} must return features, or a pair of features and labels.")
    return *batch, hooks
