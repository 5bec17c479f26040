"""Statistics of records, computed in batches and added up.

Symbols: N records, S positions, P predictions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bert_tf.records.info import original_ids, text_positions
from bert_tf.records.layouts import LABEL_IDS, WORD_STARTS
from data_prep.inspection.hash_sample import as_hashes, hash_of

# Labels of which a record has one, and all labels, including those of words.
LABELS = ("next_sentence_labels", "is_impossible", "labels")
ALL_LABELS = (*LABELS, LABEL_IDS)

_COUNTED_IDS = 1 << 20  # higher ids count as one; files without a manifest may have any


@dataclasses.dataclass(frozen=True)
class Conventions:
    """What the ids in some records mean, as far as this is known.

    Attributes:
      special_ids: ids of "pad", "unk", "cls", "sep" and "mask".
      continues: bool [vocabulary size], whether an id continues the preceding word.
      masked_lm_prob: fraction of the tokens that should be masked; None if unknown.
    """

    special_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    continues: np.ndarray | None = None
    masked_lm_prob: float | None = None


@dataclasses.dataclass
class Statistics:
    """Counts over records, additive over sets of records.

    Attributes:
      records: N.
      positions, tokens: all positions, and those that are not padding.
      text_tokens: tokens other than [CLS], [SEP] and [PAD].
      empty: records without text tokens.
      lengths: int64, number of records by number of tokens.
      ids: int64, number of tokens by id, before masking.
      predictions: int64, number of records by number of predictions; empty if none are stored.
      wanted: expected number of predictions.
      replaced: number of predictions by replacement: "mask", "random" or "kept".
      repeated, on_special: predictions at an already predicted position, and of a special token
        or padding.
      squared_runs: the squares of the lengths of runs of adjacent predictions, added up.
      split_words: pairs of adjacent pieces of a word of which only one is predicted.
      labels: number of records by label value.
      answers_outside: answers that do not end after their start, within the tokens.
      hashes: uint64, of the tokens of each record, before masking.
    """

    records: int = 0
    positions: int = 0
    tokens: int = 0
    text_tokens: int = 0
    empty: int = 0
    lengths: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    ids: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    predictions: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    wanted: int = 0
    replaced: Counter[str] = dataclasses.field(default_factory=Counter)
    repeated: int = 0
    on_special: int = 0
    squared_runs: int = 0
    split_words: int = 0
    labels: Counter[float] = dataclasses.field(default_factory=Counter)
    answers_outside: int = 0
    hashes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))

    def add(self, other: Statistics) -> None:
        """Adds the counts of other records, but not their hashes."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "hashes":
                continue
            is_array = isinstance(mine, np.ndarray)
            setattr(self, field.name, _sum(mine, theirs) if is_array else mine + theirs)

    @property
    def num_predictions(self) -> int:
        """The number of all predictions."""
        return int(np.arange(len(self.predictions)) @ self.predictions)

    @property
    def padding_share(self) -> float:
        """The fraction of positions that are padding."""
        return 1 - self.tokens / self.positions if self.positions else 0.0

    def share_of(self, token_id: int | None) -> float:
        """The fraction of the text tokens that have an id."""
        is_counted = token_id is not None and token_id < len(self.ids) and self.text_tokens
        return int(self.ids[token_id]) / self.text_tokens if is_counted else 0.0


def count_records(batch: Mapping[str, np.ndarray], conventions: Conventions) -> Statistics:
    """Computes the statistics of valid records of one layout, features [N, L] by name."""
    ids, used = original_ids(batch), batch["input_mask"] != 0
    length = used.sum(axis=1)
    is_text = text_positions(ids, batch["input_mask"], conventions.special_ids)
    found = Statistics(
        records=len(ids),
        positions=ids.size,
        tokens=int(length.sum()),
        text_tokens=int(is_text.sum()),
        empty=int((~is_text.any(axis=1)).sum()),
        lengths=np.bincount(length, minlength=ids.shape[1] + 1),
        ids=np.bincount(np.minimum(ids[used], _COUNTED_IDS)),
        hashes=as_hashes(hash_of(row.tobytes()) for row in np.where(used, ids, -1)),
    )
    if "masked_lm_ids" in batch:
        _count_predictions(found, batch, ids, is_text, conventions)
    _count_labels(found, batch, length)
    return found


def _count_predictions(
    found: Statistics,
    batch: Mapping[str, np.ndarray],
    ids: np.ndarray,
    is_text: np.ndarray,
    conventions: Conventions,
) -> None:
    is_used = batch["masked_lm_weights"] != 0
    number = is_used.sum(axis=1)
    rows, places = np.nonzero(is_used)
    positions, labels = (
        batch[name][rows, places] for name in ("masked_lm_positions", "masked_lm_ids")
    )
    found.predictions = np.bincount(number, minlength=is_used.shape[1] + 1)
    if conventions.masked_lm_prob is not None:
        # The rule of google-research/bert; limited by the number of tokens to choose from.
        share = conventions.masked_lm_prob * batch["input_mask"].sum(axis=1)
        wanted = np.clip(np.round(share).astype(np.int64), 1, is_used.shape[1])
        found.wanted = int(np.minimum(wanted, is_text.sum(axis=1)).sum())
    shown = batch["input_ids"][rows, positions]
    is_mask = shown == conventions.special_ids.get("mask", -1)
    is_kept = ~is_mask & (shown == labels)
    found.replaced = Counter(
        mask=int(is_mask.sum()), kept=int(is_kept.sum()), random=int((~is_mask & ~is_kept).sum())
    )
    # The mask of another token may hide [CLS].
    found.on_special = int((~is_text[rows, positions] | (positions == 0)).sum())
    times = np.zeros(ids.shape, np.int64)
    np.add.at(times, (rows, positions), 1)
    found.repeated = int(np.maximum(times - 1, 0).sum())
    borders = np.diff(np.pad(times > 0, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    lengths = np.nonzero(borders < 0)[1] - np.nonzero(borders > 0)[1]
    found.squared_runs = int((lengths**2).sum())
    if conventions.continues is not None:
        continues = _continues_a_word(ids, is_text, conventions.continues)
        differs = (times[:, 1:] > 0) != (times[:, :-1] > 0)
        found.split_words = int((differs & continues[:, 1:]).sum())


def _continues_a_word(ids: np.ndarray, is_text: np.ndarray, continuing: np.ndarray) -> np.ndarray:
    """bool [N, S]: pieces that continue a word; a segment's first piece always begins one."""
    known = ids < len(continuing)
    continues = continuing[np.where(known, ids, 0)] & known & is_text
    continues[:, 0] = False
    continues[:, 1:] &= is_text[:, :-1]
    return continues


def _count_labels(found: Statistics, batch: Mapping[str, np.ndarray], length: np.ndarray) -> None:
    for name in LABELS:
        if name in batch:
            found.labels.update(batch[name][:, 0].tolist())
    if LABEL_IDS in batch:
        found.labels.update(batch[LABEL_IDS][batch[WORD_STARTS] != 0].tolist())
    if "start_positions" in batch:
        start, end = batch["start_positions"][:, 0], batch["end_positions"][:, 0]
        found.answers_outside = int(((start > end) | (end >= length)).sum())


def _sum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Adds counts, padding the shorter array with zeros."""
    if len(first) < len(second):
        first, second = second, first
    total = first.copy()
    total[: len(second)] += second
    return total
