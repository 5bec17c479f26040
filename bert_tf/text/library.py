"""Tokenizers that Hugging Face's tokenizers library runs, by the rules of a ``tokenizer.json``.

Normalizer, splitter into words, model and decoder are the library's, and so are ids and offsets.
As in transformers, an added entry in a text is found before anything else: the name of a special
token, such as [MASK], means that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bert_tf.text.tokenizer import LIBRARY, Encoding, SpecialIds, Tokenizer
from bert_tf.text.tokenizer_rules import SPELLINGS, Document, special_names
from bert_tf.text.vocabulary import ADVICE, HALF_A_PAIR
from bert_tf.util.errors import UserError, first_line

_BYTE_LEVEL_SPACE = "Ġ"


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library."""

    kind = LIBRARY

    def __init__(
        self,
        library: Any,
        *,
        special: SpecialIds,
        lower_case: bool,
        vocab_digest: str,
        rules: dict[str, Any],
    ):
        ids = library.get_vocab(with_added_tokens=True)
        by_id = {index: entry for entry, index in ids.items()}
        entries = [by_id.get(index, "") for index in range(max(by_id) + 1)]
        super().__init__(entries, special=special, lower_case=lower_case, vocab_digest=vocab_digest)
        self._library = library
        added = {token["content"] for token in rules["added_tokens"]}
        self._begins, self._ends = _word_borders(entries, added, rules)

    @classmethod
    def from_document(cls, document: Document, *, source: Path) -> LibraryTokenizer:
        """Opens the content of a tokenizer.json.

        Raises UserError if the library cannot read it, or a special token is missing.
        """
        try:
            library = tokenizers.Tokenizer.from_buffer(document.content)
            library.encode("a")  # a model without an entry for unknown words fails here
        except Exception as error:  # the library raises nothing more specific
            raise UserError(
                f"vocabulary {source} is malformed; restore it, or install the version of the "
                f"tokenizers library that wrote it ({tokenizers.__version__}: {first_line(error)})."
            ) from error
        ids = library.get_vocab(with_added_tokens=True)
        names = special_names(ids, {})
        missing = [" or ".join(found) for role, found in SPELLINGS.items() if role not in names]
        if max(ids.values()) >= 2 * len(ids):
            raise UserError(
                f"vocabulary {source}: the ids of {len(ids)} entries are not 0 to {len(ids) - 1}; "
                f"{ADVICE}."
            )
        if missing:
            raise UserError(
                f"vocabulary {source} has no {', no '.join(missing)}, which BERT's sequences need; "
                "give the vocabulary of a BERT model."
            )
        return cls(
            library,
            special=SpecialIds(**{role: ids[name] for role, name in names.items()}),
            lower_case=document.lower_case,
            vocab_digest=document.digest,
            rules=document.values,
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""
        return self._encode(text).ids

    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents."""
        found = self._encode(text)
        starts, ends = zip(*found.offsets) if found.ids else ((), ())
        return Encoding(found.ids, [*starts], [*ends])

    def _encode(self, text: str) -> Any:
        return self._library.encode(HALF_A_PAIR.sub("\ufffd", text), add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, by the rules' decoder; special tokens appear by name."""
        return self._library.decode(list(ids), skip_special_tokens=False)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each entry that is marked as the rest of a word, or follows an unended one."""
        begins, ends, starts = self._begins, self._ends, []
        is_open = False
        for index in ids:
            starts.append(begins[index] and not is_open)
            is_open = not ends[index]
        return starts


def _word_borders(
    entries: Sequence[str], added: set[str], rules: dict[str, Any]
) -> tuple[list[bool], list[bool]]:
    """Whether each entry can begin a word, and whether it can end one, by the model's marks."""
    model = rules["model"]
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
    mark = None if prefix or suffix else _mark_of_beginning(rules["pre_tokenizer"] or {})
    begins, ends = [], []
    for entry in entries:
        continues = bool(prefix) and entry.startswith(prefix)
        begins.append(entry in added or not (continues or (mark and not entry.startswith(mark))))
        ends.append(entry in added or not suffix or entry.endswith(suffix))
    return begins, ends


def _mark_of_beginning(pre_tokenizer: dict[str, Any]) -> str | None:
    """What stands for the blank before a word in its first entry; None if nothing does."""
    kind = pre_tokenizer.get("type")
    if kind == "Metaspace":
        return pre_tokenizer.get("replacement", "\u2581")
    if kind == "ByteLevel":
        return _BYTE_LEVEL_SPACE
    parts = pre_tokenizer.get("pretokenizers", [])
    return next(filter(None, map(_mark_of_beginning, parts)), None)
