"""Batches of records as ``tf.data``; the contents of a batch depend only on its position.

Python locates and reads the records; TensorFlow parses them in C++. Their values are checked before
use. The caller decides which records are in a batch (order.py, length_buckets.py).

Symbols: B sequences in one batch of one rank, S positions.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.records.layouts import REAL, SEGMENTS, SEQUENCE, VOCABULARY, RecordSpec
from bert_tf.records.tfrecord import RecordSet
from bert_tf.util.errors import UserError

Features = dict[str, tf.Tensor]

_PREFETCH = 4  # batches prepared in advance
# Features become int32.
_INT32_VALUES = 2**31
# Number of batches read and parsed at the same time.
_PARALLEL_READS = 4

# An error in a Python function reaches the session as text, with the exception's class and message
# on one line; an error of the parser begins with the name given to the record.
_PYTHON_ERROR = re.compile(r"UserError: (.+)")
_PARSER_ERROR = re.compile(r"Name: (record \d+ of .+?), (?:Key|Feature): (\w+)")
_NOT_AN_EXAMPLE = "Could not parse example input"


class BatchReader:
    """Reads the records of a batch as parsed features."""

    def __init__(
        self,
        record_set: RecordSet,
        *,
        spec: RecordSpec,
        lengths: Mapping[str, int],
        vocab_size: int,
        type_vocab_size: int,
        batch_size: int | None,
        indices: Callable[[int], np.ndarray],
        names: Mapping[str, Sequence[str]] | None = None,
        positions_kept: Callable[[int], int] | None = None,
    ):
        """Reads the records of ``record_set``.

        Args:
          record_set: the records.
          spec: their layout.
          lengths: lengths of their features, by length key.
          vocab_size, type_vocab_size: the model's exclusive upper bounds for ids and segments; a
            model without segments, 0, ignores them.
          batch_size: B; None if it differs between batches.
          indices: maps a batch's position to the numbers of its records, integers [B].
          names: as in ``spec.parse_spec``.
          positions_kept: maps a batch's position to the length to which its sequences are cut
            (beyond it, there is only padding); None keeps them whole.
        """
        self._record_set = record_set
        self._indices = indices
        self._kept_at = None if positions_kept is None else functools.partial(_kept, positions_kept)
        self._spec = spec
        segments = type_vocab_size or _INT32_VALUES
        self._sizes = {**lengths, VOCABULARY: vocab_size, SEGMENTS: segments}
        self._names = names
        self._parse_spec = spec.parse_spec(lengths, names)
        self._sequences = [f.name for f in spec.features if f.length_key == SEQUENCE]
        self._batch_size = batch_size

    def read(self, position: tf.Tensor) -> Features:
        """The features of the batch at ``position``, integers as int32.

        Shapes are static, except for the sequence length if sequences are cut.
        """
        serialized, names = tf.numpy_function(
            self._read_records, [position], [tf.string, tf.string]
        )
        for tensor in (serialized, names):
            tensor.set_shape([self._batch_size])
        parsed = tf.io.parse_example(serialized, self._parse_spec, example_names=names)
        features = self._spec.merge(parsed, self._names)
        kept = self._sizes[SEQUENCE]
        if self._kept_at is not None:
            kept = tf.numpy_function(self._kept_at, [position], tf.int64)
            kept.set_shape([])
        with tf.control_dependencies([self._check(position, features, kept)]):
            if self._kept_at is not None:
                for name in self._sequences:
                    features[name] = features[name][..., :kept]
            return {
                name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tf.identity(tensor)
                for name, tensor in features.items()
            }

    def _check(
        self, position: tf.Tensor, features: Features, kept: tf.Tensor | int
    ) -> tf.Operation:
        """Fails if a record in the batch is invalid.

        C++ finds out whether there is a problem, Python what it is: calling Python for every batch
        would take longer than parsing small ones.
        """
        names = [feature.name for feature in self._spec.features]
        bounds = self._spec.bounds({**self._sizes, SEQUENCE: kept})
        signed = [feature.name for feature in self._spec.features if feature.below == REAL]
        sizes = {**features, **{name: tf.abs(features[name]) for name in signed}}
        good = [_all_within(sizes[name], bounds[name]) for name in names]
        if self._kept_at is not None:
            good.append(tf.reduce_all(tf.equal(features["input_mask"][..., kept:], 0)))

        def refuse() -> tf.Tensor:
            columns = [features[name] for name in names]
            return tf.numpy_function(self._refuse, [position, kept, *columns], tf.bool)

        return tf.cond(tf.reduce_all(tf.stack(good)), lambda: tf.constant(True), refuse).op

    def _refuse(self, position: np.int64, kept: np.int64, *columns: np.ndarray) -> np.bool_:
        """Raises a UserError that names the record."""
        batch = {feature.name: column for feature, column in zip(self._spec.features, columns)}
        problem = self._spec.out_of_range(batch, {**self._sizes, SEQUENCE: int(kept)})
        miscounted = f"it has more tokens than the {kept} that were counted in it"
        if problem is None:
            beyond = np.argwhere(batch["input_mask"][..., kept:])
            problem = int(beyond[0, 0]), miscounted
        row, what = problem
        index = self._indices(int(position)).tolist()[row]
        from bert_tf.records.lengths import lengths_path

        counts = lengths_path(self._record_set.locate(index)[0].path)
        advice = "delete the file and make it again"
        if counts.is_file() and self._spec.out_of_range(batch, self._sizes) is None:
            what, advice = miscounted, f"delete {counts.name}"
        raise UserError(f"{self._name_of(index)} cannot be used: {what}; {advice}.")

    def _name_of(self, index: int) -> str:
        file, number = self._record_set.locate(index)
        return f"record {number} of {file.path}"

    def _read_records(self, position: np.int64) -> tuple[np.ndarray, np.ndarray]:
        """Serialized examples and their names for error messages; object arrays [B]."""
        indices = self._indices(int(position)).tolist()
        # Object arrays, since numpy's strings would lose trailing zero bytes of a record.
        serialized = np.array(self._record_set.read(indices), dtype=object)
        names = [self._name_of(index).encode() for index in indices]
        return serialized, np.array(names, dtype=object)


def _all_within(values: tf.Tensor, bound: tf.Tensor | float) -> tf.Tensor:
    """Whether all values are in [0, ``bound``), not NaN: bool []."""
    if values.dtype == tf.int64:
        # As unsigned integers, negative values are larger than all others.
        return tf.reduce_max(tf.bitcast(values, tf.uint64)) < tf.cast(bound, tf.uint64)
    return tf.reduce_all((values >= 0) & (values < bound))


def dataset_of_positions(
    first: int, end: int | None, features_at: Callable[[tf.Tensor], Features]
) -> tf.data.Dataset:
    """The batches at positions ``first`` to ``end`` (None: endless), several in flight at once.

    Their order is preserved.
    """
    options = tf.data.Options()
    # The autotuning thread sleeps for up to a minute, and closing the dataset sometimes waits for
    # it: an evaluation of 10 seconds took 20.
    options.autotune.enabled = False
    positions = tf.data.Dataset.range(first, np.iinfo(np.int64).max if end is None else end)
    batches = positions.map(
        tf.autograph.experimental.do_not_convert(features_at),
        num_parallel_calls=_PARALLEL_READS,
        deterministic=True,
    )
    return batches.prefetch(_PREFETCH).with_options(options)


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Converts a session's error about a damaged record to a UserError that names the record.

    TensorFlow wraps errors inside a dataset in an error of its own with a long text. Other errors
    pass unchanged.
    """
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # A message that contains a record's bytes cannot be decoded.
        text = str(error.object) if isinstance(error, UnicodeDecodeError) else error.message
        sentence = _sentence_in(text)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def _kept(positions_kept: Callable[[int], int], position: np.int64) -> np.int64:
    return np.int64(positions_kept(int(position)))


def _sentence_in(message: str) -> str | None:
    python_error = _PYTHON_ERROR.search(message)
    if python_error:
        return python_error.group(1)
    parser_error = _PARSER_ERROR.search(message)
    if parser_error:
        record, feature = parser_error.groups()
        return (
            f"{record} differs from the first records: its feature {feature} is missing or has "
            "another length; make the file again."
        )
    if _NOT_AN_EXAMPLE in message:
        return (
            "a record with a valid checksum is not a tf.train.Example, so the program that wrote "
            "its file is at fault; find the file with python -m data_prep.inspect and make it "
            "again."
        )
    return None
