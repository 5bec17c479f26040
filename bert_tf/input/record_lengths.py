"""How many positions each pre-training record needs, counted once for each file.

What was counted is kept beside the records (``records.lengths``), so that only the first run on
them reads them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import Features, dataset_of_positions, user_errors
from bert_tf.input.pipeline import PretrainingRecords, record_reader
from bert_tf.progress import Progress
from bert_tf.records.lengths import can_keep_lengths, keep_lengths, read_lengths
from bert_tf.records.tfrecord import RecordFile

_BATCH_SIZE = 512


def lengths_of_records(records: PretrainingRecords, *, shows_progress: bool) -> np.ndarray:
    """The positions that each record needs: uint16 [N].

    These are all up to its last token or stored mask. Files whose lengths are not kept are counted.
    Raises UserError for a damaged record.
    """
    files = records.record_set.files
    found = {file: read_lengths(records.record_set, file) for file in files}
    missing = [file for file, lengths in found.items() if lengths is None]
    progress = _progress(missing) if shows_progress else None
    found.update({file: _count(records, file, progress) for file in missing})
    return np.concatenate([found[file] for file in files])


def keep_missing_lengths(
    records: PretrainingRecords, *, begin_at: float = 0.0, shows_progress: bool
) -> None:
    """Counts files whose lengths are not kept, and keeps them where files can be written.

    Hosts on one disk divide the files if each of them has another ``begin_at``, a share of the
    files that come first at last. Raises UserError for a damaged record.
    """
    record_set = records.record_set
    writable = [file for file in record_set.files if can_keep_lengths(file)]
    first = int(begin_at * len(writable))
    missing = [
        file
        for file in (*writable[first:], *writable[:first])
        if read_lengths(record_set, file) is None
    ]
    progress = _progress(missing) if shows_progress else None
    for file in missing:
        # Another host may have been here in the meantime.
        if read_lengths(record_set, file) is None:
            keep_lengths(record_set, file, _count(records, file, progress))


def _progress(files: Sequence[RecordFile]) -> Progress:
    return Progress("lengths of records", sum(map(len, files)), "records")


def _count(records: PretrainingRecords, file: RecordFile, progress: Progress | None) -> np.ndarray:
    """The lengths of the records of a file: uint16 [N]."""
    if not len(file):
        return np.zeros(0, np.uint16)
    first = records.record_set.index_of(file)

    def indices(batch: int) -> np.ndarray:
        start = batch * _BATCH_SIZE
        return first + np.arange(start, min(start + _BATCH_SIZE, len(file)))

    reader = record_reader(records, indices, batch_size=None)
    found = []
    with tf.Graph().as_default(), tf.Session() as session, user_errors():
        batches = dataset_of_positions(
            0,
            -(-len(file) // _BATCH_SIZE),
            lambda batch: _positions_needed(reader.read(batch)),
        )
        lengths = tf.data.make_one_shot_iterator(batches).get_next()
        while sum(map(len, found)) < len(file):
            found.append(session.run(lengths).astype(np.uint16))
            if progress is not None:
                progress.advance(len(found[-1]))
    return np.concatenate(found)


def _positions_needed(features: Features) -> tf.Tensor:
    """One more than the last position with a token or a stored mask: int32 [B]."""
    mask = features["input_mask"]
    needed = tf.reduce_max(mask * tf.range(1, tf.shape(mask)[1] + 1), axis=1)
    if "masked_lm_positions" in features:
        masked = tf.reduce_max(features["masked_lm_positions"], axis=1) + 1
        needed = tf.maximum(needed, masked)
    return needed
