"""Trains, evaluates, predicts with and exports the model of a ``model_fn``, on one process.

The names and the behaviour are those of ``tf.estimator.Estimator``, over what TensorFlow still has
of it: monitored sessions and their hooks. Whoever knows one knows the other; what is not supported
(distribution strategies, clusters, warm_start_from, Keras metrics) is refused. Every method builds
a graph of its own, so that nothing but the checkpoints in ``model_dir`` passes from one call to the
next.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.estimator import export
from bert_tf.estimator.spec import EstimatorSpec, ModeKeys, RunConfig, check_types

Hooks = Sequence[tf.train.SessionRunHook]

_MODEL_FN_ARGUMENTS = {"features", "labels", "mode", "params", "config"}


class Estimator:
    """A model and the directory of its checkpoints.

    Functions that are given to it get those of the arguments ``mode``, ``params`` and ``config``
    that their signatures name; a ``model_fn`` gets ``features``, and ``labels`` if it names them.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: None = None,
    ) -> None:
        """Writes nothing yet.

        Raises ValueError for arguments that do not fit each other.
        """
        names = _arguments(model_fn)
        if "features" not in names:
            raise ValueError(f"{model_fn} does not take features, which every model_fn is given.")
        if names - _MODEL_FN_ARGUMENTS:
            unknown = ", ".join(sorted(names - _MODEL_FN_ARGUMENTS))
            raise ValueError(f"{model_fn} takes {unknown}, which no model_fn is given.")
        if params is not None and "params" not in names:
            raise ValueError(f"{model_fn} does not take params, but params are given.")
        if warm_start_from is not None:
            raise ValueError(
                "warm_start_from is not supported without tf.estimator; call "
                "tf.train.init_from_checkpoint in the model_fn."
            )
        self._model_fn = model_fn
        self._params = copy.deepcopy(dict(params or {}))
        self._config = _completed(config or RunConfig(), model_dir)

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries are."""
        return self._config.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the settings."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of what functions get as ``params``."""
        return copy.deepcopy(self._params)

    def latest_checkpoint(self) -> str | None:
        """The prefix of the newest checkpoint's files."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Names of all variables of the newest checkpoint; raises ValueError if there is none."""
        return [name for name, _ in tf.train.list_variables(self._trained())]

    def get_variable_value(self, name: str) -> np.ndarray:
        """A variable of the newest checkpoint; raises ValueError if there is none."""
        return tf.train.load_variable(self._trained(), name)

    def eval_dir(self, name: str | None = None) -> str:
        """Where summaries of evaluations of a name are."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Hooks | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[tf.train.CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint on, until the input ends or a step is reached.

        Args:
          input_fn: returns a tf.data.Dataset, or tensors, of (features, labels) or of features.
          hooks: run beside those of the EstimatorSpec.
          steps: updates of this call.
          max_steps: ``global_step`` to stop at; with a checkpoint of it nothing is done.
          saving_listeners: of the checkpoints that this class writes.

        Raises:
          ValueError: both limits are given, or one that is not positive; there are listeners, and
            none but the user's own CheckpointSaverHook, if any, writes checkpoints.
          TypeError: a hook or a listener is none.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("steps and max_steps are both given; give one of them.")
        _check_positive("steps", steps)
        _check_positive("max_steps", max_steps)
        if max_steps is not None and self._trained_steps() >= max_steps:
            tf.logging.info("Skipping training since max_steps has already saved.")
            return self
        check_types("hooks", hooks or (), tf.train.SessionRunHook)
        check_types("saving_listeners", saving_listeners or (), tf.train.CheckpointSaverListener)
        stop = [] if steps is max_steps is None else [tf.train.StopAtStepHook(steps, max_steps)]
        with tf.Graph().as_default() as graph, graph.device(self._config.device_fn):
            tf.set_random_seed(self._config.tf_random_seed)
            tf.train.create_global_step()
            # An operation's own seed is the number of operations before it. This hook adds those
            # that read the step, which the first of the hooks below would add otherwise.
            tf.train.StepCounterHook().begin()
            features, labels, input_hooks = self._input(input_fn, ModeKeys.TRAIN)
            spec = self._spec(features, labels, ModeKeys.TRAIN)
            worker_hooks = [*input_hooks, *(hooks or ()), *stop]
            loss = self._run_training(spec, worker_hooks, saving_listeners or ())
        tf.logging.info("Loss for final step: %s.", loss)
        return self

    def _run_training(
        self, spec: EstimatorSpec, hooks: Hooks, listeners: Sequence[Any]
    ) -> np.ndarray | None:
        config = self._config
        if all(summary.op.name != "loss" for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)):
            tf.summary.scalar("loss", spec.loss)
        tf.add_to_collection(tf.GraphKeys.LOSSES, spec.loss)
        hooks = [*hooks, tf.train.NanTensorHook(spec.loss)]
        if config.log_step_count_steps is not None:
            logged = {"loss": spec.loss, "step": tf.train.get_global_step()}
            hooks.append(
                tf.train.LoggingTensorHook(logged, every_n_iter=config.log_step_count_steps)
            )
        hooks += spec.training_hooks
        if not (spec.scaffold.saver or tf.get_collection(tf.GraphKeys.SAVERS)):
            saver = tf.train.Saver(
                sharded=True,
                max_to_keep=config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
                defer_build=True,
                save_relative_paths=True,
            )
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=self.model_dir,
            scaffold=spec.scaffold,
            hooks=hooks,
            chief_only_hooks=[
                *self._saver_hooks(spec, hooks, listeners),
                *spec.training_chief_hooks,
            ],
            save_checkpoint_secs=0,  # that of _saver_hooks does it
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config,
            max_wait_secs=config.session_creation_timeout_secs,
            log_step_count_steps=config.log_step_count_steps,
            save_graph_def=config.checkpoint_save_graph_def,
        ) as session:
            loss = None
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        if loss is None:
            tf.logging.warning("Training made no steps: the input is empty.")
        return loss

    def _saver_hooks(
        self, spec: EstimatorSpec, hooks: Hooks, listeners: Sequence[Any]
    ) -> list[tf.train.CheckpointSaverHook]:
        """What writes checkpoints, unless the user has one among the hooks."""
        config = self._config
        given = [*hooks, *spec.training_chief_hooks]
        if any(isinstance(hook, tf.train.CheckpointSaverHook) for hook in given):
            if listeners:
                raise ValueError(
                    "saving_listeners are given beside a CheckpointSaverHook; give them to that "
                    "hook."
                )
            return []
        if config.save_checkpoints_secs or config.save_checkpoints_steps:
            return [
                tf.train.CheckpointSaverHook(
                    self.model_dir,
                    save_secs=config.save_checkpoints_secs,
                    save_steps=config.save_checkpoints_steps,
                    scaffold=spec.scaffold,
                    listeners=listeners,
                    save_graph_def=config.checkpoint_save_graph_def,
                )
            ]
        if listeners:
            raise ValueError(
                "saving_listeners are given, but no checkpoints are written; set "
                "save_checkpoints_steps or save_checkpoints_secs of RunConfig."
            )
        return []

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Hooks | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions until the input ends.

        Args:
          input_fn: as that of :meth:`train`; labels are ignored.
          predict_keys: which predictions, None for all.
          hooks: run before those of the EstimatorSpec.
          checkpoint_path: None for the newest; variables are initialised where there is none.
          yield_single_examples: whether to cut batches along their first dimension.

        Raises:
          ValueError: at the first prediction, for ``predict_keys`` that name none, or for
            batches of different sizes that are to be cut.
        """
        check_types("hooks", hooks or (), tf.train.SessionRunHook)
        with tf.Graph().as_default():
            tf.set_random_seed(self._config.tf_random_seed)
            tf.train.create_global_step()
            features, _, input_hooks = self._input(input_fn, ModeKeys.PREDICT)
            spec = self._spec(features, None, ModeKeys.PREDICT)
            predictions = _chosen(spec.predictions, predict_keys)
            with tf.train.MonitoredSession(
                self._restoring(spec.scaffold, checkpoint_path or self.latest_checkpoint()),
                hooks=[*input_hooks, *(hooks or ()), *spec.prediction_hooks],
            ) as session:
                while not session.should_stop():
                    batch = session.run(predictions)
                    yield from _examples(batch) if yield_single_examples else [batch]

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Hooks | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The metrics of a checkpoint, its mean loss and ``global_step``.

        Numbers and arrays among them are written as summaries to ``eval_dir(name)``.

        Args:
          input_fn: as that of :meth:`train`.
          steps: batches, None for all.
          hooks: run before those of the EstimatorSpec.
          checkpoint_path: None for the newest; variables are initialised where there is none.
          name: of the evaluation, where there are several.

        Raises:
          ValueError: ``steps`` is not positive; a metric is named ``loss`` or ``global_step``.
        """
        check_types("hooks", hooks or (), tf.train.SessionRunHook)
        _check_positive("steps", steps)
        checkpoint = checkpoint_path or self.latest_checkpoint()
        with tf.Graph().as_default():
            tf.set_random_seed(self._config.tf_random_seed)
            tf.train.create_global_step()
            features, labels, input_hooks = self._input(input_fn, ModeKeys.EVAL)
            spec = self._spec(features, labels, ModeKeys.EVAL)
            for reserved in ("loss", tf.GraphKeys.GLOBAL_STEP):
                if reserved in spec.eval_metric_ops:
                    raise ValueError(f"a metric is named {reserved}, as one that is always there.")
            metrics = {**spec.eval_metric_ops, "loss": tf.metrics.mean(spec.loss)}
            values = {key: value for key, (value, _) in sorted(metrics.items())}
            values[tf.GraphKeys.GLOBAL_STEP] = tf.train.get_global_step()
            update = tf.group(*(update for _, (_, update) in sorted(metrics.items())))
            scaffold = spec.scaffold
            if scaffold.local_init_op is not None:  # it does not know of the loss's metric
                both = tf.group(scaffold.local_init_op, tf.train.Scaffold.default_local_init_op())
                scaffold = tf.train.Scaffold(local_init_op=both, copy_from_scaffold=scaffold)
            results = tf.train.FinalOpsHook(values)
            stop = [] if steps is None else [_StopAfter(steps)]
            with tf.train.MonitoredSession(
                self._restoring(scaffold, checkpoint),
                hooks=[*input_hooks, *(hooks or ()), *stop, *spec.evaluation_hooks, results],
            ) as session:
                while not session.should_stop():
                    session.run(update)
            _write_summaries(self.eval_dir(name), results.final_ops_values, checkpoint)
        return results.final_ops_values

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike,
        serving_input_receiver_fn: Callable[[], export.ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes a checkpoint as a SavedModel; returns the path of its directory.

        Arguments are those of :func:`bert_tf.estimator.export.write`; None for
        ``checkpoint_path`` takes the newest. Raises ValueError if there is none.
        """
        checkpoint = checkpoint_path or self._trained()
        with tf.Graph().as_default():
            tf.train.create_global_step()
            tf.set_random_seed(self._config.tf_random_seed)
            receiver = serving_input_receiver_fn()
            return export.write(
                export_dir_base,
                receiver,
                self._spec(receiver.features, None, ModeKeys.PREDICT),
                checkpoint=checkpoint,
                session_config=self._config.session_config,
                assets_extra=assets_extra or {},
                as_text=as_text,
            )

    def _trained(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"{self.model_dir} has no checkpoint; train first.")
        return checkpoint

    def _trained_steps(self) -> int:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            return 0
        reader = tf.train.load_checkpoint(checkpoint)
        step = tf.GraphKeys.GLOBAL_STEP
        return int(reader.get_tensor(step)) if reader.has_tensor(step) else 0

    def _restoring(
        self, scaffold: tf.train.Scaffold, checkpoint: str | None
    ) -> tf.train.ChiefSessionCreator:
        if checkpoint is None:
            tf.logging.info("%s has no checkpoint; variables are initialised.", self.model_dir)
        return tf.train.ChiefSessionCreator(
            scaffold,
            config=self._config.session_config,
            checkpoint_filename_with_path=checkpoint,
        )

    def _input(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, Any, list]:
        """Features and labels of a batch, labels None if there are none, and hooks they need."""
        offered = {"mode": mode, "params": self.params, "config": self.config}
        with tf.device("/cpu:0"):
            result = _called(input_fn, offered)
        hooks = []
        if isinstance(result, tf.compat.v2.data.Dataset):
            iterator = tf.data.make_initializable_iterator(result)
            hooks.append(_InitializeIterator(iterator))
            result = iterator.get_next()
        if not isinstance(result, (list, tuple)):
            return result, None, hooks
        if len(result) != 2:
            raise ValueError(f"{input_fn} must return a pair of features and labels.")
        return *result, hooks

    def _spec(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        if labels is not None and "labels" not in _arguments(self._model_fn):
            raise ValueError(f"{self._model_fn} does not take labels, but the input has some.")
        offered = {"labels": labels, "mode": mode, "params": self.params, "config": self.config}
        spec = _called(functools.partial(self._model_fn, features=features), offered)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"{self._model_fn} must return an EstimatorSpec, not {spec!r}.")
        return spec


