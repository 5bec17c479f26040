"""Small files of MNLI, XNLI and marked relations, in the words of squad_files.py."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.squad_files import NAMES, PLACES

LABELS = ("contradiction", "entailment", "neutral")
PARSES = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")

Pair = tuple[str, str, str]


def pairs(count: int, *, seed: int, wrong_every: int = 0) -> list[Pair]:
    """Premises, hypotheses and labels, which follow from the place in the hypothesis.

    So do all but one in ``wrong_every``, if that is given, so that no network is right about all.
    """
    rng, found = random.Random(seed), []
    for number in range(count):
        place = rng.randrange(len(PLACES))
        label = place % 3
        if wrong_every and number % wrong_every == 0:
            label = (label + 1) % 3
        premise = f"{rng.choice(NAMES)} lives in {rng.choice(PLACES)} " + ". " * rng.randint(0, 4)
        found.append(
            (premise.strip(), f"{rng.choice(NAMES)} works in {PLACES[place]}", LABELS[label])
        )
    return found


def _write(path: Path, lines: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return path


def write_mnli(directory: Path) -> dict[str, list[Pair]]:
    """GLUE's files of MNLI; the test sets are the development sets. Returns these by name."""
    names = ("index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2")

    def line(number: int, pair: Pair) -> list[object]:
        return [number, number, f"{number}e", "news", *"abcd", *pair[:2]]

    sets = {"train": pairs(200, seed=1)}
    sets |= {"dev_matched": pairs(33, seed=2, wrong_every=9)}
    sets["dev_mismatched"] = pairs(25, seed=3, wrong_every=4)
    for name, found in sets.items():
        raters = ["neutral"] * (1 if name == "train" else 5)
        header = [*names, *(f"label{n}" for n in range(1, 1 + len(raters))), "gold_label"]
        rows = [[*line(n, pair), *raters, pair[2]] for n, pair in enumerate(found)]
        _write(directory / f"{name}.tsv", [header, *rows])
        if name != "train":
            rows = [line(number, pair) for number, pair in enumerate(found)]
            _write(directory / f"{name.replace('dev', 'test')}.tsv", [names, *rows])
    return sets


def write_diagnostic(directory: Path, found: Sequence[Pair]) -> None:
    """GLUE's diagnostic set, with and without labels."""
    rows = [[number, *pair[:2]] for number, pair in enumerate(found)]
    _write(directory / "diagnostic.tsv", [("index", "sentence1", "sentence2"), *rows])
    categories = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")
    header = (*categories, "Domain", "Premise", "Hypothesis", "Label")
    rows = [["", "", "Negation", "", "News", *pair] for pair in found]
    _write(directory / "diagnostic-full.tsv", [header, *rows])


def write_xnli(directory: Path, languages: Sequence[str]) -> dict[str, list[Pair]]:
    """XNLI's files, as google-research/bert has them: trained in the first of the languages.

    Returns the pairs of the development and test set by language; sentences of languages alternate.
    """
    spelled = {"contradiction": "contradictory"}
    rows = [(*pair[:2], spelled.get(pair[2], pair[2])) for pair in pairs(200, seed=1)]
    train = directory / "multinli" / f"multinli.train.{languages[0]}.tsv"
    _write(train, [("premise", "hypo", "label"), *rows])
    found = {name: pairs(20 + n, seed=5 + n) for n, name in enumerate(languages)}
    header = ("language", "gold_label", *PARSES, "sentence1", "sentence2", "promptID", "match")
    lines = [
        [name, pairs_of[number][2], *"abcd", *pairs_of[number][:2], number, True]
        for number in range(20 + len(languages))
        for name, pairs_of in found.items()
        if number < len(pairs_of)
    ]
    for split in ("dev", "test"):
        _write(directory / f"xnli.{split}.tsv", [header, *lines])
    return found


def write_relations(path: Path, count: int, *, seed: int) -> list[str]:
    """Texts with two marked entities, as JSON lines; returns their relations."""
    rng, lines, labels = random.Random(seed), [], []
    for _ in range(count):
        name, place = rng.choice(NAMES), rng.randrange(len(PLACES))
        labels.append(("lives_in", "works_in", "none", "none")[place // 2])
        text = f"<< {name} >> visited [[ {PLACES[place]} ]] every year ."
        lines.append(json.dumps({"text": text, "label": labels[-1], "metadata": []}))
    path.write_text("\n".join(lines) + "\n")
    return labels
