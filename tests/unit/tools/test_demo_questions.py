"""Generated questions: every answer is at its offset, and is what the documentation states."""

from __future__ import annotations

import collections
import json
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.records.manifest import read_manifest
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.util.errors import UserError
from tools.demo import questions as demo_questions
from tools.demo.documented_objects import SECTIONS, documented_objects
from tools.demo.question_templates import MAX_ANSWER_WORDS, find_statements, is_answer
from tools.demo.questions import Settings, run

GOOGLE = '''
def detect(data: bytes, *, strict: bool = True, limit=None, name="utf-8") -> str:
    """Finds the encoding of some bytes. The first one that fits wins.

    Added in version 3.7.

    Args:
      data: The bytes to look at. They are
        not changed.
      strict (bool, optional): Whether errors are raised. Defaults to True.

    Returns:
      The name of the encoding, e.g. one of Python's. Never empty.

    Raises:
      ValueError: If `data` is empty.

    Examples:
      Args: nothing of this is kept.

    The last paragraph stands below the examples.
    """
'''
NUMPY = '''
class Reader(Base):
    """A reader of tables.

    .. deprecated:: 2.1

    >>> Reader()
    Reader()
    """

    def _hidden(self):
        """Not documented for users."""

    def mean(self, axis, size=4):
        """
        Return the mean of the values.

        Parameters
        ----------
        axis : int or tuple, optional
            The axis to go along,
            counted from zero.
        size : int
            The number of rows.

        Returns
        -------
        out : ndarray
            The means as an array. A copy.
        """
'''
SPHINX = '''
def send(self, text, tries=3):
    """Sends a text over the wire.

    :param text: What is sent.
    :type text: str
    :param int tries: How often it is tried.
    :return: The number of bytes
        that were sent.
    :raises OSError: if the line is dead.

    This is equivalent to :func:`~wire.write`.
    """
'''


def objects_of(source, max_words=250):
    return {o.name: o for o in documented_objects(source, "pkg.mod", max_words=max_words)}


def facts_of(documented):
    return {
        (s.template.kind, s.subject): documented.context[s.answer.start : s.answer.end]
        for s in find_statements(documented)
    }


def test_google_style():
    documented = objects_of(GOOGLE)["detect"]
    assert documented.context.split("\n") == [
        "pkg.mod.detect(data: bytes, *, strict: bool=True, limit=None, name='utf-8') -> str",
        "Finds the encoding of some bytes. The first one that fits wins.",
        "Added in version 3.7.",
        "Args:",
        "data: The bytes to look at. They are not changed.",
        "strict (bool, optional): Whether errors are raised. Defaults to True.",
        "Returns:",
        "The name of the encoding, e.g. one of Python's. Never empty.",
        "Raises:",
        "ValueError: If data is empty.",
        "The last paragraph stands below the examples.",
    ]
    assert facts_of(documented) == {
        ("purpose of a function", ""): "Finds the encoding of some bytes",
        ("version added", ""): "3.7",
        ("meaning of a parameter", "data"): "The bytes to look at",
        ("meaning of a parameter", "strict"): "Whether errors are raised",
        ("type of a parameter", "strict"): "bool",
        ("default of a parameter", "strict"): "True",
        ("default of a parameter", "name"): "'utf-8'",
        ("returns", ""): "The name of the encoding, e.g. one of Python's",
        ("exception", "if data is empty"): "ValueError",
        ("reason for an exception", "ValueError"): "If data is empty",
    }


def test_numpy_style():
    objects = objects_of(NUMPY)
    assert list(objects) == ["Reader", "Reader.mean"]
    assert objects["Reader"].context.split("\n") == [
        "class pkg.mod.Reader(Base)",
        "A reader of tables.",
        ".. deprecated:: 2.1",
    ]
    assert facts_of(objects["Reader"]) == {
        ("purpose of a class", ""): "A reader of tables",
        ("base class", ""): "Base",
        ("version deprecated", ""): "2.1",
    }
    mean = objects["Reader.mean"]
    assert mean.context.startswith("pkg.mod.Reader.mean(axis, size=4)\nReturn the mean")
    start, end = mean.sections["arguments"]
    assert mean.context[start:end] == (
        "axis : int or tuple, optional\nThe axis to go along, counted from zero.\n"
        "size : int\nThe number of rows."
    )
    assert facts_of(mean) == {
        ("type of a parameter", "axis"): "int or tuple",
        ("type of a parameter", "size"): "int",
        ("meaning of a parameter", "axis"): "The axis to go along, counted from zero",
        ("meaning of a parameter", "size"): "The number of rows",
        ("default of a parameter", "size"): "4",
        ("type of the result", ""): "ndarray",
    }, "what is returned is said in two ways, so it is not asked for"


