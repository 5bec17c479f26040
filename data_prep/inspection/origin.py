"""How records were made: from their manifest and vocabulary or, without these, from themselves."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import MANIFEST_NAME, SPECIAL_NAMES, Manifest, describe_vocabulary
from bert_tf.records.info import original_ids
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError
from data_prep.inspection.judgement import Making
from data_prep.inspection.record_statistics import Conventions


@dataclasses.dataclass(frozen=True)
class Origin:
    """How the records of a directory were made, as far as it is known.

    Attributes:
      making: their parameters.
      conventions: what their ids mean.
      tokenizer: their vocabulary.
      notes: sentences on what was assumed.
    """

    making: Making
    conventions: Conventions
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]


def find_origin(
    directory: Path,
    manifest: Manifest | None,
    given: TokenizerFiles,
    some_records: Sequence[Mapping[str, np.ndarray]],
) -> Origin:
    """The origin of the records of a directory.

    Args:
      directory: where they are.
      manifest: describes them; None without one.
      given: the vocabulary that the user gave, if any; the copy stored with the records otherwise.
      some_records: to look for special tokens where nothing names them.

    Raises UserError for a vocabulary that is not that of the manifest.
    """
    tokenizer = _tokenizer(directory, manifest, given)
    parameters = manifest.parameters if manifest else {}
    special_ids, notes = {}, []
    if tokenizer is not None:
        special_ids = dict(describe_vocabulary(tokenizer).special_ids)
    elif manifest is not None and manifest.vocabulary is not None:
        special_ids = dict(manifest.vocabulary.special_ids)
    if not special_ids.keys() >= set(SPECIAL_NAMES):
        special_ids = {**_likely_special_ids(some_records), **special_ids}
        shown = ", ".join(f"{name} {number}" for name, number in special_ids.items())
        notes.append(
            f"no vocabulary is stored with the records; their special ids seem to be {shown}; "
            "give --vocab_file for more"
        )
    return Origin(
        _making(parameters, tokenizer, manifest),
        Conventions(
            special_ids,
            None if tokenizer is None else _continues(tokenizer),
            parameters.get("masked_lm_prob"),
        ),
        tokenizer,
        tuple(notes),
    )


def _making(
    parameters: Mapping[str, Any], tokenizer: Tokenizer | None, manifest: Manifest | None
) -> Making:
    size = None
    if tokenizer is not None:
        size = tokenizer.vocab_size
    elif manifest is not None and manifest.vocabulary is not None:
        size = manifest.vocabulary.size
    return Making(
        next_sentence=parameters.get("nsp"),
        masks=MaskingOptions.from_parameters(parameters),
        passes=parameters.get("dupe_factor"),
        vocab_size=size,
    )


def _tokenizer(
    directory: Path, manifest: Manifest | None, given: TokenizerFiles
) -> Tokenizer | None:
    entry = manifest.vocabulary if manifest else None
    if given.file is not None:
        if entry is not None and entry.digest not in given.required_vocabulary().spellings:
            raise UserError(
                f"{given.file} is not the vocabulary that {directory / MANIFEST_NAME} names; give "
                "that one, or none."
            )
        return given.load()
    if entry is None:
        return None
    copy = directory / entry.file_name
    if not copy.is_file() or digest_of_file(copy) != entry.digest:
        return None
    return entry.tokenizer_files(copy).load()


def _continues(tokenizer: Tokenizer) -> np.ndarray:
    return ~np.array(tokenizer.word_starts(range(tokenizer.vocab_size)))


def _likely_special_ids(records: Sequence[Mapping[str, np.ndarray]]) -> dict[str, int]:
    """[CLS] begins records, [SEP] ends them, [PAD] follows, and [MASK] replaces most tokens."""
    found: dict[str, Counter[int]] = {name: Counter() for name in ("cls", "sep", "pad", "mask")}
    for example in records:
        ids, used = example["input_ids"], int(example["input_mask"].sum())
        if not used:
            continue
        before = original_ids({name: values[np.newaxis] for name, values in example.items()})[0]
        found["cls"][int(before[0])] += 1
        found["sep"][int(before[used - 1])] += 1
        found["pad"].update(ids[used:].tolist())
        found["mask"].update(ids[ids != before].tolist())
    return {name: ids.most_common(1)[0][0] for name, ids in found.items() if ids}
