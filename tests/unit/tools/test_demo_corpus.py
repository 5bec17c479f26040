"""The corpus of installed documentation: what counts as prose, determinism, limits."""

from __future__ import annotations

import ast

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from tools.demo import corpus as demo_corpus
from tools.demo.corpus import Settings, run
from tools.demo.docstrings import description_of_metadata, docstrings_of_module, prose_paragraphs

SENTENCE = "This function returns the mean of all the values in a list."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTENCE, [SENTENCE]),
        (f"{SENTENCE}\n\n    {SENTENCE[:-1]} too.\n", [SENTENCE, SENTENCE[:-1] + " too."]),
        ("The lines of one\nparagraph are joined by blanks.", None),
        ("Too short.", []),
        ("A heading of several words\n==========================\n", []),
        (">>> mean([1, 2, 3]) is a call that gives two\n2.0", []),
        ("Example of a table with words:\n\n| a | b | c |\n|---|---|---|\n", []),
        (f"```\n{SENTENCE}\n```\n{SENTENCE}", [SENTENCE]),
        ("x = foo(bar)[1] + baz{2} & 0xFF; y += 1 if a else b for c in d.", []),
        ("Reads :class:`~a.b.Reader` objects and ``None`` from the *old* file.", None),
        ("See [the guide](https://x.org/a) for more about how it works.", None),
        ("Args:\n  x: The first of the two numbers to be added.\n  y: Also.", None),
        ("values : array_like\n    The values whose mean is wanted by the caller.", None),
        ("- The first item of the list says something.\n- The second one says\n  something.", None),
        ("A sentence with a bell \x07 in the middle of all of its words.", []),
        ("nothing but lower case words and no mark at the end of it at all", None),
        ("nothing but lower case words and no mark", []),
    ],
)
def test_prose(text, expected):
    special = {
        "The lines": ["The lines of one paragraph are joined by blanks."],
        "Reads": ["Reads a.b.Reader objects and None from the old file."],
        "See": ["See the guide for more about how it works."],
        "Args": ["The first of the two numbers to be added."],
        "values": ["The values whose mean is wanted by the caller."],
        "- The": [
            "The first item of the list says something.",
            "The second one says something.",
        ],
        "nothing": [text],
    }
    if expected is None:
        expected = next(value for key, value in special.items() if text.startswith(key))
    assert prose_paragraphs(text) == expected


MODULE = '''
"""Of the module."""
import os
VALUE = """not a docstring"""
class Thing:
    """Of the class."""
    def method(self):
        """Of the method."""
        def inner():
            r"""Of the inner \\d function."""
    if os.name:
        async def other(self):
            "Of the other."
try:
    pass
except OSError:
    def late():
        """Of the late one."""
'''


def test_docstrings_in_the_order_of_the_source():
    names = ["module", "class", "method", "inner \\d function", "other", "late one"]
    assert docstrings_of_module(MODULE) == [f"Of the {name}." for name in names]
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(MODULE)) if isinstance(node, owners)]
    assert sorted(docstrings_of_module(MODULE)) == sorted(map(ast.get_docstring, nodes))


