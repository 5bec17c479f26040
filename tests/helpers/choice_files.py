"""A small job of multiple choice, all made up: the vocabulary and network of squad_files.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.helpers.squad_files import NAMES, PLACES

LENGTHS = ["--max_seq_length=20"]


def question(rng: random.Random) -> dict:
    """Who lives where: two to four places, one of which is in the second half of ``PLACES``."""
    others = rng.sample(PLACES[:4], rng.randint(1, 3))
    label = rng.randint(0, len(others))
    choices = [*others[:label], rng.choice(PLACES[4:]), *others[label:]]
    context = f"{rng.choice(NAMES)} works every year " + ". " * rng.randint(0, 12)
    values = {"context": context.strip(), "choices": choices, "label": label}
    return {**values, "question": "lives in"} if rng.random() < 0.5 else values


def write_questions(path: Path, count: int, *, seed: int, labels: bool = True) -> Path:
    """JSON lines."""
    rng = random.Random(seed)
    questions = [question(rng) for _ in range(count)]
    for values in questions:
        if not labels:
            del values["label"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(values)}\n" for values in questions))
    return path


def write_data(directory: Path) -> Path:
    """train.jsonl, dev.jsonl and test.jsonl, the last without labels."""
    write_questions(directory / "train.jsonl", 160, seed=1)
    write_questions(directory / "dev.jsonl", 30, seed=2)
    write_questions(directory / "test.jsonl", 11, seed=3, labels=False)
    return directory