class _InitializeIterator(tf.train.SessionRunHook):
    """Starts the pipeline of a tf.data.Dataset in each new session."""

    def __init__(self, iterator: tf.data.Iterator) -> None:
        self._iterator = iterator

    def after_create_session(self, session, coord):
        del coord
        session.run(self._iterator.initializer)


class _StopAfter(tf.train.SessionRunHook):
    """Stops after so many runs of a session."""

    def __init__(self, runs: int) -> None:
        self._runs = runs

    def after_create_session(self, session, coord):
        del session, coord
        self._left = self._runs

    def after_run(self, run_context, run_values):
        del run_values
        self._left -= 1
        if self._left <= 0:
            run_context.request_stop()


def _completed(config: RunConfig, model_dir: str | os.PathLike | None) -> RunConfig:
    """The settings with a directory, a temporary one if none is given, and a session's."""
    if not isinstance(config, RunConfig):
        raise ValueError(f"config is not a RunConfig: {config!r}.")
    model_dir = config.model_dir if model_dir is None else os.fspath(model_dir)
    if config.model_dir not in (None, model_dir):
        raise ValueError(
            f"model_dir is {model_dir!r}, but that of the RunConfig is {config.model_dir!r}."
        )
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        tf.logging.warning("Using temporary folder as model directory: %s", model_dir)
    session_config = config.session_config
    if session_config is None:
        session_config = tf.ConfigProto(allow_soft_placement=True)
        options = session_config.graph_options.rewrite_options
        options.meta_optimizer_iterations = options.ONE
    return config.replace(model_dir=model_dir, session_config=session_config)


