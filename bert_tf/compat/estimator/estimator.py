"""Trains, evaluates, predicts with and exports the model of a ``model_fn``, in one process.

Names and behaviour follow ``tf.estimator.Estimator``, built from the parts of it that TensorFlow
still has: monitored sessions and their hooks. Unsupported features (distribution strategies,
clusters, warm starts, Keras metrics) are rejected. Every call builds a new graph, so calls share
nothing but the checkpoints in ``model_dir``.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model.model_utils import (
    build_all_signature_defs,
    get_temp_export_dir,
    get_timestamped_export_dir,
)

from bert_tf.compat.estimator import export
from bert_tf.compat.estimator.spec import (
    EstimatorSpec,
    ModeKeys,
    RunConfig,
    arguments,
    call,
    call_input_fn,
    checked_list,
    complete,
)
from bert_tf.util.files import check_finite

Hooks = Sequence[tf.train.SessionRunHook]
Listeners = Sequence[tf.train.CheckpointSaverListener]

_MODEL_FN_ARGUMENTS = {"features", "labels", "mode", "params", "config"}


class Estimator:
    """A model and the directory of its checkpoints.

    An ``input_fn`` is passed ``mode``, ``params`` and ``config`` if its signature names them. It
    returns a tf.data.Dataset or the tensors of a batch, with (features, labels) or only features. A
    ``model_fn`` is passed ``features`` and, if named, ``labels`` and the same three arguments.

    The methods' ``hooks`` run before those of the EstimatorSpec; TypeError for a wrong type. Their
    ``checkpoint_path`` is None for the newest; if there is none, variables are initialised.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: None = None,
    ) -> None:
        """Writes no files; raises ValueError for inconsistent arguments."""
        if model_fn is None:
            raise ValueError("model_fn is missing; give the function that builds the model.")
        names = arguments(model_fn)
        if "features" not in names:
            raise ValueError(
                f"{model_fn} does not take features, which are passed to every model_fn."
            )
        if names - _MODEL_FN_ARGUMENTS:
            unknown = ", ".join(sorted(names - _MODEL_FN_ARGUMENTS))
            raise ValueError(f"{model_fn} takes {unknown}, which an Estimator does not pass.")
        if params is not None and "params" not in names:
            raise ValueError(f"{model_fn} does not take params, but params are given.")
        if warm_start_from is not None:
            raise ValueError(
                "warm_start_from is not supported without tf.estimator; call "
                "tf.train.init_from_checkpoint in the model_fn."
            )
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._config = complete(RunConfig() if config is None else config, model_dir)

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and summaries."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """A copy of the settings."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Mapping[str, Any]:
        """A copy of the ``params`` passed to functions."""
        return copy.deepcopy(self._params)

    def latest_checkpoint(self) -> str | None:
        """The prefix of the newest checkpoint's files; None if there is none."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """The newest checkpoint's variable names; raises ValueError if there is no checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._require_checkpoint())]

    def get_variable_value(self, name: str) -> np.ndarray:
        """A variable in the newest checkpoint; raises ValueError if there is no checkpoint."""
        return tf.train.load_variable(self._require_checkpoint(), name)

    def eval_dir(self, name: str | None = None) -> str:
        """The directory for summaries of evaluations with this name."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Hooks | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Listeners | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint until the input ends or a step is reached.

        Args:
          steps: updates in this call, or
          max_steps: ``global_step`` at which to stop; a checkpoint at that step is kept as it is.
          saving_listeners: called for the checkpoints requested by RunConfig.

        Raises ValueError if both limits are given or one is below 1, or if there are listeners but
        no checkpoints are written; UserError if the newest checkpoint has weights that are not
        finite.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("steps and max_steps are both given; give only one.")
        _check_positive("steps", steps)
        _check_positive("max_steps", max_steps)
        if max_steps is not None and self._checkpoint_step() >= max_steps:
            tf.logging.info("%s has already been trained for %d steps.", self.model_dir, max_steps)
            return self
        hooks = checked_list("hooks", hooks, tf.train.SessionRunHook)
        listeners = checked_list(
            "saving_listeners", saving_listeners, tf.train.CheckpointSaverListener
        )
        if steps is not None or max_steps is not None:
            hooks.append(tf.train.StopAtStepHook(steps, max_steps))
        with self._new_graph():
            # Hooks share one read of the step, created here as in tf.estimator, so that written
            # graphs are the same.
            tf.train.StepCounterHook().begin()
            spec, input_hooks = self._build(input_fn, ModeKeys.TRAIN)
            _check_weights(self.latest_checkpoint())
            loss = self._run_training(spec, [*input_hooks, *hooks], listeners)
        tf.logging.info("Loss for final step: %s.", loss)
        return self

    def _run_training(
        self, spec: EstimatorSpec, hooks: Hooks, listeners: Listeners
    ) -> np.ndarray | None:
        """Runs the training graph; returns the last loss."""
        config = self._config
        if all(summary.op.name != "loss" for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)):
            tf.summary.scalar("loss", spec.loss)
        tf.add_to_collection(tf.GraphKeys.LOSSES, spec.loss)
        hooks = [*hooks, tf.train.NanTensorHook(spec.loss)]
        if config.log_step_count_steps is not None:
            logged = {"loss": spec.loss, "step": tf.train.get_global_step()}
            hooks.append(tf.train.LoggingTensorHook(logged, config.log_step_count_steps))
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
            save_checkpoint_secs=0,  # _saver_hooks does it
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config,
            log_step_count_steps=config.log_step_count_steps,
            save_graph_def=config.checkpoint_save_graph_def,
        ) as session:
            loss = None
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        if loss is None:
            tf.logging.warning("Training made no steps: the input is empty.")
        return loss

    def _saver_hooks(self, spec: EstimatorSpec, hooks: Hooks, listeners: Listeners) -> Hooks:
        """The hook that writes checkpoints, unless the user's hooks include one."""
        config = self._config
        user_hooks = [*hooks, *spec.training_chief_hooks]
        if any(isinstance(hook, tf.train.CheckpointSaverHook) for hook in user_hooks):
            if listeners:
                raise ValueError(
                    "saving_listeners are given together with a CheckpointSaverHook; give them to "
                    "that hook."
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
                "save_checkpoints_steps or save_checkpoints_secs in RunConfig."
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
        """Yields predictions, arrays or dictionaries of them, until the input ends.

        Args:
          input_fn: its labels are ignored.
          predict_keys: names of predictions to yield; None for all.
          yield_single_examples: whether to split batches along their first dimension.

        Raises ValueError, with the first prediction, if ``predict_keys`` match no prediction, or
        predictions of different sizes cannot be split; UserError if the checkpoint has weights that
        are not finite.
        """
        hooks = checked_list("hooks", hooks, tf.train.SessionRunHook)
        checkpoint = checkpoint_path or self.latest_checkpoint()
        with self._new_graph():
            spec, input_hooks = self._build(input_fn, ModeKeys.PREDICT)
            predictions = _select_predictions(spec.predictions, predict_keys)
            hooks = [*input_hooks, *hooks, *spec.prediction_hooks]
            with self._restored_session(spec.scaffold, checkpoint, hooks) as session:
                while not session.should_stop():
                    batch = session.run(predictions)
                    yield from _split_examples(batch) if yield_single_examples else [batch]

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Hooks | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Returns the metrics of a checkpoint, its mean ``loss`` and its ``global_step``.

        Also writes them as summaries to ``eval_dir(name)``.

        Args:
          steps: number of batches; None for all.
          name: name of the evaluation, if there are several.

        Raises ValueError if ``steps`` is below 1, or a metric is named ``loss`` or ``global_step``;
        UserError if the checkpoint has weights that are not finite.
        """
        hooks = checked_list("hooks", hooks, tf.train.SessionRunHook)
        _check_positive("steps", steps)
        checkpoint = checkpoint_path or self.latest_checkpoint()
        with self._new_graph():
            spec, input_hooks = self._build(input_fn, ModeKeys.EVAL)
            for reserved in ("loss", tf.GraphKeys.GLOBAL_STEP):
                if reserved in spec.eval_metric_ops:
                    raise ValueError(f"a metric is named {reserved}, which is a built-in metric.")
            metrics = sorted({**spec.eval_metric_ops, "loss": tf.metrics.mean(spec.loss)}.items())
            values = {key: value for key, (value, _) in metrics}
            values[tf.GraphKeys.GLOBAL_STEP] = tf.train.get_global_step()
            update = tf.group(*(update for _, (_, update) in metrics))
            scaffold = spec.scaffold
            if scaffold.local_init_op is not None:  # created before the loss metric
                both = tf.group(scaffold.local_init_op, tf.train.Scaffold.default_local_init_op())
                scaffold = tf.train.Scaffold(local_init_op=both, copy_from_scaffold=scaffold)
            at_end = tf.train.FinalOpsHook(values)
            hooks = [*input_hooks, *hooks, *spec.evaluation_hooks, at_end]
            with self._restored_session(scaffold, checkpoint, hooks) as session:
                remaining = math.inf if steps is None else steps
                while remaining and not session.should_stop():
                    session.run(update)
                    remaining -= 1
            _write_summaries(self.eval_dir(name), at_end.final_ops_values, checkpoint)
        return at_end.final_ops_values

    def export_saved_model(
        self,
        export_dir_base: str | bytes | os.PathLike,
        serving_input_receiver_fn: Callable[[], export.ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes the model in mode PREDICT as a SavedModel; returns its path.

        Args:
          export_dir_base: where to make a directory that is named after the time.
          assets_extra: files to copy, by their paths below ``assets.extra``.
          as_text: whether to write the graph as text.

        Raises ValueError if there is no checkpoint.
        """
        checkpoint = checkpoint_path or self._require_checkpoint()
        version = get_timestamped_export_dir(os.fspath(export_dir_base))
        temporary = get_temp_export_dir(version)  # servers only look for numbers
        with self._new_graph():
            receiver = serving_input_receiver_fn()
            spec = self._call_model_fn(receiver.features, None, ModeKeys.PREDICT)
            _check_weights(checkpoint)
            signatures = build_all_signature_defs(receiver.receiver_tensors, spec.export_outputs)
            local_init_op = spec.scaffold.local_init_op
            if local_init_op is None:
                local_init_op = tf.train.Scaffold.default_local_init_op()
            saver = spec.scaffold.saver or tf.train.Saver(sharded=True)
            with tf.Session(config=self._config.session_config) as session:
                saver.restore(session, checkpoint)
                builder = tf.saved_model.Builder(temporary)
                builder.add_meta_graph_and_variables(
                    session,
                    [tf.saved_model.SERVING],
                    signature_def_map=signatures,
                    assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
                    main_op=local_init_op,
                    saver=saver,
                    strip_default_attrs=True,
                )
        builder.save(as_text)
        for relative, source in (assets_extra or {}).items():
            target = os.path.join(os.fsdecode(temporary), "assets.extra", relative)
            tf.gfile.MakeDirs(os.path.dirname(target))
            tf.gfile.Copy(source, target)
        tf.gfile.Rename(temporary, version)
        return version

    def _require_checkpoint(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"{self.model_dir} has no checkpoint; train first.")
        return checkpoint

    def _checkpoint_step(self) -> int:
        checkpoint, step = self.latest_checkpoint(), tf.GraphKeys.GLOBAL_STEP
        reader = None if checkpoint is None else tf.train.load_checkpoint(checkpoint)
        return int(reader.get_tensor(step)) if reader and reader.has_tensor(step) else 0

    @contextlib.contextmanager
    def _new_graph(self) -> Iterator[None]:
        """Makes a graph with the seed and ``global_step`` the current one."""
        with tf.Graph().as_default():
            tf.set_random_seed(self._config.tf_random_seed)
            tf.train.create_global_step()
            yield

    def _restored_session(
        self, scaffold: tf.train.Scaffold, checkpoint: str | None, hooks: Hooks
    ) -> tf.train.MonitoredSession:
        if checkpoint is None:
            tf.logging.info("%s has no checkpoint; variables are initialised.", self.model_dir)
        _check_weights(checkpoint)
        creator = tf.train.ChiefSessionCreator(
            scaffold,
            config=self._config.session_config,
            checkpoint_filename_with_path=checkpoint,
        )
        return tf.train.MonitoredSession(creator, hooks)

    def _build(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[EstimatorSpec, list[tf.train.SessionRunHook]]:
        """Adds the input and the model to the current graph; returns the input's hooks, too."""
        features, labels, input_hooks = call_input_fn(input_fn, self._call_arguments(mode))
        if mode == ModeKeys.PREDICT:
            labels = None
        return self._call_model_fn(features, labels, mode), input_hooks

    def _call_model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        if labels is not None and "labels" not in arguments(self._model_fn):
            raise ValueError(f"{self._model_fn} does not take labels, but the input has labels.")
        offered = {"features": features, "labels": labels, **self._call_arguments(mode)}
        spec = call(self._model_fn, offered)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"{self._model_fn} must return an EstimatorSpec, not {spec!r}.")
        return spec

    def _call_arguments(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "params": self.params, "config": self.config}


def _check_weights(checkpoint: str | None) -> None:
    """Raises UserError if a checkpoint has values of the graph's weights that are not finite."""
    if checkpoint is None:
        return
    reader = tf.train.load_checkpoint(checkpoint)
    for name in (variable.op.name for variable in tf.trainable_variables()):
        if reader.has_tensor(name):
            values = reader.get_tensor(name)
            if values.dtype.kind == "f":
                check_finite(values, name, checkpoint)


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name}={value} must be at least 1.")