def test_sphinx_style():
    assert facts_of(objects_of(SPHINX)["send"]) == {
        ("purpose of a function", ""): "Sends a text over the wire",
        ("meaning of a parameter", "text"): "What is sent",
        ("meaning of a parameter", "tries"): "How often it is tried",
        ("type of a parameter", "text"): "str",
        ("default of a parameter", "tries"): "3",
        ("returns", ""): "The number of bytes that were sent",
        ("exception", "if the line is dead"): "OSError",
        ("equivalent", ""): "wire.write",
    }


def test_questions_name_the_object_and_the_subject():
    [statement] = [
        s
        for s in find_statements(objects_of(NUMPY)["Reader.mean"])
        if s.template.kind == "default of a parameter"
    ]
    asked = {statement.question("Reader.mean", phrasing=number) for number in range(9)}
    assert asked == {
        "What is the default of size in Reader.mean?",
        "Which value does size of Reader.mean have by default?",
    }


def test_long_documentation_loses_whole_lines():
    whole = objects_of(GOOGLE)["detect"].context
    for max_words in range(10, len(whole.split()) + 1):
        context = objects_of(GOOGLE, max_words)["detect"].context
        assert whole.startswith(context)
        assert len(context.split()) <= max_words
        assert whole[len(context) :] == "" or whole[len(context)] == "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an array", True),
        ("-1", True),
        ("f(x[0])", True),
        ("f(x[0]", False),
        ("x) and y", False),
        ("...", False),
        ('a "quoted', False),
        ("word " * MAX_ANSWER_WORDS, False),
        (("word " * MAX_ANSWER_WORDS).strip(), True),
        (("word " * (MAX_ANSWER_WORDS + 1)).strip(), False),
    ],
)
def test_valid_answers(text, expected):
    assert is_answer(text) is expected


LINES = st.sampled_from(
    ["Args:", "Returns:", "Raises:", "Returns", "-------", "x: A number.", "x : int, optional"]
    + ["    Text. More of it, e.g. this", "ValueError: If x is 0.", "", ":return: It.", "``x``"]
    + [">>> x", ":param x: y", "Defaults to 3. Returns a list.", "  (x", "Parameters", "|a|"]
)


@given(st.lists(LINES, max_size=20), st.integers(5, 60))
def test_any_documentation_gives_valid_spans(lines, max_words):
    docstring = textwrap.indent("\n".join(lines), "    ")
    source = f'def f(x=1):\n    """{docstring}\n    """\n'
    for documented in documented_objects(source, "m", max_words=max_words):
        context = documented.context
        assert set(documented.sections) <= set(SECTIONS)
        for start, end in documented.sections.values():
            assert context[start - 1] == "\n"
            assert context[end : end + 1] in ("", "\n")
        for statement in find_statements(documented):
            start, end = statement.answer
            assert is_answer(context[start:end])


WORDS = ["red", "green", "blue", "black", "white", "brown", "yellow", "orange", "violet", "pink"]
WORDS += ["grey", "silver", "gold"]


@pytest.fixture
def sources(tmp_path):
    """Thirteen modules with three functions each, one of which all modules share."""
    directory = tmp_path / "sources"
    directory.mkdir()
    more = "This sentence only makes the text longer, so that it can be a context. " * 2
    for number, word in enumerate(WORDS):
        functions = [
            f'def paint_{word}(wall, coats={number}):\n    """Paints a {word} wall. {more}\n\n'
            f"    Args:\n      wall: The wall with {word} stones. All.\n"
            f'      coats (int): How often it is painted {word}. Once or more.\n    """\n',
            f'def wash_{word}(soap_{word}):\n    """Return the {word} wall of before. {more}\n\n'
            f'    Raises:\n      ValueError: If the {word} soap is dry.\n    """\n',
            f'def shared(brush="flat"):\n    """Cleans a brush in the usual way. {more}\n    """\n',
        ]
        (directory / f"{word}.py").write_text("\n".join(functions))
    (directory / "broken.py").write_text("def (:\n")
    (directory / "empty.py").write_text("")
    (directory / "notes.txt").write_text("no module")
    return directory


