"""Pre-training records as rows of JSON or of Parquet, to arrays: one feature a column.

A feature is a list of numbers, or a number where it has just one. Two features may have the names
that TensorFlow 2's scripts give them.

Symbols: N records, L values in a feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.records.layouts import (
    ALTERNATIVE_NAMES,
    ONE,
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SEGMENTS,
    SEQUENCE,
    VOCABULARY,
    WORD_STARTS,
    Feature,
    RecordSpec,
)
from bert_tf.util.errors import UserError

Examples = dict[str, np.ndarray]

_NUM_SEGMENTS = 2
_ANY_VOCABULARY = 2**31


class Layout(NamedTuple):
    """Which features records have, and how many values each."""

    spec: RecordSpec
    lengths: Mapping[str, int]

    @property
    def has_masks(self) -> bool:
        """Whether masks are stored."""
        return self.spec == PRETRAINING_MASKED


def spec_of(names: Iterable[str], where: str) -> RecordSpec:
    """The layout that has these features; raises UserError, naming ``where``, if there is none."""
    standard = {other: name for name, other in ALTERNATIVE_NAMES.items()}
    found = {standard.get(name, name) for name in names}
    is_unmasked = WORD_STARTS in found and "masked_lm_ids" not in found
    spec = PRETRAINING_UNMASKED if is_unmasked else PRETRAINING_MASKED
    lacking = [feature.name for feature in spec.features if feature.name not in found]
    if lacking:
        raise UserError(
            f"--input_file: {where} does not hold pre-training records: it has no {lacking[0]}; "
            "give records with the features of google-research/bert."
        )
    return spec


def layout_of_row(row: Mapping[str, Any], where: str) -> Layout:
    """The layout of a row of lists and numbers."""
    spec = spec_of(row, where)
    lengths: dict[str, int] = {ONE: 1}
    for feature in spec.features:
        lengths.setdefault(feature.length_key, len(_as_list(_value(row, feature))))
    return Layout(spec, lengths)


def examples_from_rows(
    rows: Sequence[Mapping[str, Any]], layout: Layout, name_of: Callable[[int], str]
) -> Examples:
    """Arrays [N, L] of rows; ``name_of`` names row i in the UserError for one that does not fit."""
    examples = {}
    for feature in layout.spec.features:
        length = layout.lengths[feature.length_key]
        columns = []
        for number, row in enumerate(rows):
            values = _as_list(_value(row, feature, name_of(number)))
            if len(values) != length:
                raise UserError(
                    f"--input_file: {name_of(number)} has {len(values)} values of {feature.name}, "
                    f"but the first record {length}; give records of one kind."
                )
            columns.append(values)
        examples[feature.name] = _numbers(columns, feature, name_of)
    return examples


def examples_from_batch(batch: Any, layout: Layout, name_of: Callable[[int], str]) -> Examples:
    """Arrays [N, L] of a record batch of Arrow."""
    examples = {}
    for feature in layout.spec.features:
        name = feature.name
        if name not in batch.schema.names:
            name = ALTERNATIVE_NAMES.get(name, name)
        column = batch.column(batch.schema.names.index(name))
        length = layout.lengths[feature.length_key]
        values = column
        if hasattr(column.type, "value_type"):
            import pyarrow.compute

            lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != length)  # NaN for null
            if len(wrong):
                raise UserError(
                    f"--input_file: {name_of(int(wrong[0]))} does not have {length} values "
                    f"of {feature.name}, as the first record does; give records of one kind."
                )
            values = column.flatten()
        if values.null_count:
            raise UserError(f"--input_file: {name_of(0)} or one after it has no {feature.name}.")
        array = values.to_numpy(zero_copy_only=False).reshape(len(column), length)
        examples[feature.name] = _numbers(array, feature, name_of)
    return examples


def require_valid(
    examples: Examples, layout: Layout, vocab_size: int | None, name_of: Callable[[int], str]
) -> None:
    """Raises UserError for the first record with a value that cannot be."""
    sizes = {
        SEQUENCE: layout.lengths[SEQUENCE],
        VOCABULARY: vocab_size or _ANY_VOCABULARY,
        SEGMENTS: _NUM_SEGMENTS,
    }
    problem = layout.spec.out_of_range(examples, sizes)
    if problem is not None:
        row, what = problem
        raise UserError(f"--input_file: {name_of(row)} cannot be used: {what}.")


def _value(row: Mapping[str, Any], feature: Feature, where: str = "") -> Any:
    for name in (feature.name, ALTERNATIVE_NAMES.get(feature.name, feature.name)):
        if name in row:
            return row[name]
    raise UserError(f"--input_file: {where} has no {feature.name}; give records of one kind.")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _numbers(values: Any, feature: Feature, name_of: Callable[[int], str]) -> np.ndarray:
    """An array of the feature's type; UserError if a value is not a number, or not whole."""
    kinds = "iu" if feature.dtype == "int64" else "iuf"
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # lists in lists
        array = np.empty(0, object)
    if array.dtype.kind not in kinds:
        number = next((n for n, row in enumerate(values) if _kind(row) not in kinds), 0)
        raise UserError(
            f"--input_file: {name_of(number)} has a {feature.name} that is not "
            f"{'whole' if feature.dtype == 'int64' else 'numeric'}; correct it."
        )
    return array.astype(feature.dtype)


def _kind(row: Any) -> str:
    try:
        return np.asarray(row).dtype.kind
    except (ValueError, OverflowError):
        return "O"
