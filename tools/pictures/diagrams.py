"""Diagrams: the flow of data, of an update, of a batch over ranks, and masks in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.masking import MaskedBatch, MaskingSettings, example_keys, mask_batch
from tools.pictures.svg import Drawing, Point


def data_flow() -> Drawing:
    """From raw text to checkpoints, with the command of each stage."""
    drawing = Drawing(
        860, 230, "Text becomes sentences, shards, a vocabulary and records, then checkpoints"
    )
    for left, top, width, lines in (
        (10, 30, 100, ["raw text"]),
        (160, 30, 110, ["sentences"]),
        (320, 30, 120, ["text shards", "train / heldout"]),
        (320, 150, 120, ["vocabulary"]),
        (500, 30, 140, ["TFRecords", "train / heldout"]),
        (700, 30, 150, ["checkpoints", "run.json, log.jsonl"]),
        (700, 150, 150, ["evaluation", "eval_results.json, best/"]),
    ):
        drawing.box((left, top), (width, 50), lines, "blue")
    for points in (
        [(110, 55), (158, 55)],
        [(270, 55), (318, 55)],
        [(380, 80), (380, 148)],
        [(440, 55), (498, 55)],
        [(440, 175), (570, 175), (570, 82)],
        [(640, 55), (698, 55)],
        [(775, 80), (775, 148)],
    ):
        drawing.arrow(points)
    for middle, base, command in (
        (215, 20, "data_prep.sentences"),
        (380, 20, "data_prep.shards"),
        (380, 218, "data_prep.vocabulary"),
        (570, 20, "data_prep.create_pretraining_data"),
        (790, 20, "run_pretraining.py"),
    ):
        drawing.text((middle, base), command, "soft", size=11)
    return drawing


_BOX = (138, 62)
_PITCH = 174
_LEFT = 22
_PER_MICRO_BATCH = (
    (["micro batch", "token ids, masks"], "plain"),
    (["forward pass", "matrix products in half,", "all else float32"], "orange"),
    (["loss", "float32; with float16", "times the loss scale"], "blue"),
    (["backward pass", "matrix products in half,", "gradients float32"], "orange"),
    (["sum of gradients", "float32"], "blue"),
)
_PER_UPDATE = (
    (["all-reduce", "sum over ranks", "float32 *"], "blue"),
    (["unscale and check", "divided by the loss", "scale; all finite?"], "blue"),
    (["clip", "by the global norm", "float32"], "blue"),
    (["optimizer", "moments, rate, decay", "float32"], "blue"),
    (["weights", "float32", "step + 1"], "blue"),
)


def update() -> Drawing:
    """The stages of an update, with the types of numbers."""
    drawing = Drawing(
        880, 348, "An update: gradients of micro batches are summed, reduced, clipped and applied"
    )
    drawing.rectangle((10, 10), (860, 116), "card", dash=True)
    drawing.text((22, 30), "for each micro batch, on every rank", "soft strong", anchor="start")
    drawing.rectangle((10, 148), (860, 150), "card", dash=True)
    drawing.text((104, 168), "once per update", "soft strong", anchor="start")
    for top, boxes in ((46, _PER_MICRO_BATCH), (184, _PER_UPDATE)):
        for place, (lines, style) in enumerate(boxes):
            left = _LEFT + _PITCH * place
            drawing.box((left, top), _BOX, lines, style)
            if place:
                drawing.arrow([(left + _BOX[0] - _PITCH, top + 31), (left - 2, top + 31)])
    first = _LEFT + _BOX[0] / 2
    last, check = first + 4 * _PITCH, first + _PITCH
    drawing.arrow([(last, 108), (last, 137), (first, 137), (first, 182)])
    drawing.arrow([(check, 246), (check, 276), (364, 276)], dash=True)
    skipped = "not finite: skipped; no weight and no step changes, a loss scale is halved"
    drawing.text((372, 280), skipped, "soft", size=12, anchor="start")
    _legend(
        drawing,
        (22, 312),
        [("orange", "half precision: bfloat16 or float16, by --precision"), ("blue", "float32")],
    )
    note = "* float16 with --fp16_compression"
    drawing.text((860, 325), note, "soft", size=12, anchor="end")
    return drawing


def _legend(drawing: Drawing, corner: Point, entries: Sequence[tuple[str, str]]) -> None:
    left, top = corner
    for style, name in entries:
        drawing.rectangle((left, top), (16, 16), style)
        drawing.text((left + 23, top + 13), name, size=12, anchor="start")
        left += 45 + 6.5 * len(name)


_RANKS, _ACCUMULATION_STEPS, _MICRO_BATCH = 2, 3, 4
_RANK_STYLES = ("blue", "orange")


def global_batch() -> Drawing:
    """How two ranks divide a global batch of 24 sequences."""
    drawing = Drawing(
        860, 322, "A global batch of 24 sequences on two ranks, in micro batches of 4"
    )
    per_rank = _ACCUMULATION_STEPS * _MICRO_BATCH
    cell, left = 34, 22
    title = "global batch = micro batch (4) x accumulation steps (3) x ranks (2) = 24 sequences"
    drawing.text((left, 28), title, "ink strong", anchor="start")
    for number in range(_RANKS * per_rank):
        corner = (left + number * cell, 42)
        drawing.rectangle(corner, (cell - 4, 26), _RANK_STYLES[number // per_rank])
        drawing.text((corner[0] + (cell - 4) / 2, 60), str(number), size=12)
    for rank, style in enumerate(_RANK_STYLES):
        start, end = left + rank * per_rank * cell, left + (rank + 1) * per_rank * cell - 4
        drawing.line([(start, 74), (start, 80), (end, 80), (end, 74)], style)
        drawing.text(((start + end) / 2, 98), f"the slice of rank {rank}", "soft", size=12)
        top = 124 + 86 * rank
        drawing.text((left, top + 32), f"rank {rank}", "ink strong", anchor="start")
        for step in range(_ACCUMULATION_STEPS):
            _micro_batch(drawing, rank, step, (left + 62 + 168 * step, top))
        drawing.arrow([(left + 556, top + 28), (638, top + 28)])
        drawing.box((640, top + 3), (80, 50), ["sum", "of gradients"], "plain")
        drawing.arrow([(720, top + 28), (758, 187 + 16 * rank)])
    drawing.box((760, 155), (86, 80), ["all-reduce,", "then one", "update"], "green")
    order = "A rank computes its micro batches one after the other, all ranks at the same time."
    drawing.text((left + 62, 304), order, "soft", size=12, anchor="start")
    return drawing


def _micro_batch(drawing: Drawing, rank: int, step: int, corner: Point) -> None:
    left, top = corner
    first = (rank * _ACCUMULATION_STEPS + step) * _MICRO_BATCH
    drawing.rectangle((left, top - 4), (152, 64), "card", dash=True)
    for place in range(_MICRO_BATCH):
        at = (left + 8 + 35 * place, top + 4)
        drawing.rectangle(at, (31, 26), _RANK_STYLES[rank])
        drawing.text((at[0] + 15.5, at[1] + 18), str(first + place), size=12)
    drawing.text((left + 76, top + 50), f"micro batch {step + 1}", "soft", size=12)


# A sentence of word pieces, in two lines, and the words from which random ones are drawn.
_LINES = (
    "[CLS] a token ##izer splits un ##common words into word ##piece ##s and keeps the fre ##quent",
    "ones whole , so that a small vocab ##ula ##ry can spell every text that a reader "
    "en ##counter ##s [SEP]",
)
_OTHERS = ("river", "seven", "old", "music")
_SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tokens (the default)", {}),
    ("whole words: --do_whole_word_mask", {"do_whole_word_mask": True}),
    (
        "n-grams of whole words: --do_whole_word_mask --ngram=3",
        {"do_whole_word_mask": True, "ngram": 3},
    ),
    ("spans of whole words: --span_masking", {"span_masking": True}),
)
_SEED = 137  # shows all three kinds of replacement


def masks() -> Drawing:
    """A sentence with the masks that data preparation and training would draw for it."""
    drawing = Drawing(920, 482, "The masks of a sentence by tokens, whole words, n-grams and spans")
    tokens = " ".join(_LINES).split()
    for row, (name, settings) in enumerate(_SCHEMES):
        corner = (16.0, 16.0 + 110 * row)
        drawing.text((corner[0], corner[1] + 14), name, "ink strong", anchor="start")
        masked, vocabulary = masked_sentence(tokens, **settings)
        shown = [vocabulary[token] for token in masked.input_ids[0]]
        predicted = {*masked.positions[0][masked.weights[0] > 0]}
        left, top = corner[0], corner[1] + 24
        for place, token in enumerate(tokens):
            if place == len(_LINES[0].split()):
                left, top = corner[0], top + 36
            in_place = shown[place] if place in predicted else None
            left += _token(drawing, (left, top), token, in_place)
    _legend(
        drawing,
        (16, 454),
        [
            ("plain", "not predicted"),
            ("orange", "hidden by [MASK] (80 %)"),
            ("pink", "another token in its place (10 %)"),
            ("blue", "left as it is (10 %)"),
        ],
    )
    return drawing


def masked_sentence(tokens: Sequence[str], **settings: Any) -> tuple[MaskedBatch, list[str]]:
    """The masks of one sequence, and the vocabulary of its ids."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *_OTHERS, *sorted({*tokens} - {*special})]
    ids = np.array([[vocabulary.index(token) for token in tokens]])
    starts = np.array([[not token.startswith("##") for token in tokens]])
    drawn = MaskingSettings(
        MaskingOptions(**settings),
        vocab_size=len(special) + len(_OTHERS),
        special_ids={name[1:-1].lower(): index for index, name in enumerate(special)},
    )
    lengths = np.array([len(tokens)])
    keys = example_keys(_SEED, np.array([0]))
    return mask_batch(ids, lengths, keys=keys, settings=drawn, word_starts=starts), vocabulary


def _token(drawing: Drawing, corner: Point, token: str, in_place: str | None) -> float:
    """Draws a token and, if it is predicted, its replacement; returns the width."""
    width = 7.0 * max(len(token), len(in_place or "")) + 8
    middle = corner[0] + width / 2
    if in_place is None:
        drawing.rectangle(corner, (width, 18), "plain", edge="")
        drawing.text((middle, corner[1] + 13), token, "ink code", size=11)
    else:
        style = {"[MASK]": "orange", token: "blue"}.get(in_place, "pink")
        drawing.rectangle(corner, (width, 31), style)
        drawing.text((middle, corner[1] + 13), in_place, "ink code strong", size=11)
        drawing.text((middle, corner[1] + 26), token, "ink code", size=10)
    return width + 3
