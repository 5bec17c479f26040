"""What ``tokenizer_config.json`` next to weights says, and what of it this tokenizer lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bert_tf.text.tokenizer_files import TOKENIZER_JSON_NAME, VOCAB_NAME, VOCABULARY_SHA256_KEY
from bert_tf.text.wordpiece_entries import added_tokens
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import read_json_object

# Where transformers lists the entries that were added to a vocabulary, with their ids.
_ADDED_NAME = "added_tokens.json"


def read_tokenizer_config(path: Path) -> tuple[bool | None, str | None, list[str]]:
    """The casing, the vocabulary's hash, and messages about unsupported settings.

    Raises UserError if the file is malformed.
    """
    values = read_json_object(path, what="tokenizer configuration")
    lower_case = values.get("do_lower_case")
    if lower_case is not None and not isinstance(lower_case, bool):
        raise UserError(
            f"tokenizer configuration {path}: do_lower_case must be true or false; restore the "
            "file."
        )
    sha256 = values.get(VOCABULARY_SHA256_KEY)
    if sha256 is not None and not isinstance(sha256, str):
        raise UserError(
            f"tokenizer configuration {path}: {VOCABULARY_SHA256_KEY} must be a string; restore "
            "the file."
        )
    notes = []
    strip = values.get("strip_accents")
    if strip is not None and lower_case is not None and strip != lower_case:
        notes.append(
            f"warning: {path} sets strip_accents to {strip}, but this tokenizer strips accents "
            "exactly when it lower-cases"
        )
    if values.get("tokenize_chinese_chars") is False:
        notes.append(
            f"warning: {path} turns tokenize_chinese_chars off, but this tokenizer always "
            "separates Chinese characters"
        )
    return lower_case, sha256, [*notes, *_added_entries(path.parent)]


def _added_entries(directory: Path) -> Iterator[str]:
    """A message about the entries that transformers keeps apart from the others."""
    vocab_file, added_file = directory / VOCAB_NAME, directory / _ADDED_NAME
    if not vocab_file.is_file():
        yield from _entries_found_first(directory / TOKENIZER_JSON_NAME)
        return
    if not added_file.is_file():
        return
    added = read_json_object(added_file, what="list of added tokens")
    entries = vocab_file.read_bytes().rstrip(b"\n").count(b"\n") + 1
    missing = [name for name, index in added.items() if isinstance(index, int) and index >= entries]
    if missing:
        yield (
            f"warning: {added_file} has entries that {VOCAB_NAME} lacks ({short_repr(missing)}), "
            "so texts with them get other ids than in transformers; append those that are words to "
            f"{VOCAB_NAME}, each as line id + 1"
        )


def _entries_found_first(path: Path) -> Iterator[str]:
    """A message about added entries that are not words, as which this tokenizer finds entries."""
    values = read_json_object(path, what="vocabulary") if path.is_file() else {}
    tokens = added_tokens(values, path)
    names = [token["content"] for token in tokens if not token.get("special")]
    found = [name for name in names if not name.isalnum()]
    if found:
        yield (
            f"warning: {path} has added entries that are not words ({short_repr(found)}), so texts "
            "with them get other ids than in transformers"
        )