def questions_of(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield article["title"], paragraph["context"], question


def make(sources, tmp_path, name="out", **changes):
    settings = {"num_questions": 1000, "dev_fraction": 0.2, **changes}
    return run(Settings(str(tmp_path / name), str(sources), **settings))


def test_files_in_squad_format(sources, tmp_path):
    directory = make(sources, tmp_path)
    contexts, modules, ids = {}, {}, []
    for name in ("train.json", "dev.json"):
        squad = read_squad(
            directory / name, flag="train_file", version_2_with_negative=False, needs_answers=True
        )
        assert not squad.unusable
        content = json.loads((directory / name).read_text())
        assert (content["version"], content["about"]) == ("1.1", demo_questions.LABEL)
        rows = list(questions_of(directory / name))
        contexts[name] = {context for _, context, _ in rows}
        modules[name] = {title for title, _, _ in rows}
        for title, context, question in rows:
            assert title.endswith("(generated questions, only a smoke test)")
            [answer] = question["answers"]
            start, text = answer["answer_start"], answer["text"]
            assert context[start : start + len(text)] == text
            assert set(question) == {"id", "question", "answers"}
            ids.append(question["id"])
    assert len(ids) == len(set(ids))
    assert not contexts["train.json"] & contexts["dev.json"]
    assert not modules["train.json"] & modules["dev.json"]
    assert len(modules["train.json"] | modules["dev.json"]) == len(WORDS)
    shared = [c for part in contexts.values() for c in part if "Cleans a brush" in c]
    assert len(shared) == 1, "the same documentation is taken once"


def test_size_split_and_manifest(sources, tmp_path):
    directory = make(sources, tmp_path, num_questions=50)
    manifest = read_manifest(directory)
    train, dev = (sum(1 for _ in questions_of(directory / n)) for n in ("train.json", "dev.json"))
    assert train + dev == 50
    assert [entry.count for entry in manifest.outputs] == [train, dev]
    assert 0.2 * 50 <= dev <= 0.2 * 50 + 9, "at most a module too many"
    kinds = {k: n for k, n in manifest.counts.items() if k not in ("documents", "contexts")}
    assert sum(kinds.values()) == 50
    assert len(kinds) >= 5
    assert max(kinds.values()) - min(kinds.values()) <= 4, "no kind of question is most of them"


def test_same_input_and_seed_same_bytes(sources, tmp_path):
    def content(name, **changes):
        directory = make(sources, tmp_path, name, num_questions=40, **changes)
        return (directory / "train.json").read_bytes(), (directory / "dev.json").read_bytes()

    assert content("a") == content("b")
    assert content("a") != content("c", random_seed=2)


def test_second_run_is_skipped(sources, tmp_path, capsys):
    make(sources, tmp_path)
    make(sources, tmp_path)
    assert "up to date, skipped" in capsys.readouterr().err
    (sources / "red.py").write_text((sources / "blue.py").read_text().replace("blue", "cyan"))
    make(sources, tmp_path)
    assert "skipped" not in capsys.readouterr().err


def test_unanswerable_questions_are_not_answered_by_the_context(sources, tmp_path):
    directory = make(sources, tmp_path, unanswerable_fraction=0.25)
    rows = [row for name in ("train.json", "dev.json") for row in questions_of(directory / name)]
    assert json.loads((directory / "dev.json").read_text())["version"] == "v2.0"
    answered = collections.defaultdict(set)
    for _, context, question in rows:
        if not question["is_impossible"]:
            assert len(question["answers"]) == 1
            answered[context].add(question["question"])
    impossible = [(c, q) for _, c, q in rows if q["is_impossible"]]
    assert len(impossible) == pytest.approx(0.25 * len(rows), abs=2)
    for context, question in impossible:
        assert question["answers"] == []
        assert question["question"] not in answered[context]
        words = question["question"].rstrip("?").split()
        asked_about = {"coats", "brush", "wall"} & set(words)
        assert not asked_about & set(context.replace("(", " ").replace("=", " ").split())
    assert len({q["id"] for _, _, q in rows}) == len(rows)


def test_installed_packages(sources, tmp_path, monkeypatch):
    tests = sources / "tests"
    tests.mkdir()
    (tests / "more.py").write_text((sources / "red.py").read_text().replace("red", "never"))
    paths = dict.fromkeys(("stdlib", "purelib", "platlib"), str(sources))
    monkeypatch.setattr(demo_questions.sysconfig, "get_paths", lambda: paths)
    settings = Settings(str(tmp_path / "out"), num_questions=1000)
    directory = run(settings)
    titles = {title for title, _, _ in questions_of(directory / "train.json")}
    titles |= {title for title, _, _ in questions_of(directory / "dev.json")}
    assert {title.split()[0] for title in titles} == set(WORDS)
    before = read_manifest(directory).sha256
    (sources / "red.py").unlink()
    run(settings)
    assert read_manifest(directory).sha256 != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_questions": 1}, "--num_questions=1: give at least 2"),
        ({"dev_fraction": 1.0}, "--dev_fraction=1.0: give a number between 0 and 1"),
        ({"unanswerable_fraction": -0.1}, "--unanswerable_fraction=-0.1: give a number from 0"),
        ({"max_context_words": 30}, "--max_context_words=30: give more than 30"),
    ],
)
def test_bad_settings(sources, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        make(sources, tmp_path, **changes)


def test_too_little_documentation(sources, tmp_path):
    with pytest.raises(UserError, match=r"only [1-9]\d* questions about 1 modules"):
        make(sources / "red.py", tmp_path)
    with pytest.raises(UserError, match="only 0 questions about 0 modules"):
        make(sources / "notes.txt", tmp_path)
