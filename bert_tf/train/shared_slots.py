"""Checkpoints of an optimizer whose slots are sharded over ranks.

They equal those of an unsharded optimizer: rank 0 gathers the whole slots to save them, and sends
those that it reads to all ranks, each of which keeps its part. So a run can be resumed by any
number of ranks, with or without sharding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import Stored, TensorflowCheckpoint
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.start_point import ResumingSaver
from bert_tf.update.shards import SlotPart


class SharingSaver(ResumingSaver):
    """Saves variables and whole slots; :meth:`save` is collective. Restores the variables only.

    Rank 0 holds all slots while it saves, when the memory of gradients is free.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        slots: Sequence[SlotPart],
        ranks: Ranks,
        **options: Any,
    ) -> None:
        """Adds operations to the graph; ``options`` are those of ``ResumingSaver``."""
        super().__init__(variables, **options)
        self._writes = ranks.is_chief
        self.restored: str | None = None
        self._saved.update((slot.name, Stored(slot.shape, tf.float32)) for slot in slots)
        whole = {slot.name: _gathered(slot, ranks) for slot in slots}
        self._received = _received(whole.values())
        if self._writes:
            values = {**{v.op.name: v.read_value() for v in variables}, **whole}
            definition = self.saver_def
            path = tf.get_default_graph().get_tensor_by_name(definition.filename_tensor_name)
            write = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
            with tf.control_dependencies([write]):
                definition.save_tensor_name = tf.identity(path).name

    def save(self, sess: tf.Session, save_path: str, global_step: int) -> str | None:
        """Like ``ResumingSaver.save`` on rank 0; the other ranks send their parts of the slots."""
        if self._writes:
            return super().save(sess, save_path, global_step)
        sess.run(self._received)
        return None

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores the variables, and remembers in ``restored`` where the slots are."""
        super().restore(sess, save_path)
        self.restored = save_path


def _received(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """A few numbers that depend on all of the tensors, none of which is empty.

    TensorFlow does not run a collective operation whose result is not used.
    """
    return tf.stack([tf.reshape(tensor, [-1])[0] for tensor in tensors])


def _gathered(slot: SlotPart, ranks: Ranks) -> tf.Tensor:
    own = tf.reshape(slot.variable.read_value(), [-1])
    return tf.reshape(ranks.concatenate(own, name=f"{slot.name}/saved"), slot.shape)


class ReceiveSlots(tf.train.SessionRunHook):
    """Gives every rank its parts of the slots in the checkpoint that rank 0 has restored.

    Sends one slot at a time, so that no rank holds all of them.
    """

    def __init__(self, slots: Sequence[SlotPart], saver: SharingSaver, ranks: Ranks):
        """``saver`` is the saver that rank 0 restores with."""
        self._slots = slots
        self._saver = saver
        self._ranks = ranks

    def begin(self) -> None:
        """Adds the operations that send each slot."""
        self._given, self._assign = [], []
        for slot in self._slots:
            given = tf.placeholder(tf.float32, [math.prod(slot.shape)])
            whole = self._ranks.from_chief(given, name=f"{slot.name}/restored")
            part = tf.reshape(whole[slot.part.start : slot.part.end], slot.variable.shape)
            self._given.append(given)
            assign = slot.variable.assign(part, read_value=False)
            self._assign.append([assign, _received([whole])])  # the part may be empty

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Sends the slots. Collective."""
        del coord
        file = None
        if self._saver.restored is not None:
            file = TensorflowCheckpoint(self._saver.restored)
        for slot, given, assign in zip(self._slots, self._given, self._assign):
            if file is None:
                values = np.zeros(given.shape.as_list(), np.float32)
            else:
                values = file.read(slot.name).reshape(-1)
            session.run(assign, {given: values})
