"""Reads WordPiece entries from a ``tokenizer.json``, which ``tokenizer_json.py`` writes."""

from __future__ import annotations

from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, read_json_object


def wordpiece_entries(path: PathLike) -> list[str]:
    """The WordPiece entries in a tokenizer.json, by their ids, with those that were added later.

    Raises UserError if it is malformed, or has another kind of vocabulary.
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
        ids.update((token["content"], token["id"]) for token in values.get("added_tokens", ()))
        entries = sorted(ids, key=ids.__getitem__)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"vocabulary {path} is malformed; restore it, or give a vocab.txt."
        ) from None
    if [ids[entry] for entry in entries] != [*range(len(entries))]:
        raise UserError(
            f"vocabulary {path}: the ids of {len(entries)} entries are not 0 to "
            f"{len(entries) - 1}; restore it, or give a vocab.txt."
        )
    return entries
