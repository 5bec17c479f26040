"""A small job of labelling words, all made up: the vocabulary and network of squad_files.py."""

from __future__ import annotations

import random
from pathlib import Path

from tests.helpers.squad_files import NAMES, PLACES

LENGTHS = ["--max_seq_length=16"]
LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def sentence(rng: random.Random) -> list[tuple[str, str]]:
    """Words and their labels: who lives where. "Lima" and the like are people after "Anna"."""
    people, places = rng.sample(NAMES, 2), rng.sample(PLACES, 2)
    person = [(people[0].title(), "B-PER"), (places[0].title(), "I-PER")][: rng.randint(1, 2)]
    town = [("old", "B-LOC"), (places[1].title(), "I-LOC")]
    town = town if rng.random() < 0.5 else [(places[1].title(), "B-LOC")]
    words = [*person, ("lives", "O"), ("in", "O"), *town]
    if rng.random() < 0.3:
        words += [("and", "O"), ("visited", "O"), (people[1].title(), "B-PER")]
    return [*words, *[(".", "O")] * rng.randint(1, 12)]


def write_sentences(path: Path, count: int, *, seed: int, labels: bool = True) -> Path:
    """A word a line, with its label; blank lines between sentences."""
    rng = random.Random(seed)
    lines = ["-DOCSTART- O", ""] if labels else []
    for _ in range(count):
        lines += [f"{word} {label}" if labels else word for word, label in sentence(rng)]
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return path


def write_data(directory: Path) -> Path:
    """train.txt, dev.txt and test.txt, the last without labels."""
    write_sentences(directory / "train.txt", 160, seed=1)
    write_sentences(directory / "dev.txt", 30, seed=2)
    write_sentences(directory / "test.txt", 11, seed=3, labels=False)
    return directory