def test_description_comes_after_the_headers():
    assert description_of_metadata("Name: x\nVersion: 1\n\nThe text.\n\nMore.") == (
        "The text.\n\nMore."
    )


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A standard library and packages of a few files."""
    for key in ("stdlib", "purelib"):
        for package in range(8):
            directory = tmp_path / key / f"package{package}"
            directory.mkdir(parents=True)
            for module in range(5):
                text = " ".join(
                    f"Sentence {key} {package} {module} says that number {n} is here."
                    for n in ("one", "two", "three", "four", "five")
                )
                (directory / f"m{module}.py").write_text(f'"""{SENTENCE}\n\n{text}\n"""\n')
    (tmp_path / "purelib/package1/broken.py").write_text("def (:\n")
    (tmp_path / "purelib/package1/latin.py").write_bytes(b'"""caf\xe9"""')
    tests = tmp_path / "purelib/package1/tests"
    tests.mkdir()
    (tests / "m.py").write_text(f'"""{"Never taken from the tests of a package. " * 9}"""')
    dist = tmp_path / "purelib/package1.dist-info"
    dist.mkdir()
    readme = " ".join(f"The readme has a line number {n} for you." for n in ("one", "two", "six"))
    (dist / "METADATA").write_text(f"Name: package1\n\n# Title\n\n{readme * 2}\n")
    for package in range(8):
        add_record(tmp_path / "purelib", f"package{package}")
    monkeypatch.setattr(demo_corpus.sysconfig, "get_paths", lambda: {"stdlib": tmp_path / "stdlib"})
    monkeypatch.setattr(demo_corpus, "PACKAGES", ("package0",))
    monkeypatch.syspath_prepend(tmp_path / "purelib")
    return tmp_path


def add_record(site, name, *, version="1", needs=()):
    """What pip writes beside a package; each needs the next one, and the last one none."""
    info = site / f"{name}.dist-info"
    info.mkdir(exist_ok=True)
    metadata = info / "METADATA"
    text = metadata.read_text() if metadata.exists() else f"Name: {name}\n\n"
    needs = [*needs, f"package{int(name[7:]) + 1}"] if name[7:].isdigit() else needs
    head = "".join(f"Requires-Dist: {need}\n" for need in needs)
    metadata.write_text(f"Version: {version}\n{head}{text}")
    files = [path for path in (site / name).rglob("*") if path.is_file()]
    (info / "RECORD").write_text(
        "".join(f"{path.relative_to(site)},,\n" for path in [*files, metadata])
    )


def test_one_document_per_module_and_each_paragraph_once(installation):
    path = run(Settings(str(installation / "out"), num_workers=1))
    documents = path.read_text().split("\n\n")[:-1]
    assert len(documents) == 2 * 8 * 5 + 1
    assert path.read_text().count(SENTENCE) == 1
    paragraphs = [line for document in documents for line in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert "Never taken" not in path.read_text()
    assert sum("The readme has" in document for document in documents) == 1
    counts = read_manifest(installation / "out").counts
    assert counts == {"documents": 81, "unreadable_files": 2}


def test_output_does_not_depend_on_the_number_of_workers(installation):
    contents = {
        run(Settings(str(installation / f"out{number}"), num_workers=number)).read_bytes()
        for number in (1, 2, 3)
    }
    assert len(contents) == 1


def test_limit_cuts_between_documents(installation):
    whole = run(Settings(str(installation / "out"), num_workers=1)).read_text()
    part = run(Settings(str(installation / "part"), max_megabytes=0.01, num_workers=1)).read_text()
    assert whole.startswith(part)
    assert 9_000 < len(part) <= 10_000
    assert part.endswith("\n\n")


def test_second_run_is_skipped_until_a_package_changes(installation, capsys):
    settings = Settings(str(installation / "out"), num_workers=1)
    run(settings)
    run(settings)
    assert "up to date, skipped" in capsys.readouterr().err
    metadata = installation / "purelib/package3.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1", "Version: 2"))
    run(settings)
    assert "skipped" not in capsys.readouterr().err


def test_what_else_is_installed_changes_nothing(installation, capsys):
    """Neither a package that none of these needs, nor this project itself."""
    settings = Settings(str(installation / "out"), num_workers=1)
    before = run(settings).read_bytes()
    for name in ("bert_tf", "another"):
        directory = installation / "purelib" / name
        directory.mkdir()
        (directory / "m.py").write_text(f'"""{SENTENCE} {"It is about other things. " * 20}"""')
        add_record(installation / "purelib", name, needs=["package0"])
    metadata = installation / "purelib/package3.dist-info/METADATA"
    metadata.write_text(f"Requires-Dist: another; extra == 'more'\n{metadata.read_text()}")
    assert run(settings).read_bytes() == before
    assert "up to date, skipped" in capsys.readouterr().err
    other = run(Settings(str(installation / "anew"), num_workers=1))
    assert other.read_bytes() == before


def test_no_documentation(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_corpus.sysconfig, "get_paths", lambda: {"stdlib": tmp_path / "none"})
    monkeypatch.setattr(demo_corpus, "PACKAGES", ())
    with pytest.raises(UserError, match="no documentation was found"):
        run(Settings(str(tmp_path / "out"), num_workers=1))
    with pytest.raises(UserError, match="--max_megabytes=0 must be greater than 0"):
        run(Settings(str(tmp_path / "out"), max_megabytes=0))
