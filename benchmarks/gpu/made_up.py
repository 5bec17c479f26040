"""Made-up data of any size, as the project's commands read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.speed.batches import masked_words, pretraining_batch
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import TFRecordWriter
from bert_tf.util.files import write_json

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_MASK_ID = _SPECIAL.index("[MASK]")
_QUESTION_WORDS = 8


def words(vocab_size: int) -> list[str]:
    """The entries of a vocabulary but the special ones: words of one token each."""
    return [f"w{number}" for number in range(vocab_size - len(_SPECIAL))]


def write_vocabulary(path: Path, vocab_size: int) -> None:
    """Writes a vocabulary of ``vocab_size`` entries."""
    entries = [*_SPECIAL, *words(vocab_size)]
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")


def write_records(directory: Path, count: int, *, vocab_size: int, length: int) -> None:
    """Writes ``count`` pre-training records of ``length`` random tokens each, without padding.

    Masked tokens can be learnt: the first words of the vocabulary are frequent.
    """
    batch = pretraining_batch(
        count,
        vocab_size=vocab_size,
        seq_length=length,
        predictions=masked_words(length),
        seed=1,
    )
    rare = np.random.default_rng(2).random((count, length)) ** 4
    ids = len(_SPECIAL) + ((vocab_size - len(_SPECIAL)) * rare).astype(np.int32)
    positions = batch["masked_lm_positions"]
    batch["masked_lm_ids"] = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, _MASK_ID, axis=1)
    directory.mkdir()
    with TFRecordWriter(directory / "made_up.tfrecord") as writer:
        for record in PRETRAINING_MASKED.encode_batch({**batch, "input_ids": ids}):
            writer.write(record)


def write_squad(path: Path, questions: int, *, vocab_size: int, length: int) -> None:
    """Writes SQuAD 1.1 content: each question is one window of exactly ``length`` tokens."""
    draw, entries = np.random.default_rng(1), np.array(words(vocab_size))
    asked = min(_QUESTION_WORDS, length // 4)
    paragraphs = []
    for number in range(questions):
        text = draw.choice(entries, length - 3).tolist()  # without [CLS] and twice [SEP]
        context = text[asked:]
        at = int(draw.integers(len(context)))
        answer = {"text": context[at], "answer_start": len(" ".join([*context[:at], ""]))}
        qas = [{"id": str(number), "question": " ".join(text[:asked]), "answers": [answer]}]
        paragraphs.append({"context": " ".join(context), "qas": qas})
    write_json(path, {"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]})
