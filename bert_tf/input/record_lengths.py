"""How many positions each pre-training record needs, counted once per file.

Counts are stored next to the records (``records.lengths``), so only the first run that uses them
reads them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import BatchReader, Features, user_errors
from bert_tf.input.pipeline import PretrainingRecords
from bert_tf.records.lengths import can_keep_lengths, keep_lengths, read_lengths
from bert_tf.records.tfrecord import RecordFile
from bert_tf.util.progress import Progress

_BATCH_SIZE = 1024
_COUNTED = ("input_mask", "masked_lm_positions")


def lengths_of_records(
    records: PretrainingRecords,
    *,
    shows_progress: bool,
    session_config: tf.ConfigProto | None = None,
) -> np.ndarray:
    """The number of positions that each record needs: uint16 [N].

    These extend to its last token or stored mask. Files without stored lengths are counted in a
    session with ``session_config``. Raises UserError if a record is damaged.
    """
    files = records.record_set.files
    found = {file: read_lengths(records.record_set, file) for file in files}
    missing = [file for file, lengths in found.items() if lengths is None]
    if missing:
        counter = _Counter(records, missing, session_config, shows_progress=shows_progress)
        found.update({file: counter.count(file) for file in missing})
    return np.concatenate([found[file] for file in files])


def keep_missing_lengths(
    records: PretrainingRecords,
    *,
    begin_at: float = 0.0,
    shows_progress: bool,
    session_config: tf.ConfigProto | None = None,
) -> None:
    """Counts files without stored lengths, and stores the lengths if files can be written.

    Hosts on one disk divide the files among themselves if each has a different ``begin_at``, the
    fraction of the files that it leaves for last. Raises UserError if a record is damaged.
    """
    record_set = records.record_set
    writable = [file for file in record_set.files if can_keep_lengths(file)]
    first = int(begin_at * len(writable))
    missing = [
        file
        for file in (*writable[first:], *writable[:first])
        if read_lengths(record_set, file) is None
    ]
    if not missing:
        return
    counter = _Counter(records, missing, session_config, shows_progress=shows_progress)
    for file in missing:
        # Another host may have counted it in the meantime.
        if read_lengths(record_set, file) is None:
            keep_lengths(record_set, file, counter.count(file))


class _Counter:
    """Counts the lengths of records, one file at a time."""

    def __init__(
        self,
        records: PretrainingRecords,
        files: Sequence[RecordFile],
        session_config: tf.ConfigProto | None,
        *,
        shows_progress: bool,
    ):
        self._record_set = records.record_set
        total = sum(map(len, files))
        self._progress = (
            Progress("lengths of records", total, "records") if shows_progress else None
        )
        info = records.info
        counted = tuple(feature for feature in info.spec.features if feature.name in _COUNTED)
        reader = BatchReader(
            records.record_set,
            # Parsing and checking all features would take longer.
            spec=dataclasses.replace(info.spec, features=counted),
            lengths=info.lengths,
            vocab_size=records.vocab_size,
            type_vocab_size=records.type_vocab_size,
            batch_size=None,
            indices=self._indices,
        )
        graph = tf.Graph()
        with graph.as_default(), tf.device("/cpu:0"):
            self._first = tf.placeholder(tf.int64, [])
            self._lengths = _positions_needed(reader.read(self._first))
        self._session = tf.Session(graph=graph, config=session_config)

    def count(self, file: RecordFile) -> np.ndarray:
        """The lengths of a file's records: uint16 [N]; UserError if a record is damaged."""
        if not len(file):
            return np.zeros(0, np.uint16)
        begin = self._record_set.index_of(file)
        found = []
        for first in range(begin, begin + len(file), _BATCH_SIZE):
            with user_errors():
                lengths = self._session.run(self._lengths, {self._first: first})
            found.append(lengths.astype(np.uint16))
            if self._progress is not None:
                self._progress.advance(len(lengths))
        return np.concatenate(found)

    def _indices(self, first: int) -> np.ndarray:
        """The records of a batch that begins with ``first``, all from the same file."""
        file, number = self._record_set.locate(first)
        return first + np.arange(min(_BATCH_SIZE, len(file) - number))


def _positions_needed(features: Features) -> tf.Tensor:
    """One more than the last position with a token or stored mask: int32 [B]."""
    mask = features["input_mask"]
    needed = tf.reduce_max(mask * tf.range(1, tf.shape(mask)[1] + 1), axis=1)
    if "masked_lm_positions" in features:
        masked = tf.reduce_max(features["masked_lm_positions"], axis=1) + 1
        needed = tf.maximum(needed, masked)
    return needed
