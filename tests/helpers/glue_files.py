"""A small classification job, all made up: the vocabulary and network of squad_files.py."""

from __future__ import annotations

import random
from pathlib import Path

from tests.helpers.squad_files import NAMES, PLACES

LENGTHS = ["--max_seq_length=16"]


def write_sentences(path: Path, count: int, *, seed: int, labels: bool = True) -> Path:
    """SST-2's columns: who lives where; the label is 1 in the second half of the places."""
    rng = random.Random(seed)
    header = ("sentence", "label") if labels else ("index", "sentence")
    lines = ["\t".join(header)]
    for number in range(count):
        place = rng.choice(PLACES)
        text = f"{rng.choice(NAMES)} lives in {place} " + ". " * rng.randint(0, 6)
        label = int(place in PLACES[4:])
        lines.append(f"{text}\t{label}" if labels else f"{number}\t{text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_data(directory: Path) -> Path:
    """train.tsv, dev.tsv and test.tsv."""
    write_sentences(directory / "train.tsv", 160, seed=1)
    write_sentences(directory / "dev.tsv", 30, seed=2)
    write_sentences(directory / "test.tsv", 11, seed=3, labels=False)
    return directory


def write_pairs(directory: Path) -> Path:
    """sts-train.csv and sts-dev.csv in STS-B's columns: ratings from 0 to 5 of two sentences."""
    directory.mkdir(parents=True)
    for seed, (split, count) in enumerate((("train", 60), ("dev", 25)), start=1):
        rng, lines = random.Random(seed), []
        for number in range(count):
            texts = [
                f"{rng.choice(NAMES)} lives in {rng.choice(PLACES)} " + ". " * rng.randint(0, 40)
                for _ in range(2)
            ]
            shared = len(set(texts[0].split()[:4]) & set(texts[1].split()[:4]))
            columns = ["genre", "file", "2026", f"{number:04}", f"{shared + rng.random():.3f}"]
            lines.append("\t".join([*columns, *(text.strip() for text in texts)]))
        (directory / f"sts-{split}.csv").write_text("\n".join(lines) + "\n")
    return directory
