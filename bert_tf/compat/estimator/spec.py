"""An Estimator's inputs: users' functions, the settings of a run, and the graph of a mode.

Names, order, defaults and checks of the fields follow ``tf.estimator``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model.model_utils.export_utils import get_export_outputs
from tensorflow.python.saved_model.model_utils.mode_keys import EstimatorModeKeys as ModeKeys

from bert_tf.util.errors import UserError


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


class _InitializeIterator(tf.train.SessionRunHook):
    """Initialises the iterator of a tf.data.Dataset in each new session."""

    def __init__(self, iterator: tf.data.Iterator) -> None:
        self._iterator = iterator

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._iterator.initializer)


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


_UNSET: Any = "unset"
_SECONDS_BETWEEN_CHECKPOINTS = 600

_NOT_NEGATIVE = (
    *("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs"),
    "keep_checkpoint_max",
)
_POSITIVE = ("keep_checkpoint_every_n_hours", "log_step_count_steps")
_UNSUPPORTED = (
    *("train_distribute", "eval_distribute", "experimental_distribute", "device_fn", "protocol"),
    "experimental_max_worker_delay_secs",
)


@dataclasses.dataclass
class RunConfig:
    """Settings of a run in one process; each Horovod rank is a separate process.

    Programs may add attributes of their own, which their functions find in their ``config``.

    Attributes:
      save_summary_steps: updates between summaries; 0 or None writes none.
      save_checkpoints_steps, save_checkpoints_secs: updates or seconds between checkpoints, not
        both; every 600 seconds if neither is given, never if both are None or 0.
      keep_checkpoint_max: the number of newest checkpoints to keep; None or 0 keeps all.
      keep_checkpoint_every_n_hours: also keeps one checkpoint for each period of this many hours.
      log_step_count_steps: updates between log lines with the loss and the speed, or None.
      session_creation_timeout_secs: has no effect in one process.
      checkpoint_save_graph_def: whether to write ``graph.pbtxt`` and ``.meta`` files.

    Raises ValueError for inconsistent values and for distribution strategies and devices, which are
    not supported; UserError for a cluster of several processes in the variable TF_CONFIG.
    """

    model_dir: str | os.PathLike | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _UNSET
    save_checkpoints_secs: int | None = _UNSET
    session_config: tf.ConfigProto | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10000
    log_step_count_steps: int | None = 100
    train_distribute: None = None
    device_fn: None = None
    protocol: None = None
    eval_distribute: None = None
    experimental_distribute: None = None
    experimental_max_worker_delay_secs: None = None
    session_creation_timeout_secs: int = 7200
    checkpoint_save_graph_def: bool = True

    # Attributes that users' functions may read, with their values in one process.
    is_chief = True
    master = evaluation_master = ""
    task_type, task_id = "worker", 0
    service = None
    num_worker_replicas, num_ps_replicas = 1, 0
    global_id_in_cluster = 0

    def __post_init__(self) -> None:
        self._choose_checkpoints()
        if self.model_dir is not None:
            self.model_dir = os.fspath(self.model_dir)
            if not self.model_dir:
                raise ValueError("RunConfig: model_dir is empty; name a directory.")
        for name in (*_NOT_NEGATIVE, *_POSITIVE):
            value = getattr(self, name)
            if value is not None and (value < 0 or (value == 0 and name in _POSITIVE)):
                bound = "greater than 0" if name in _POSITIVE else "at least 0"
                raise ValueError(f"RunConfig: {name} must be {bound} (it is {value!r}).")
        for name in _UNSUPPORTED:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"RunConfig: {name} is not supported without tf.estimator; train on several "
                    "processes with Horovod."
                )
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        if sum(map(len, cluster.values())) > 1:
            raise UserError(
                "the cluster in the environment variable TF_CONFIG is not supported without "
                "tf.estimator; unset it, and train on several processes with Horovod."
            )

    def _choose_checkpoints(self) -> None:
        """Replaces what is not given of steps and seconds between checkpoints."""
        steps, seconds = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps == _UNSET:
            default = _SECONDS_BETWEEN_CHECKPOINTS if seconds == _UNSET else seconds
            steps, seconds = None, default
        elif seconds == _UNSET:
            seconds = None
        if steps is not None and seconds is not None:
            raise ValueError(
                "RunConfig: save_checkpoints_steps and save_checkpoints_secs are both given; give "
                "only one."
            )
        self.save_checkpoints_steps, self.save_checkpoints_secs = steps, seconds

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with changes; steps between checkpoints replace seconds, and vice versa.

        Raises ValueError for names that are not settings, and in the same cases as RunConfig.
        """
        settings = {field.name for field in dataclasses.fields(self)}
        for name in changes.keys() - settings:
            raise ValueError(f"RunConfig: {name} cannot be replaced; it is not a setting.")
        kinds = ("save_checkpoints_steps", "save_checkpoints_secs")
        for kind, other in (kinds, kinds[::-1]):
            if changes.get(kind) is not None:
                changes.setdefault(other, None)
        replaced = copy.copy(self)  # including attributes that a program added
        vars(replaced).update(changes)
        replaced.__post_init__()
        return replaced