def _select_predictions(predictions: Any, keys: Sequence[str] | None) -> Any:
    """The predictions named by ``keys``, by default all; ValueError if there are none."""
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys are given, but the predictions are not named.")
    selected = {name: tensor for name, tensor in predictions.items() if name in keys}
    if not selected:
        raise ValueError(f"predict_keys {keys} match none of the predictions {list(predictions)}.")
    return selected


def _split_examples(batch: Any) -> Iterator[Any]:
    """Splits predictions along their first dimension; ValueError if it is not the same for all."""
    if not isinstance(batch, dict):
        yield from batch
        return
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"predictions of a batch must have equal sizes to be split, not {sizes}.")
    for values in zip(*batch.values()):
        yield dict(zip(batch, values))


def _write_summaries(directory: str, results: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes metrics, numbers and arrays, and their checkpoint as summaries of its step."""
    step = results[tf.GraphKeys.GLOBAL_STEP]
    summary = tf.Summary()
    for name, value in results.items():
        if name == tf.GraphKeys.GLOBAL_STEP:
            continue
        if isinstance(value, (int, float, np.integer, np.floating)):
            summary.value.add(tag=name, simple_value=float(value))
        elif isinstance(value, np.ndarray):
            summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
        else:
            tf.logging.warning(
                "No summary is written for %s: it is neither a number nor an array.", name
            )
    writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    if checkpoint:
        path = tf.Summary.Value(tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint))
        writer.add_summary(tf.Summary(value=[path]), step)
    writer.flush()
