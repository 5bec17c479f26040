"""A network in a session that trains on and predicts sequences in memory, padded or not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.sequences import Batch, Sequences
from benchmarks.studies.padding_tasks import Case
from bert_tf.input.length_buckets import LengthBuckets, LengthSortedBatches, ShuffledBatches
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.task import create_network
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning.arithmetic import SessionSettings, choose, session_config
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import kernels_for
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op

_LEARNING_RATE, _SEED = 5e-5, 1


@dataclasses.dataclass(frozen=True)
class Order:
    """The sequences in each batch, and their padded length.

    Attributes:
      sequences: all sequences.
      num_batches: batches in an epoch of training or in a prediction.
      indices: maps a batch's number to its sequences, [batch size].
      positions: maps a batch's number to its sequence length.
    """

    sequences: Sequences
    num_batches: int
    indices: Callable[[int], np.ndarray]
    positions: Callable[[int], int]

    @functools.cached_property
    def counted(self) -> np.ndarray:
        """The sequences of all batches, without those that only fill a prediction's last batch."""
        indices = [self.indices(number) for number in range(self.num_batches)]
        return np.concatenate(indices)[: len(self.sequences.lengths)]

    def batches(self, *, one_of_each_length: bool = False) -> Iterator[Batch]:
        """The features of all batches, or of one batch for each sequence length."""
        numbers = range(self.num_batches)
        if one_of_each_length:
            numbers = {self.positions(number): number for number in numbers}.values()
        for number in numbers:
            yield self.sequences.batch(self.indices(number), self.positions(number))


def training_order(case: Case, sequences: Sequences, *, by_length: bool, cut: bool) -> Order:
    """The batches of a training, by length or random, cut to their longest sequence or padded."""
    rank_slice, total = GlobalBatchSlice(case.batch_size), len(sequences.lengths)
    order = (LengthBuckets if by_length else ShuffledBatches)(
        sequences.lengths,
        global_batch_size=case.batch_size,
        seed=_SEED,
        max_length=case.max_seq_length,
    )
    return Order(
        sequences,
        max(1, total // case.batch_size),
        lambda number: order.indices(number, rank_slice),
        order.padded_length if cut else lambda _: case.max_seq_length,
    )


def prediction_order(case: Case, sequences: Sequences, *, cut: bool) -> Order:
    """All sequences once, the longest first; unless they are cut, all are padded equally."""
    batches = LengthSortedBatches(
        sequences.lengths,
        batch_size=case.batch_size,
        max_length=case.max_seq_length,
        rank=0,
        world_size=1,
    )
    positions = batches.padded_length if cut else lambda _: case.max_seq_length
    return Order(sequences, batches.num_batches, batches.indices, positions)


class TrainedNetwork:
    """A task's network, its update and its predictions, for sequences of any length.

    Attributes:
      precision: precision of its products, ``fp32``, ``bf16`` or ``fp16``.
    """

    def __init__(
        self,
        case: Case,
        config: BertConfig,
        *,
        precision: str,
        threads: int,
        skip_padding: bool,
    ) -> None:
        """Initialises the weights.

        ``precision`` is like --precision, and ``skip_padding`` applies to the encoder.
        """
        ranks = SingleProcess(threads)
        choice = choose(config, ranks=ranks, precision=precision)
        self.precision, kernels = choice.precision, kernels_for(choice.against_native_ops)
        with tf.Graph().as_default():
            task = case.task(config)
            options = dataclasses.replace(choice.options, skip_padding=skip_padding)
            network = create_network(task, options, seed=_SEED)
            self._inputs = _placeholders(case.train, batch_size=case.batch_size)
            rate = tf.constant(_LEARNING_RATE)
            self._train_op = build_train_op(
                network,
                self._inputs,
                plan=BatchPlan(case.batch_size, 1, world_size=1),
                optimizer=Optimizer("adam", rate, kernels=kernels),
                learning_rate=rate,
                loss_scale=LossScale(),
                ranks=ranks,
                settings=UpdateSettings(seed=_SEED),
            ).train_op
            self._outputs = network.predictions(self._inputs)
            self._session = tf.Session(config=session_config(SessionSettings(threads)))
            self._session.run(tf.global_variables_initializer())

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def update(self, batch: Batch) -> None:
        """One update of the weights."""
        self._session.run(self._train_op, {self._inputs[name]: batch[name] for name in batch})

    def predict(self, batch: Batch) -> None:
        """Predicts a batch; its labels are not read."""
        self._session.run(self._outputs, {self._inputs[name]: batch[name] for name in INPUTS})


def _placeholders(sequences: Sequences, *, batch_size: int) -> dict[str, tf.Tensor]:
    """Inputs for a batch of the features, with any sequence length."""
    placeholders = {}
    for name, values in sequences.features.items():
        rest = [None] if name in INPUTS else values.shape[1:]
        placeholders[name] = tf.placeholder(values.dtype, [batch_size, *rest], name)
    return placeholders
