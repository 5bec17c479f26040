"""JSON files with a digest of their own content, for data that determines weights or scores.

A later run reads these files back and trusts them. Without a digest, a number with a flipped bit
looks like any other number. Formats that other programs read are left as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bert_tf.util.digest import digest_of_json
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, finite_or_null, read_json_object, write_json

SEAL = "content_sha256"


def write_sealed_json(path: PathLike, content: Mapping[str, Any], *, durable: bool = False) -> None:
    """Writes an object like :func:`bert_tf.util.files.write_json`, adding its SHA-256."""
    write_json(path, sealed(content), durable=durable)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it would be read back from JSON, with its digest."""
    value = json.loads(json.dumps(finite_or_null(content)))
    return {**value, SEAL: digest_of_json(value)}


def read_sealed_json(path: PathLike, *, what: str, advice: str) -> dict[str, Any]:
    """Reads an object written by :func:`write_sealed_json`.

    Args:
      path: the file.
      what: names its kind in messages.
      advice: what to do about a damaged file.

    Raises:
      UserError: the file is missing, is not a JSON object or does not match its digest.
    """
    try:
        content = read_json_object(path, what=what)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; {advice}.") from error
    if SEAL not in content:
        raise UserError(f"{what}: {path} has no {SEAL}; {advice}.")
    return unsealed(content, path=path, what=what, advice=advice)


def unsealed(
    content: Mapping[str, Any], *, path: PathLike, what: str, advice: str
) -> dict[str, Any]:
    """Removes an object's digest if it has one; raises UserError if they do not match."""
    rest = dict(content)
    if SEAL in rest:
        is_intact = rest.pop(SEAL) == digest_of_json(rest)
    else:  # an earlier version's file, unless the digest's name itself is damaged
        is_intact = not content or rest.popitem()[1] != digest_of_json(rest)
        rest = dict(content)
    if not is_intact:
        raise UserError(
            f"{what}: {path} does not match its {SEAL}, so it was damaged or edited; {advice}."
        )
    return rest
