"""Reads and writes BERT's ``vocab.txt``: one entry per line; the line number is the id.

One in a ``tokenizer.json`` is read, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.text.tokenizer import SpecialIds
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, atomic_open, read_json_object

# Our own vocabularies begin with these, in this order; in other files they may be anywhere.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

ADVICE = "restore it, or give a vocab.txt"
HALF_A_PAIR = re.compile("[\ud800-\udfff]")

# Ends of lines for Python's text files, and so for transformers.
_LINE_END = re.compile("\r\n|\r|\n")
_AROUND_SPECIAL = "\ufeff \t"
_SHOWN = 5  # ids in a note


def vocab_content(path: PathLike) -> bytes:
    """The bytes of a vocab.txt, or of the one with the entries of a tokenizer.json.

    No text has an entry with a line's end, so a blank in its place keeps all ids.
    """
    if Path(path).suffix != ".json":
        return Path(path).read_bytes()
    return "".join(f"{_LINE_END.sub(' ', e)}\n" for e in wordpiece_entries(path)).encode()


def read_vocab_file(path: PathLike) -> list[str]:
    """The entries of a vocab.txt or tokenizer.json by id, read as transformers reads them.

    A line without its end is an entry, also a blank or repeated one; blank lines at the end are
    left out. Of a repeated entry, texts get the last id. Only the special tokens are recognised
    with blanks or a byte order mark around them. Raises UserError for bytes that are not UTF-8.
    """
    lines = _lines(path)
    missing = {*SPECIAL_TOKENS}.difference(lines)
    bare = (line.strip(_AROUND_SPECIAL) for line in lines)
    return [name if name in missing else line for name, line in zip(bare, lines)]


def _lines(path: PathLike) -> list[str]:
    try:
        text = vocab_content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary {path} is not UTF-8 text (byte {error.start}); give a vocab.txt."
        ) from error
    # Not str.splitlines: the Chinese vocabulary has U+2028 as an entry.
    return _LINE_END.split(text.rstrip("\r\n"))


def unusual_entries(path: PathLike) -> str:
    """The kinds of entries that are hardly intended, with their ids; "" if there are none."""
    lines = _lines(path)
    ids = {line: index for index, line in enumerate(lines)}
    kinds = {
        "a byte order mark": [0] if lines[0].startswith("\ufeff") else [],
        "blank entries": [n for n, line in enumerate(lines) if not line],
        "entries with white space": [n for n, e in enumerate(lines) if e and e.split() != [e]],
        "entries that are repeated later": [n for n, e in enumerate(lines) if e and ids[e] != n],
    }
    return ", ".join(
        f"{kind} (id {', '.join(map(str, at[:_SHOWN]))}{', ...' if at[_SHOWN:] else ''})"
        for kind, at in kinds.items()
        if at
    )


def write_vocab_file(path: PathLike, entries: Sequence[str]) -> None:
    """Writes entries, one per line, atomically."""
    with atomic_open(path) as file:
        file.writelines(f"{entry}\n" for entry in entries)


def find_special_ids(entries: Sequence[str], *, path: PathLike) -> SpecialIds:
    """The ids of BERT's five special tokens; raises a UserError that names missing ones."""
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise UserError(
            f"vocabulary {path} has no {', '.join(missing)}; "
            "give the vocab.txt of a BERT model or one made by data_prep.vocabulary."
        )
    ids = {entry: index for index, entry in enumerate(entries)}
    return SpecialIds(*(ids[token] for token in SPECIAL_TOKENS))


def is_cased(entries: Sequence[str]) -> bool | None:
    """Whether a vocabulary was made from cased text, judging by its entries.

    Returns: True if an entry has a capital letter, False if there are only lower-case letters, None
      if the script has no case. Entries in brackets, such as [CLS] and <S>, are ignored.
    """
    if capitalized(entries):
        return True
    return False if any(word != word.upper() for word in _words(entries)) else None


def capitalized(entries: Sequence[str]) -> list[str]:
    """The entries with a capital letter, except those in brackets, such as [CLS] and <S>."""
    return [word for word in _words(entries) if word != word.lower()]


def _words(entries: Sequence[str]) -> list[str]:
    return [entry for entry in entries if (entry[:1], entry[-1:]) not in (("[", "]"), ("<", ">"))]


def resolve_casing(given: bool | None, *, vocab_file: PathLike | None) -> bool:
    """Whether to lower-case text where no file of the model states it: as ``given``, if it is.

    ``vocab_file`` has WordPiece entries, which reveal it in most languages; None for SentencePiece.
    Raises UserError if the two contradict each other; scores would be low for no apparent reason.
    """
    cased = is_cased(read_vocab_file(vocab_file)) if vocab_file else None
    if given is None:
        return cased is not True
    if cased is not None and given == cased:
        found = "entries with capitals" if cased else "no entry with a capital"
        raise UserError(
            f"{vocab_file} has {found}, which contradicts --do_lower_case="
            f"{str(given).lower()}; give the other value, or the vocabulary of the model."
        )
    return given


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
        broken = next(filter(HALF_A_PAIR.search, ids), None)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"vocabulary {path} is malformed; {ADVICE}.") from None
    is_counted = all(isinstance(index, int) and index >= 0 for index in by_id)
    if not is_counted or len(by_id) < len(ids) or last >= 2 * len(ids):
        raise UserError(
            f"vocabulary {path}: the ids of {len(ids)} entries are not 0 to {len(ids) - 1}; "
            f"{ADVICE}."
        )
    if broken is not None:
        raise UserError(
            f"vocabulary {path}: the entry {short_repr(broken)} has half of a surrogate pair, "
            f"which is not text; {ADVICE}."
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
                f"its content; {ADVICE}."
            )
    return listed
