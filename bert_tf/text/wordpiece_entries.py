"""Reads WordPiece entries from a ``tokenizer.json``, which ``tokenizer_json.py`` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json_object

_ADVICE = "restore it, or give a vocab.txt"
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def wordpiece_entries(path: PathLike) -> list[str]:
    """The WordPiece entries in a tokenizer.json, by their ids, with those that were added later.

    An id without an entry, which transformers leaves where a vocab.txt repeats one, has "". Raises
    UserError if the file is malformed, or has another kind of vocabulary.
    """
    values = read_json_object(path, what="vocabulary")
    try:
        model = values["model"]
        kind, prefix = model.get("type", "WordPiece"), model.get("continuing_subword_prefix")
        if (kind, prefix) != ("WordPiece", "##"):
            raise UserError(
                f"vocabulary {path} is of the kind {kind}, not of WordPiece entries such as ##s; "
                "give the model's vocab.txt or spm.model."
            )
        ids = dict(model["vocab"])
        ids.update((token["content"], token["id"]) for token in added_tokens(values, path))
        by_id = {index: entry for entry, index in ids.items()}
        last = max(by_id)
        broken = next(filter(_HALF_A_PAIR.search, ids), None)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"vocabulary {path} is malformed; {_ADVICE}.") from None
    is_counted = all(isinstance(index, int) and index >= 0 for index in by_id)
    if not is_counted or len(by_id) < len(ids) or last >= 2 * len(ids):
        raise UserError(
            f"vocabulary {path}: the ids of {len(ids)} entries are not 0 to {len(ids) - 1}; "
            f"{_ADVICE}."
        )
    if broken is not None:
        raise UserError(
            f"vocabulary {path}: the entry {short_repr(broken)} has half of a surrogate pair, "
            f"which is not text; {_ADVICE}."
        )
    return [by_id.get(index, "") for index in range(last + 1)]


def added_tokens(values: Mapping[str, Any], path: PathLike) -> list[dict[str, Any]]:
    """The entries that a tokenizer.json adds to its vocabulary; UserError if they are malformed."""
    added = values.get("added_tokens") or []
    listed = added if isinstance(added, list) else [added]
    for token in listed:
        if not (isinstance(token, dict) and isinstance(token.get("content"), str)):
            raise UserError(
                f"vocabulary {path}: its added_tokens have {short_repr(token)}, not an entry with "
                f"its content; {_ADVICE}."
            )
    return listed
