"""A task's network with its weights in a session, on which all predicting code builds."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.loading import initialise_from_checkpoint, missing_heads
from bert_tf.checkpoint.tensorflow_file import explained_reading
from bert_tf.inference.settings import chosen_options
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import Network, Task, create_network
from bert_tf.model.variables import Variables
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.tuning.arithmetic import SessionSettings, session_config
from bert_tf.util.console import say
from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike


class Predictor:
    """Predicts batches of sequences of any length up to the network's limit.

    Attributes:
      graph, session: the graph with only this network, and its session.
      network: the task with its variables and options.
      inputs: placeholders for the task's inputs, [B, any] int32 each.
      predictions: the task's predictions for the inputs.
    """

    def __init__(
        self,
        task: Task,
        checkpoint: PathLike | None,
        *,
        options: ForwardOptions | None = None,
        threads: int | None = None,
        gpu: int | None = None,
        portable: bool = False,
    ) -> None:
        """Restores the weights.

        Args:
          checkpoint: a file or directory with the weights; None for random weights.
          options: how to compute layers, from ``inference.settings.chosen_options``; None for
            float32, with native operations on CPUs if they are built.
          threads: number of cores to use; None for all.
          gpu: index of the GPU to use if there are several; None leaves the choice to TensorFlow.
          portable: the graph must be loadable with only TensorFlow and a checkpoint's variables,
            so it has no native operations, whatever ``options`` are.

        Raises UserError if the weights do not fit the task's network.
        """
        if options is None:
            options, _ = chosen_options(task.config)
        if portable:
            options = options.with_native_layers(False)
        self.graph = tf.Graph()
        with self.graph.as_default():
            network = create_network(task, options)
            if checkpoint is not None:
                _initialise(checkpoint, network)
            if not portable:
                variables = _with_cast_kernels(network.variables, options.policy.dense)
                network = Network(task, variables, options)
            self.network = network
            self.inputs = {n: tf.placeholder(tf.int32, [None, None], n) for n in task.inputs}
            self.predictions = network.predictions(self.inputs)
            settings = SessionSettings(threads=threads or available_cores(), gpu=gpu)
            self.session = tf.Session(config=session_config(settings))
            with explained_reading(checkpoint or "of random weights"):
                self.session.run(tf.global_variables_initializer())
            self.session.run(tf.local_variables_initializer())

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the task's predictions for a batch of its inputs."""
        feed = {tensor: features[name] for name, tensor in self.inputs.items()}
        return self.session.run(self.predictions, feed)

    def run_all(
        self, batches: Iterable[Mapping[str, np.ndarray]], *, at_once: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the task's predictions for batches, in their order.

        ``at_once`` batches are computed at a time, each mostly by a thread of its own. Small
        batches then use all cores, without waiting for each other after every operation.
        """
        in_this_thread = tf.RunOptions(inter_op_thread_pool=-1)

        def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            feed = {tensor: features[name] for name, tensor in self.inputs.items()}
            return self.session.run(self.predictions, feed, options=in_this_thread)

        with concurrent.futures.ThreadPoolExecutor(at_once) as executor:
            yield from executor.map(run, batches)


def _initialise(checkpoint: PathLike, network: Network) -> None:
    task = network.task
    report = initialise_from_checkpoint(
        checkpoint, network.variables.trainable(), heads=task.heads, config=task.config
    )
    if report.fresh:
        missing = next(iter(missing_heads(report, task.heads)))
        raise UserError(
            f"{checkpoint} has no {missing.name} ({', '.join(report.fresh)}); train one with "
            f"{missing.trained_by} --do_train --init_checkpoint={checkpoint}."
        )
    for note in set(report.notes).difference(ModelDirectory.of(checkpoint).notes):
        say(note, stream=sys.stderr)  # commands show the directory's own


def _with_cast_kernels(variables: Variables, dtype: tf.DType) -> Variables:
    """Returns the variables with dense kernels of other types replaced by copies in ``dtype``.

    The copies are local variables, which are not saved in checkpoints; initialize them after the
    variables. Without them, casting kernels would dominate the time of a small batch.
    """

    def cast_kernel(variable: tf.Variable) -> tf.Variable:
        if not variable.op.name.endswith("/kernel") or variable.dtype == dtype:
            return variable
        return tf.Variable(
            tf.cast(variable.read_value(), dtype),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=f"{variable.op.name}_{dtype.name}",
        )

    return Variables({variable.op.name: cast_kernel(variable) for variable in variables.all()})
