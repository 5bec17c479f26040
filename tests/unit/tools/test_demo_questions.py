"""Cloze questions: a phrase of the context stands where its question has the gap."""

import json
import random

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.util.errors import UserError
from tools.demo.questions import GAP, Settings, cloze, contexts, documents, run

WORDS = ["parser", "of", "lines", "the", "red", "window", "and", "a", "file-name", "(old)"]


@pytest.fixture
def text(tmp_path):
    """Forty documents of eight sentences, each sentence on a line; the first one twice."""
    rng = random.Random(1)
    found = []
    for _ in range(40):
        for _ in range(8):
            words = [
                rng.choice([word, f"{word}{rng.random():.2}"]) for word in rng.choices(WORDS, k=9)
            ]
            found.append(f"The {' '.join(words)}.")
        found.append("")
    path = tmp_path / "text.txt"
    path.write_text("\n".join(found[:9] + found))
    return path


def make(text, output_dir, **changes):
    usual = {"num_questions": 60, "max_context_words": 45}
    return run(Settings(str(text), str(output_dir), **{**usual, **changes}))


def rows(directory):
    for name in ("train.json", "dev.json"):
        for document in json.loads((directory / name).read_text())["data"]:
            for paragraph in document["paragraphs"]:
                for question in paragraph["qas"]:
                    yield name, document["title"], paragraph["context"], question


def test_the_answer_closes_the_gap(text, tmp_path):
    directory = make(text, tmp_path / "out")
    found = list(rows(directory))
    assert len(found) == 60
    for _, _, context, question in found:
        [answer] = question["answers"]
        assert context[answer["answer_start"] :].startswith(answer["text"])
        assert context.lower().count(answer["text"].lower()) == 1
        assert 1 <= len(answer["text"].split()) <= 3
        closed = question["question"].replace(GAP, answer["text"])
        assert "".join(closed.split()) in "".join(context.split()), "comparing strings finds it"
        assert len(question["question"].split()) <= 13
        assert len(context.split()) <= 45
        edges = answer["text"].lower().split()
        assert not {edges[0], edges[-1]} & {"the", "of", "and", "a"}
    assert len({question["id"] for *_, question in found}) == 60
    parts = [[row for row in found if row[0] == name] for name in ("train.json", "dev.json")]
    assert not {row[1] for row in parts[0]} & {row[1] for row in parts[1]}, "no document is in both"
    assert [output.count for output in read_manifest(directory).outputs] == [*map(len, parts)]
    options = {"version_2_with_negative": False, "needs_answers": True}
    squad = read_squad(directory / "dev.json", flag="x", **options)
    assert len(squad.examples) == len(parts[1])


def test_same_text_and_seed_same_bytes(text, tmp_path, capsys):
    made = [make(text, tmp_path / name, random_seed=seed) for name, seed in zip("abc", (1, 1, 2))]
    one, two, three = ((directory / "train.json").read_bytes() for directory in made)
    assert one == two != three
    make(text, tmp_path / "a", random_seed=1)
    assert "up to date, skipped" in capsys.readouterr().err


def test_sentences_and_documents():
    assert list(documents(["a b", "c", "", "  ", "d"])) == ["a b c", "d"]
    text = "One e.g. two three. Four five! Six v1.2 seven? Eight nine ten."
    assert list(contexts(text, 6)) == [
        "One e.g. two three. Four five!",
        "Six v1.2 seven? Eight nine ten.",
    ]
    assert list(contexts("Alone it stands.", 9)) == []
    assert cloze("It is of the. And so it is of the.", 1) is None


def test_what_is_refused(text, tmp_path):
    with pytest.raises(UserError, match="--num_questions=1 must be at least 2"):
        make(text, tmp_path / "out", num_questions=1)
    with pytest.raises(UserError, match="--max_context_words=12 must be at least 13"):
        make(text, tmp_path / "out", max_context_words=12)
    text.write_text("The parser reads all of the lines. It closes the file then.")
    with pytest.raises(UserError, match="has sentences for 1 questions; give two documents or"):
        make(text, tmp_path / "out")
