"""How large the house is, and how long the way through it: figures that may only fall.

    python -m pytest tests/unit/test_house.py -s

shows them. Whoever raises one says why in the line's comment. What a run loads is measured in
tests/end_to_end/test_import_budget.py; what is counted here includes what is imported inside of
functions, which a reader meets as well.
"""

from collections import Counter

import pytest

from bert_tf.commands.scripts import SCRIPTS
from tests.helpers.imports import imports_of
from tests.helpers.programs import ROOT

# Lines of each package; "" is bert_tf/__init__.py alone.
MOST_LINES = {
    "": 7,
    "checkpoint": 3_118,
    "cli": 867,
    "commands": 1_639,
    "compat": 1_492,
    "config": 1_301,
    "diagnose": 881,
    "doctor": 574,
    "durable": 1_260,
    "finetune": 1_917,  # probabilities of scores, which two tasks computed
    "inference": 667,
    "input": 1_892,
    "model": 2_648,
    "model_directory": 932,
    "native": 236,  # a compiler that starts while a signal comes is ended, too
    "ranks": 1_112,
    "records": 2_300,
    "serving": 1_201,
    "tasks": 12_972,
    "text": 2_683,
    "train": 3_916,
    "tuning": 546,
    "update": 2_791,
    "util": 2_338,
    "watch": 547,
}
MOST_FILES = 282
# Script -> files and lines that it reaches through imports, its own included.
MOST_REACHED = {"run_pretraining.py": (169, 29_664)}
# How far below its figure the code may be before the figure has to follow.
SLACK = 60


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def room_of(path):
    inside = path.relative_to(ROOT / "bert_tf").parts
    return inside[0] if len(inside) > 1 else ""


def files_of(name):
    """The files that importing a name of bert_tf runs: its module and the packages above it."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    files = [path for place in places for path in (place / "__init__.py", place.with_suffix(".py"))]
    return [path for path in files if path.is_file()]


def reached_from(script):
    """The script and the files of bert_tf that it reaches through imports, with their lines."""
    [row] = [row for row in SCRIPTS.values() if row.file == script]
    task = files_of(f"bert_tf.tasks.{row.task}.run")
    waiting, seen = [ROOT / script, *task, *files_of(row.flags_module)], set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            names = [name for name in imports_of(path) if name.split(".")[0] == "bert_tf"]
            waiting += (file for name in names for file in files_of(name))
    return {path: lines_of(path) for path in seen}


def check(name, value, most, slack=SLACK):
    print(f"{name}: {value:,}")
    assert value <= most, f"{name}: {value:,}, at most {most:,}; make it smaller"
    assert value >= most - slack, f"{name}: {value:,}; lower its limit of {most:,}"


def test_rooms_do_not_grow():
    sources = list(ROOT.glob("bert_tf/**/*.py"))
    rooms = Counter()
    for path in sources:
        rooms[room_of(path)] += lines_of(path)
    assert rooms.keys() == MOST_LINES.keys()
    for room, lines in sorted(rooms.items()):
        check(f"bert_tf/{room}", lines, MOST_LINES[room])
    check("files of bert_tf", len(sources), MOST_FILES, slack=5)


@pytest.mark.parametrize("script", MOST_REACHED)
def test_a_script_reaches_no_more_than_it_did(script):
    reached = reached_from(script)
    most_files, most_lines = MOST_REACHED[script]
    check(f"files that {script} reaches", len(reached), most_files, slack=5)
    check(f"lines that {script} reaches", sum(reached.values()), most_lines, slack=300)
