"""Records as text that shows their masks, labels and padding."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from html import escape
from typing import NamedTuple

import numpy as np

from bert_tf.records.info import original_ids
from bert_tf.records.layouts import LABEL_IDS, WORD_STARTS
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.util.page import mark
from data_prep.inspection.record_statistics import LABELS

_CONTINUATION, _SPACE = "##", "\N{LOWER ONE EIGHTH BLOCK}"  # of WordPiece, and SentencePiece


LEGEND = (
    "In the samples:",
    mark("a word that [MASK] hides", "hidden"),
    '<mark class="replaced">a word<s>another</s></mark> that another one stands for',
    f"{mark('a word', 'kept')} that is predicted and stands there itself",
    '<span class="segment">the second segment</span>',
)


class ShownToken(NamedTuple):
    """A token of a record.

    Attributes:
      gap: the blank before it, if there is one.
      text: it, before a mask replaced it.
      replacement: what stands in its place where it is predicted, else None.
      kind: "hidden", "replaced" or "kept" where it is predicted, else "".
      in_second_segment: whether it is.
      label: that of a word which begins here, after a slash.
    """

    gap: str
    text: str
    replacement: str | None
    kind: str
    in_second_segment: bool
    label: str


class ShownRecord(NamedTuple):
    """A decoded record: its labels, its tokens, and the number of positions that are padding."""

    labels: str
    tokens: tuple[ShownToken, ...]
    padding: int

    def line(self) -> str:
        """The record for a terminal.

        A masked token is ``[MASK->word]``, one that is replaced by another ``[other->word]``, and
        one that is predicted but stands there itself ``[word->word]``. The label of a word follows
        it after a slash, and labels of the whole record come first.
        """
        parts = (
            f"{t.gap}{t.text if t.replacement is None else f'[{t.replacement}->{t.text}]'}{t.label}"
            for t in self.tokens
        )
        return f"{self.labels}{''.join(parts).strip()}{self._rest()}"

    def html(self) -> str:
        """The record for a page, with colours that :data:`LEGEND` explains."""
        parts = []
        for is_second, tokens in itertools.groupby(self.tokens, lambda t: t.in_second_segment):
            text = "".join(map(_token_html, tokens))
            parts.append(f'<span class="segment">{text}</span>' if is_second else text)
        return f"{escape(self.labels)}{''.join(parts).strip()}{self._rest()}"

    def _rest(self) -> str:
        return f" (and {self.padding} positions of padding)" if self.padding else ""


def _token_html(token: ShownToken) -> str:
    text = escape(token.text)
    if token.kind == "replaced":
        text += f"<s>{escape(token.replacement or '')}</s>"
    if token.kind:
        text = f'<mark class="{token.kind}">{text}</mark>'
    return f"{token.gap}{text}{escape(token.label)}"


def show_record(example: Mapping[str, np.ndarray], tokenizer: Tokenizer | None) -> ShownRecord:
    """A decoded record as text; without a tokenizer ids stand for tokens."""
    ids = example["input_ids"]
    before = original_ids({name: values[np.newaxis] for name, values in example.items()})[0]
    used = int(example["input_mask"].sum())
    predicted = _predicted(example)
    words = _word_labels(example)
    segments = example.get("segment_ids", np.zeros_like(ids))
    tokens = []
    for place in range(used):
        gap, text = _token(int(before[place]), tokenizer)
        replacement, kind = None, ""
        if place in predicted:
            _, replacement = _token(int(ids[place]), tokenizer)
            kind = "kept" if ids[place] == before[place] else "replaced"
            if tokenizer is not None and ids[place] == tokenizer.mask_id:
                kind = "hidden"
        is_second = bool(segments[place])
        tokens.append(ShownToken(gap, text, replacement, kind, is_second, words.get(place, "")))
    return ShownRecord(_labels(example, before, tokenizer), tuple(tokens), len(ids) - used)


def _predicted(example: Mapping[str, np.ndarray]) -> set[int]:
    if "masked_lm_ids" not in example:
        return set()
    return set(example["masked_lm_positions"][example["masked_lm_weights"] != 0].tolist())


def _word_labels(example: Mapping[str, np.ndarray]) -> dict[int, str]:
    """The labels of words, after a slash, by the position where the word begins."""
    if LABEL_IDS not in example:
        return {}
    starts = np.flatnonzero(example[WORD_STARTS]).tolist()
    return {place: f"/{example[LABEL_IDS][place]}" for place in starts}


def _labels(example: Mapping[str, np.ndarray], ids: np.ndarray, tokenizer: Tokenizer | None) -> str:
    shown = [f"{name} {example[name][0]:g}" for name in LABELS if name in example]
    if "start_positions" in example and example["start_positions"][0]:
        first, last = int(example["start_positions"][0]), int(example["end_positions"][0])
        pieces = (_token(int(token), tokenizer) for token in ids[first : last + 1])
        answer = "".join(f"{gap}{text}" for gap, text in pieces).strip()
        shown.append(f"answer {answer!r}")
    return f"({', '.join(shown)}) " if shown else ""


def _token(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The blank before a token, if there is one, and its text."""
    if tokenizer is None or not 0 <= token_id < tokenizer.vocab_size:
        return " ", str(token_id)
    [token], [starts] = (
        tokenizer.convert_ids_to_tokens([token_id]),
        tokenizer.word_starts([token_id]),
    )
    bare = token.lstrip(_SPACE) if starts else token.removeprefix(_CONTINUATION)
    return " " * starts, bare
