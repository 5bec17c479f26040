"""report.html of tagging: what it counts, and which words it marks."""

import re
from pathlib import Path

import numpy as np
import pytest

from bert_tf.tasks.tagging.chunks import Entity, Match
from bert_tf.tasks.tagging.files import read_tagged
from bert_tf.tasks.tagging.report import marked, write_report
from tests.helpers.pages import tables_of

FILE = """<Anna> B-PER
& I-PER
Co I-PER
visits O
Rome B-LOC

Rome B-LOC
is O
old O

Bern B-LOC
and O
Basel B-LOC
"""
PREDICTED = [
    ["B-PER", "I-PER", "O", "B-LOC", "B-PER"],
    ["B-LOC", "O", "O"],
    ["O", "O", "B-LOC"],
]
RESULTS = {"eval_f1": 0.5, "eval_accuracy": 0.75, "eval_loss": 0.25}


def page_of(tmp_path: Path, content: str, predicted: list[list[str]]) -> str:
    (tmp_path / "dev.txt").write_text(content)
    file = read_tagged(tmp_path / "dev.txt", flag="eval_file", needs_labels=True)
    losses = np.linspace(0, 1, file.num_words, dtype=np.float32)
    write_report(tmp_path, file, predicted, losses, RESULTS)
    return (tmp_path / "report.html").read_text()


def cards_of(page: str) -> list[str]:
    return re.findall(r'<p class="context" dir="auto">(.*?)</p>', page)


def test_scores_and_outcomes(tmp_path):
    tables = tables_of(page_of(tmp_path, FILE, PREDICTED))
    assert tables["Scores of each type"][1:] == [
        ["LOC", "0.667", "0.500", "0.571", "4", "3", "2"],
        ["PER", "0.000", "0.000", "0.000", "1", "2", "0"],
        ["all", "0.400", "0.400", "0.400", "5", "5", "2"],
    ]
    assert [row[:2] for row in tables["What became of entities"][1:]] == [
        ["correct", "2"],
        ["wrong boundaries", "1"],
        ["wrong type", "1"],
        ["missed", "1"],
        ["spurious", "1"],
    ]
    assert tables["Confusion matrix: label in rows, prediction in columns"] == [
        ["label", "LOC", "PER", "none"],
        ["LOC", "2", "1", "1"],
        ["PER", "0", "1", "0"],
        ["none", "1", "0", "0"],
    ]


def test_the_worst_sentences_come_first_with_marks_on_both_sides(tmp_path):
    page = page_of(tmp_path, FILE, PREDICTED)
    first, second = cards_of(page)
    assert "line 1: 3 of 3 wrong" in first
    assert "line 11: 1 of 2 wrong" in second
    assert (
        '<mark class="true predicted">&lt;Anna&gt; &amp;</mark> <mark class="true">Co</mark> '
        '<span class="badge partly">PER, wrong boundaries</span> <mark class="predicted">visits'
        '</mark> <span class="badge wrong">spurious LOC</span> <mark class="true predicted">Rome'
        '</mark> <span class="badge wrong">LOC, predicted as PER</span>'
    ) in first
    assert (
        '<mark class="true">Bern</mark> <span class="badge wrong">missed LOC</span> and' in second
    )
    assert (
        '<mark class="true predicted">Basel</mark> <span class="badge exact">LOC</span>' in second
    )
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!data:)', page), "nothing is loaded from elsewhere"


def test_adjacent_entities_stay_apart():
    one, other = Entity("A", 0, 1), Entity("A", 1, 2)
    text = marked(["a", "b"], [Match(one, one), Match(other, other)])
    assert text.count("<mark") == 2
    assert re.sub(r"<span.*?</span>|<.*?>", "", text).split() == ["a", "b"]


def test_entities_without_types(tmp_path):
    page = page_of(tmp_path, "colon B\ncancer I\n. O\n", [["B", "O", "O"]])
    assert tables_of(page)["Scores of each type"][1][0] == "entity"
    assert "entity, wrong boundaries" in cards_of(page)[0]


def test_parts_of_speech_are_scored_by_words(tmp_path):
    page = page_of(tmp_path, "The DT\nmill NN\nturns VBZ\n", [["DT", "NN", "NNS"]])
    tables = tables_of(page)
    assert ["VBZ", "0.000", "0.000", "0.000", "1", "0", "0"] in tables["Scores of each type"]
    assert ["wrong type", "1"] in [row[:2] for row in tables["What became of words"]]
    [card] = cards_of(page)
    assert "The mill <mark" in card
    assert '<span class="badge wrong">VBZ, predicted as NNS</span>' in card


@pytest.mark.parametrize("labels", [["B-A", "O"], ["O", "O"]])
def test_nothing_is_wrong(tmp_path, labels):
    content = "".join(f"word {label}\n" for label in labels)
    page = page_of(tmp_path, content, [labels])
    assert "<h2>No mistakes</h2>" in page
    assert not cards_of(page)
