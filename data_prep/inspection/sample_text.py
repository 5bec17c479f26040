"""Records as text that shows their masks, labels and padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bert_tf.records.layouts import LABEL_IDS, WORD_STARTS
from bert_tf.records.statistics import LABELS, original_ids
from bert_tf.text.tokenizer import Tokenizer

_CONTINUATION, _SPACE = "##", "\N{LOWER ONE EIGHTH BLOCK}"  # of WordPiece, and SentencePiece


def show_record(example: Mapping[str, np.ndarray], tokenizer: Tokenizer | None) -> str:
    """A decoded record as one line.

    A masked token is ``[MASK->word]``, one that is replaced by another ``[other->word]``, and one
    that is predicted but stands there itself ``[word->word]``. The label of a word follows it after
    a slash, and labels of the whole record come first. Without a tokenizer ids stand for tokens.
    """
    ids = example["input_ids"]
    before = original_ids({name: values[np.newaxis] for name, values in example.items()})[0]
    used = int(example["input_mask"].sum())
    predicted = _predicted(example)
    words = _word_labels(example)
    parts = []
    for place in range(used):
        gap, text = _token(int(before[place]), tokenizer)
        if place in predicted:
            _, shown = _token(int(ids[place]), tokenizer)
            text = f"[{shown}->{text}]"
        parts.append(f"{gap}{text}{words.get(place, '')}")
    padding = f" (and {len(ids) - used} positions of padding)" if used < len(ids) else ""
    return f"{_labels(example, before, tokenizer)}{''.join(parts).strip()}{padding}"


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
