"""A small question-answering job: a vocabulary, a network and SQuAD files, all made up."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES = ["anna", "bob", "carla", "dora", "emil", "fritz", "gina", "hugo"]
PLACES = ["paris", "rome", "oslo", "berne", "cairo", "lima", "quito", "delhi"]
WORDS = ["where", "does", "live", "work", "?", ".", ",", "lives", "works", "in", "and", "the",
         "old", "town", "of", "a", "friend", "who", "visited", "year", "every"]  # fmt: skip
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, *PLACES, *WORDS]

CONFIG = {
    "vocab_size": len(ENTRIES),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "initializer_range": 0.08,
}

LENGTHS = ["--max_seq_length=40", "--doc_stride=8", "--max_query_length=8"]


def write_model(directory: Path, *more: str) -> Path:
    """A directory with a configuration and a vocabulary, ``more`` included, without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    entries = [*ENTRIES, *more]
    config = {**CONFIG, "vocab_size": len(entries)}
    (directory / "bert_config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("\n".join(entries) + "\n")
    return directory


def squad(num_paragraphs: int, *, seed: int, unanswerable: bool = False) -> dict:
    """SQuAD content: who lives where; some paragraphs are too long for one window."""
    rng = random.Random(seed)
    paragraphs = []
    for number in range(num_paragraphs):
        people = rng.sample(NAMES, 3)
        text, questions = "", []
        for name in people:
            place = rng.choice(PLACES)
            text += f"{name.title()}  lives in {place.title()}, a town of the old "
            text += "friend who works every year . " * rng.randint(0, 2)
            start = text.rindex(place.title())
            answers = [{"text": place.title(), "answer_start": start}]
            questions.append((f"{number}-{name}", f"Where does {name.title()} live ?", answers))
        qas = [
            {"id": key, "question": question, "answers": answers}
            for key, question, answers in questions
        ]
        if unanswerable:
            absent = next(name for name in NAMES if name not in people)
            for question in qas:
                question["is_impossible"] = False
            qas.append(
                {
                    "id": f"{number}-{absent}",
                    "question": f"Where does {absent.title()} live ?",
                    "answers": [],
                    "is_impossible": True,
                }
            )
        paragraphs.append({"context": text, "qas": qas})
    version = "v2.0" if unanswerable else "1.1"
    return {"version": version, "data": [{"title": "People", "paragraphs": paragraphs}]}


def write_squad(path: Path, *args, **kwargs) -> Path:
    """Writes ``squad(...)`` to ``path``."""
    path.write_text(json.dumps(squad(*args, **kwargs)))
    return path
