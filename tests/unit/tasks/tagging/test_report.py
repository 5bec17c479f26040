"""report.html of tagging: what it counts, and which words it marks."""

from pathlib import Path

import numpy as np
import pytest

from bert_tf.tasks.tagging.files import read_tagged
from bert_tf.tasks.tagging.report import write_report
from tests.helpers.pages import data_of, tables_of

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


def sentences_of(page: str) -> list[dict]:
    """The examples, with the marked parts of their texts in place of numbers."""
    data = data_of(page)
    for row in data["rows"]:
        text = data["texts"][row["text"]]
        row["marks"] = {
            name: [text[start:end] for start, end in places]
            for name, places in row["marks"].items()
        }
    return data["rows"]


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
    first, second, last = sentences_of(page_of(tmp_path, FILE, PREDICTED))
    assert [row["id"] for row in (first, second, last)] == ["1", "11", "7"]
    assert (first["facts"], second["facts"]) == (["3 of 3 wrong"], ["1 of 2 wrong"])
    assert first["marks"] == {
        "true": ["<Anna> & Co", "Rome"],
        "predicted": ["<Anna> &", "visits", "Rome"],
    }
    assert first["answers"] == {
        "wrong boundaries": ["<Anna> & Co (PER)"],
        "wrong type": ["Rome (LOC, predicted as PER)"],
        "spurious": ["visits (LOC)"],
    }
    assert second["answers"] == {"correct": ["Basel (LOC)"], "missed": ["Bern (LOC)"]}
    assert last["filters"] == {"Wrong": "0"}


def test_adjacent_entities_stay_apart(tmp_path):
    [row] = sentences_of(page_of(tmp_path, "a B-A\nb B-A\n", [["B-A", "B-A"]]))
    assert row["marks"] == {"true": ["a", "b"], "predicted": ["a", "b"]}


def test_entities_without_types(tmp_path):
    page = page_of(tmp_path, "colon B\ncancer I\n. O\n", [["B", "O", "O"]])
    assert tables_of(page)["Scores of each type"][1][0] == "entity"
    assert sentences_of(page)[0]["answers"] == {"wrong boundaries": ["colon cancer (entity)"]}


def test_parts_of_speech_are_scored_by_words(tmp_path):
    page = page_of(tmp_path, "The DT\nmill NN\nturns VBZ\n", [["DT", "NN", "NNS"]])
    tables = tables_of(page)
    assert ["VBZ", "0.000", "0.000", "0.000", "1", "0", "0"] in tables["Scores of each type"]
    assert ["wrong type", "1"] in [row[:2] for row in tables["What became of words"]]
    [row] = sentences_of(page)
    assert row["answers"]["wrong type"] == ["turns (VBZ, predicted as NNS)"]


@pytest.mark.parametrize(("labels", "number"), [(["B-A", "O"], 1), (["O", "O"], 2)])
def test_nothing_is_wrong(tmp_path, labels, number):
    content = "".join(f"word {label}\n" for label in labels)
    [row] = sentences_of(page_of(tmp_path, content, [labels]))
    assert row["facts"] == [f"0 of {number} wrong"]