def _arguments(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments that a caller may give, without those that a partial has bound."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return {parameter.name for parameter in parameters if parameter.kind in kinds} - set(bound)


def _called(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Calls a function with those arguments that its signature names."""
    taken = _arguments(function)
    return function(**{name: value for name, value in offered.items() if name in taken})


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"{name}={value} must be at least 1.")


def _chosen(predictions: Any, keys: Sequence[str] | None) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys are given, but the predictions have no names.")
    chosen = {name: tensor for name, tensor in predictions.items() if name in keys}
    if not chosen:
        raise ValueError(f"predict_keys {keys} name none of the predictions {list(predictions)}.")
    return chosen


def _examples(batch: Any) -> Iterator[Any]:
    """The examples of a batch of predictions."""
    if not isinstance(batch, dict):
        yield from batch
        return
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"predictions of a batch must be of one size to be cut: {sizes}.")
    for values in zip(*batch.values()):
        yield dict(zip(batch, values))


def _write_summaries(directory: str, results: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes results, and which checkpoint they are of, as summaries of its step."""
    step = results[tf.GraphKeys.GLOBAL_STEP]
    summary = tf.Summary()
    for name, value in results.items():
        if name == tf.GraphKeys.GLOBAL_STEP:
            continue
        if isinstance(value, (int, float, np.integer, np.floating)):
            summary.value.add(tag=name, simple_value=value)
        elif isinstance(value, np.ndarray):
            summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
        else:
            tf.logging.warning("%s has no summary: it is neither a number nor an array.", name)
    writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    if checkpoint:
        path = tf.make_tensor_proto(checkpoint)
        writer.add_summary(
            tf.Summary(value=[tf.Summary.Value(tag="checkpoint_path", tensor=path)]), step
        )
    writer.flush()