def complete(config: RunConfig, model_dir: str | os.PathLike | None) -> RunConfig:
    """The settings with a directory, by default a temporary one, and a session configuration.

    Raises ValueError for two different directories, or if ``config`` is not a RunConfig.
    """
    if not isinstance(config, RunConfig):
        raise ValueError(f"config must be a RunConfig, not {config!r}.")
    model_dir = config.model_dir if model_dir is None else os.fspath(model_dir)
    if config.model_dir not in (None, model_dir):
        raise ValueError(f"model_dir is {model_dir!r}, but the RunConfig has {config.model_dir!r}.")
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        tf.logging.warning("No model_dir given; the model is written to %s.", model_dir)
    session_config = config.session_config
    if session_config is None:
        session_config = tf.ConfigProto(allow_soft_placement=True)
        rewrite_options = session_config.graph_options.rewrite_options
        rewrite_options.meta_optimizer_iterations = rewrite_options.ONE
    return config.replace(model_dir=model_dir, session_config=session_config)


class _Fields(NamedTuple):
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


_REQUIRED = {
    ModeKeys.TRAIN: ("train_op", "loss"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


class EstimatorSpec(_Fields):
    """The return value of a ``model_fn``: the graph of a mode.

    Attributes:
      predictions: a tensor, or tensors by name.
      loss: a scalar.
      eval_metric_ops: pairs of a value and an update operation, by name.
      export_outputs: outputs of ``tf.estimator.export`` by name; in mode PREDICT, one of them is
        always the default.
      training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: tuples of hooks.

    Raises ValueError if fields that a mode needs are missing, the loss is not a scalar, or a tensor
    belongs to another graph; TypeError for values of the wrong type.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> EstimatorSpec:
        """Takes the fields in order or by name; only the mode is always required."""
        spec = _Fields(*args, **kwargs)
        for name in _REQUIRED.get(spec.mode, ()):
            if getattr(spec, name) is None:
                raise ValueError(f"EstimatorSpec: mode {spec.mode!r} needs {name}.")
        metrics, scaffold = spec.eval_metric_ops or {}, spec.scaffold or tf.train.Scaffold()
        predictions = {} if spec.predictions is None else spec.predictions
        if not isinstance(scaffold, tf.train.Scaffold):
            raise TypeError(f"EstimatorSpec: scaffold must be a Scaffold, not {scaffold!r}.")
        pairs = metrics.values() if isinstance(metrics, dict) else [None]
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise TypeError(
                "EstimatorSpec: eval_metric_ops must be a dict of pairs of a value and an update "
                f"operation, as returned by functions of tf.metrics, not {metrics}."
            )
        named = predictions if isinstance(predictions, dict) else {"predictions": predictions}
        _check_tensors({**named, **({} if spec.loss is None else {"loss": spec.loss})})
        _check_graph("train_op", [] if spec.train_op is None else [spec.train_op])
        _check_graph("eval_metric_ops", tf.nest.flatten(metrics))
        hooks = {
            field: tuple(checked_list(field, getattr(spec, field), tf.train.SessionRunHook))
            for field in cls._fields
            if field.endswith("_hooks")
        }
        fields = {
            **spec._asdict(),
            **hooks,
            "loss": None if spec.loss is None else _scalar(spec.loss),
            "predictions": predictions,
            "eval_metric_ops": dict(metrics),
            "scaffold": scaffold,
        }
        if spec.mode == ModeKeys.PREDICT:
            fields["export_outputs"] = get_export_outputs(spec.export_outputs, predictions)
        return super().__new__(cls, **fields)

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """A checked copy with changes; raises ValueError for another mode."""
        if changes.get("mode", self.mode) != self.mode:
            raise ValueError(f"EstimatorSpec: the mode {self.mode!r} cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **changes})


def checked_list(name: str, values: Iterable[Any] | None, kind: type) -> list[Any]:
    """``values`` as a list; raises TypeError unless each is an instance of ``kind``."""
    values = list(values or ())
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{name}: {value!r} is not a {kind.__name__}.")
    return values


def _scalar(loss: tf.Tensor) -> tf.Tensor:
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"EstimatorSpec: the loss must be a scalar, not {loss}.")
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def _check_tensors(tensors: Mapping[str, object]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, (tf.Tensor, tf.Variable)):
            raise TypeError(f"EstimatorSpec: {name} must be a tensor, not {tensor!r}.")
    for name, tensor in tensors.items():
        _check_graph(name, [tensor])


def _check_graph(name: str, elements: Iterable[object]) -> None:
    for element in elements:
        if getattr(element, "graph", None) is not tf.get_default_graph():
            raise ValueError(f"EstimatorSpec: {name} is not in the current graph: {element}.")
