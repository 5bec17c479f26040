"""The record layouts, shared by writers and readers.

A record is a serialized ``tf.train.Example``. It is encoded and decoded here without TensorFlow,
because data preparation runs in many processes, none of which should have to load it. Encoding
writes the protocol buffer wire format for a whole batch with numpy (several times faster than
building messages); decoding, which is not performance-critical, uses the protobuf runtime with a
private descriptor pool, to avoid a clash with TensorFlow's own registration of the messages.

Symbols: N examples in a batch, L values in a feature.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

SEQUENCE = "max_seq_length"
PREDICTIONS = "max_predictions_per_seq"
ONE = "one"
TARGETS = "num_targets"
# Sequences of equal length in each feature of a record; without it, a feature is one sequence.
CHOICES = "num_choices"

# Features that mark the beginnings of words, and label words.
WORD_STARTS, LABEL_IDS = "word_starts", "label_ids"

# Further upper bounds for the values of a feature, in addition to SEQUENCE.
VOCABULARY = "vocab_size"
SEGMENTS = "type_vocab_size"
TWO = "two"
INT32 = "int32"
FINITE = "finite"
REAL = "real"  # the only range with negative values

# The names that TensorFlow 2's scripts (use_v2_feature_names) give to two features.
ALTERNATIVE_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}

_RANGES = {
    SEQUENCE: "positions in the sequence are 0 to {last}",
    VOCABULARY: "ids in the model's vocabulary are 0 to {last}",
    SEGMENTS: "the model's segments are 0 to {last}",
    TWO: "it must be 0 or 1",
    INT32: "it must be 0 to {last}",
    FINITE: "it must be finite, and not negative",
    REAL: "it must be finite",
}


@dataclasses.dataclass(frozen=True)
class Feature:
    """One named list of numbers in a record.

    Attributes:
      name: key in the Example.
      dtype: "int64" or "float32".
      length_key: its length: SEQUENCE, PREDICTIONS, TARGETS, or ONE for a single value.
      below: exclusive upper bound of its non-negative values: SEQUENCE, VOCABULARY, SEGMENTS,
        TWO, INT32, FINITE or REAL.
    """

    name: str
    dtype: str
    length_key: str
    below: str


@dataclasses.dataclass(frozen=True)
class RecordSpec:
    """A record layout: its features, an encoder, a decoder and the parse spec for TensorFlow."""

    name: str
    features: tuple[Feature, ...]

    def encode(self, example: Mapping[str, np.ndarray]) -> bytes:
        """Serializes an example, a dict of arrays of shape [L] by feature name."""
        return self.encode_batch({key: np.asarray(v)[None] for key, v in example.items()})[0]

    def encode_batch(self, examples: Mapping[str, np.ndarray]) -> list[bytes]:
        """Serializes N examples, given as a dict of arrays of shape [N, L] by feature name."""
        missing = {feature.name for feature in self.features} ^ set(examples)
        if missing:
            raise ValueError(f"features of {self.name} do not match: {sorted(missing)}")
        columns: list[list[bytes]] = []
        same_size: list[np.ndarray] = []  # adjacent features whose rows can be joined as one array
        for feature in self.features:
            encoded = _encode_feature(feature, np.asarray(examples[feature.name]))
            if isinstance(encoded, np.ndarray):
                same_size.append(encoded)
                continue
            columns += _joined(same_size) + encoded
            same_size = []
        columns += _joined(same_size)
        contents = map(b"".join, zip(*columns))
        return [_length_delimited(b"\x0a", content) for content in contents]

    def decode(self, record: bytes) -> dict[str, np.ndarray]:
        """Reads one example back as arrays of shape [L].

        Raises:
          ValueError: the bytes are not an Example, or a feature is missing, has the wrong type, or
            has a length that contradicts another feature.
        """
        example = with_standard_names(decode_example(record))
        self.lengths_of(example)
        return {feature.name: example[feature.name] for feature in self.features}

    def matches(self, example: Mapping[str, np.ndarray]) -> bool:
        """Whether a decoded example has all features of this layout, with their types."""
        return all(
            feature.name in example and example[feature.name].dtype == np.dtype(feature.dtype)
            for feature in self.features
        )

    def lengths_of(self, example: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The lengths in a decoded example, by length key; ValueError for contradictory ones."""
        lengths: dict[str, int] = {ONE: 1}
        for feature in self.features:
            values = example.get(feature.name)
            if values is None or values.dtype != np.dtype(feature.dtype):
                raise ValueError(f"feature {feature.name} ({feature.dtype}) is missing")
            expected = lengths.setdefault(feature.length_key, len(values))
            if expected != len(values):
                raise ValueError(
                    f"feature {feature.name} has {len(values)} values instead of {expected}"
                )
        return lengths

    def out_of_range(
        self, examples: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> tuple[int, str] | None:
        """Finds the first example with an invalid value.

        Args:
          examples: int64 and float32 arrays of shape [N, ..., L] by feature name.
          sizes: values of SEQUENCE, VOCABULARY and SEGMENTS.

        Returns: the example's index and a clause for an error message; None if all values are
          valid.
        """
        bounds = self.bounds(sizes)
        found = [_first_bad_value(f, examples[f.name], bounds[f.name]) for f in self.features]
        return min(filter(None, found), default=None)

    def bounds(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Exclusive upper bound of each feature's values; sizes as above."""
        bounds: dict[str, float] = {TWO: 2, INT32: 2**31, FINITE: np.inf, REAL: np.inf, **sizes}
        return {feature.name: bounds[feature.below] for feature in self.features}

    def parse_spec(
        self, lengths: Mapping[str, int], names: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, Any]:
        """The ``features`` argument of ``tf.io.parse_example`` for records of these lengths.

        Features of sequences are parsed to [CHOICES, SEQUENCE] if ``lengths`` has CHOICES.

        ``names`` lists a feature's names in the records if they differ from its standard name. If
        there are several, a name that is missing from a record parses as -1.
        """
        import tensorflow.compat.v1 as tf

        lengths = {ONE: 1, **lengths}
        spec = {}
        for feature in self.features:
            shape = [lengths[feature.length_key]]
            found = _names_of(feature, names)
            default = [-1] * shape[0] if len(found) > 1 else None
            if feature.length_key == SEQUENCE and CHOICES in lengths:
                shape = [lengths[CHOICES], *shape]
            for name in found:
                spec[name] = tf.io.FixedLenFeature(shape, tf.as_dtype(feature.dtype), default)
        return spec

    def merge(
        self, parsed: Mapping[str, tf.Tensor], names: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, tf.Tensor]:
        """Puts what :meth:`parse_spec` parsed under the features' standard names."""
        import tensorflow.compat.v1 as tf

        return {
            feature.name: functools.reduce(
                tf.maximum, [parsed[name] for name in _names_of(feature, names)]
            )
            for feature in self.features
        }


def _names_of(feature: Feature, names: Mapping[str, Sequence[str]] | None) -> Sequence[str]:
    return (names or {}).get(feature.name, (feature.name,))


# The seven features of google-research/bert, create_pretraining_data.py.
PRETRAINING_MASKED = RecordSpec(
    "pretraining_masked",
    (
        Feature("input_ids", "int64", SEQUENCE, VOCABULARY),
        Feature("input_mask", "int64", SEQUENCE, TWO),
        Feature("segment_ids", "int64", SEQUENCE, SEGMENTS),
        Feature("masked_lm_positions", "int64", PREDICTIONS, SEQUENCE),
        Feature("masked_lm_ids", "int64", PREDICTIONS, VOCABULARY),
        Feature("masked_lm_weights", "float32", PREDICTIONS, FINITE),
        Feature("next_sentence_labels", "int64", ONE, TWO),
    ),
)

# For masking at training time: input_ids are the original ids; word_starts is 1 where a word (or a
# special token) begins, and 0 for other pieces and padding.
PRETRAINING_UNMASKED = RecordSpec(
    "pretraining_unmasked",
    (
        Feature("input_ids", "int64", SEQUENCE, VOCABULARY),
        Feature("input_mask", "int64", SEQUENCE, TWO),
        Feature("segment_ids", "int64", SEQUENCE, SEGMENTS),
        Feature(WORD_STARTS, "int64", SEQUENCE, TWO),
        Feature("next_sentence_labels", "int64", ONE, TWO),
    ),
)

UNIQUE_IDS = Feature("unique_ids", "int64", ONE, INT32)

# The features of google-research/bert, run_squad.py. Positions are 0 ([CLS]) in windows without an
# answer.
SQUAD_PREDICTION = RecordSpec(
    "squad_prediction",
    (
        UNIQUE_IDS,
        Feature("input_ids", "int64", SEQUENCE, VOCABULARY),
        Feature("input_mask", "int64", SEQUENCE, TWO),
        Feature("segment_ids", "int64", SEQUENCE, SEGMENTS),
    ),
)

SQUAD_TRAINING = RecordSpec(
    "squad_training",
    (
        *SQUAD_PREDICTION.features,
        Feature("start_positions", "int64", ONE, SEQUENCE),
        Feature("end_positions", "int64", ONE, SEQUENCE),
        Feature("is_impossible", "int64", ONE, TWO),
    ),
)

CLASSIFICATION_PREDICTION = RecordSpec("classification_prediction", SQUAD_PREDICTION.features)

# A label is a class's number or a rating; where texts have several classes, 0 or 1 for each class.
CLASSIFICATION_TRAINING = RecordSpec(
    "classification_training",
    (*CLASSIFICATION_PREDICTION.features, Feature("labels", "float32", TARGETS, REAL)),
)

# word_starts is 1 where a word begins; label_ids has the word's label there, and 0 elsewhere.
# Special tokens do not count as words here.
TAGGING_PREDICTION = RecordSpec(
    "tagging_prediction", (*SQUAD_PREDICTION.features, Feature(WORD_STARTS, "int64", SEQUENCE, TWO))
)

TAGGING_TRAINING = RecordSpec(
    "tagging_training", (*TAGGING_PREDICTION.features, Feature(LABEL_IDS, "int64", SEQUENCE, INT32))
)

CHOICE_PREDICTION = RecordSpec("choice_prediction", SQUAD_PREDICTION.features)

# Each feature has a sequence for each choice, one after the other; the label is a choice's number.
CHOICE_TRAINING = RecordSpec(
    "choice_training", (*CHOICE_PREDICTION.features, Feature("labels", "int64", ONE, INT32))
)


def decode_example(record: bytes) -> dict[str, np.ndarray]:
    """Decodes the int64 and float32 features of a serialized Example; ValueError if invalid.

    Features keep their names from the record; see :func:`with_standard_names`.
    """
    from google.protobuf.message import DecodeError

    try:
        message = _example_class().FromString(record)
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example ({error})") from error
    arrays = {}
    for entry in message.features.feature:
        if entry.value.HasField("int64_list"):
            arrays[entry.key] = np.array(entry.value.int64_list.value, np.int64)
        elif entry.value.HasField("float_list"):
            arrays[entry.key] = np.array(entry.value.float_list.value, np.float32)
    return arrays


def with_standard_names(example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the features of a decoded example in ALTERNATIVE_NAMES to their standard names."""
    renamed = {other: name for name, other in ALTERNATIVE_NAMES.items() if name not in example}
    return {renamed.get(name, name): values for name, values in example.items()}


def _first_bad_value(feature: Feature, values: np.ndarray, bound: float) -> tuple[int, str] | None:
    """Like :meth:`RecordSpec.out_of_range`, for one feature."""
    size = np.abs(values) if feature.below == REAL else values
    bad = ~((size >= 0) & (size < bound))  # NaN fails both
    if not bad.any():
        return None
    place = tuple(np.argwhere(bad)[0].tolist())
    allowed = _RANGES[feature.below].format(last=bound - 1)
    return place[0], f"its {feature.name} contains {values[place]}, but {allowed}"


# Wire format. Field numbers of tensorflow/core/example/{example,feature}.proto:
#   Example.features = 1, Features.feature = 1 (a map: key = 1, value = 2),
#   Feature.float_list = 2, Feature.int64_list = 3, FloatList.value = Int64List.value = 1 (packed).
# A length-delimited field of number n has the tag byte n * 8 + 2.


def _encode_feature(feature: Feature, values: np.ndarray) -> np.ndarray | list[list[bytes]]:
    """Encodes a feature's map entries, one for each row of ``values`` [N, L].

    Returns uint8 [N, size] if all have the same size, else a column of headers and one of values.
    """
    if values.ndim != 2:
        raise ValueError(f"feature {feature.name} must have shape [N, L], not {values.shape}")
    rows: np.ndarray | list[bytes]
    if feature.dtype == "float32":
        rows = values.astype("<f4").view(np.uint8).reshape(len(values), -1)
    else:
        rows = _varint_rows(values)
    if isinstance(rows, list):
        return [[_entry_header(feature, len(row)) for row in rows], rows]
    header = np.frombuffer(_entry_header(feature, rows.shape[1]), np.uint8)
    return np.concatenate([np.broadcast_to(header, (len(rows), len(header))), rows], axis=1)


@functools.lru_cache(maxsize=8192)
def _entry_header(feature: Feature, num_bytes: int) -> bytes:
    """The bytes of a map entry that precede its ``num_bytes`` bytes of values."""
    tag = b"\x12" if feature.dtype == "float32" else b"\x1a"
    values = b"\x0a" + _varint(num_bytes)
    number_list = tag + _varint(len(values) + num_bytes) + values
    name = _length_delimited(b"\x0a", feature.name.encode("ascii"))
    entry = name + b"\x12" + _varint(len(number_list) + num_bytes) + number_list
    return b"\x0a" + _varint(len(entry) + num_bytes) + entry


def _joined(parts: Sequence[np.ndarray]) -> list[list[bytes]]:
    """Joins uint8 arrays [N, ...] row by row into one column of bytes; empty without parts."""
    return [_split_rows(np.concatenate(parts, axis=1))] if parts else []


def _split_rows(values: np.ndarray) -> list[bytes]:
    """The bytes of each row of a uint8 array [N, L]."""
    data = values.tobytes()
    size = values.shape[1]
    return [data[start : start + size] for start in range(0, size * len(values), size)]


def _varint_rows(values: np.ndarray) -> np.ndarray | list[bytes]:
    """Encodes each row of an integer array [N, L] as base-128 variable-length integers.

    Returns uint8 [N, L] if every value takes one byte.
    """
    words: np.ndarray = values.astype(np.int64).view(np.uint64)
    groups = max(1, -(-int(words.max(initial=0)).bit_length() // 7))
    if groups == 1:
        return words.astype(np.uint8)
    if groups <= 4:
        words = words.astype(np.uint32)
    used = np.empty((*words.shape, groups), bool)
    encoded = np.empty(used.shape, np.uint8)
    for group in range(groups):
        more = words >= 0x80
        used[..., group] = (words > 0) if group else True
        encoded[..., group] = (words & 0x7F) | (more.view(np.uint8) << 7)
        words = words >> 7
    ends = np.cumsum(used.sum(axis=(1, 2)))
    # Twice as fast as encoded[used].
    data = np.compress(used.ravel(), encoded.ravel()).tobytes()
    return [data[start:end] for start, end in zip([0, *ends[:-1].tolist()], ends.tolist())]


@functools.lru_cache(maxsize=1024)
def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _length_delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


@functools.cache
def _example_class() -> Any:
    """The Example message class, built in a private descriptor pool.

    A map is written like a repeated entry, and a oneof like optional fields.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_tf/example.proto", package="bert_tf", syntax="proto3"
    )

    def message(name: str, *fields: tuple[str, int | str, int]) -> None:
        """Adds a message whose fields, numbered from 1, are (name, type, label)."""
        made = file.message_type.add(name=name)
        for number, (field_name, kind, label) in enumerate(fields, start=1):
            added = made.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = field.TYPE_MESSAGE, f".bert_tf.{kind}"
            else:
                added.type = kind

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("BytesList", ("value", field.TYPE_BYTES, many))
    message("FloatList", ("value", field.TYPE_FLOAT, many))
    message("Int64List", ("value", field.TYPE_INT64, many))
    lists = ("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")
    message("Feature", *((name, kind, one) for name, kind in lists))
    message("Entry", ("key", field.TYPE_STRING, one), ("value", "Feature", one))
    message("Features", ("feature", "Entry", many))
    message("Example", ("features", "Features", one))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bert_tf.Example"))
