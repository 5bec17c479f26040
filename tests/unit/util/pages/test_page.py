"""Pages with hostile text, and the data of examples."""

import errno
import math
import re
from html.parser import HTMLParser

import pytest

from bert_tf.util.errors import UserError
from bert_tf.util.pages.page import Example, Examples, Section, Table, badge, hint, mark, write_page
from tests.helpers.pages import data_of

HOSTILE = (
    "</script><script>alert(1)</script> <b>&amp; \"quoted\" 'single' \u2028\u2029 \\u003c $page"
)


def example(number=0, **changes):
    fields = {
        "id": f"q{number}",
        "heading": "What?",
        "text": "A \U0001f600 text",
        "marks": {"true": [(2, 3)], "predicted": []},
        "answers": {"true": ["\U0001f600"], "predicted": []},
        "facts": ["wrong"],
        "filters": {"Outcome": "wrong"},
        "orders": {"worst first": 0.0},
        "candidates": [("", 0.5)],
    }
    return Example(**{**fields, **changes})


def page_of(tmp_path, *parts, title="A page"):
    write_page(tmp_path / "page.html", title, parts)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each element by tag."""

    def __init__(self, page):
        super().__init__()
        self.found, self.texts, self._open = [], {}, ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        self.texts.setdefault(self._open, []).append(data)


def test_hostile_text_stays_text(tmp_path):
    section = Section(
        HOSTILE,
        figures={HOSTILE: HOSTILE},
        details={HOSTILE: HOSTILE},
        sentences=[HOSTILE],
        tables=[Table(HOSTILE, (HOSTILE,), [(HOSTILE, HOSTILE)], filter_name=HOSTILE)],
        legend=[mark(HOSTILE)],
        cards=[hint(HOSTILE) + mark(HOSTILE, "true", "predicted") + badge(HOSTILE, "wrong")],
    )
    row = example(
        id=HOSTILE,
        heading=HOSTILE,
        text=HOSTILE,
        answers={"true": [HOSTILE], "predicted": []},
        facts=[HOSTILE],
        filters={HOSTILE: HOSTILE},
        orders={HOSTILE: 0},
        candidates=[(HOSTILE, 0.5)],
    )
    page = page_of(tmp_path, section, Examples(HOSTILE, [row]), title=HOSTILE)
    assert "\u2028" not in page.split('id="data">')[1].split("</script>")[0]
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 2  # the data and the page's script
    tags = ("title", "h1", "dt", "dd", "caption", "th", "a", "td", "mark", "strong", "option")
    for tag in tags:
        assert HOSTILE in elements.texts[tag], tag
    assert elements.texts["h2"] == [HOSTILE] * 2
    assert elements.texts["li"].count(HOSTILE) == 2
    assert elements.texts["span"].count(HOSTILE) == 3
    data = data_of(page)
    assert data["texts"] == [HOSTILE]
    [found] = data["rows"]
    assert [found["id"], found["heading"], *found["facts"], *found["answers"]["true"]] == (
        [HOSTILE] * 4
    )
    assert found["filters"] == {HOSTILE: HOSTILE}
    assert found["candidates"] == [[HOSTILE, 0.5]]


def test_texts_are_stored_once(tmp_path):
    rows = [example(n, text=f"text {n % 3}", marks={"true": [(0, n % 4)]}) for n in range(12)]
    data = data_of(page_of(tmp_path, Examples("Questions", rows)))
    assert data["texts"] == ["text 0", "text 1", "text 2"]
    for row, found in zip(rows, data["rows"]):
        assert data["texts"][found["text"]] == row.text
        assert found["id"] == row.id
        assert found["marks"] == {"true": [list(row.marks["true"][0])]}


def test_a_lone_surrogate_is_replaced(tmp_path):
    examples = Examples("Questions", [example(heading="\udc00?")])
    page = page_of(tmp_path, examples, title="a\ud800b")
    assert '<h1 dir="auto">a?b</h1>' in page
    assert data_of(page)["rows"][0]["heading"] == "??"


def test_numbers_that_json_cannot_express(tmp_path):
    row = example(candidates=[("mill", math.nan)], orders={"first": math.inf})
    [found] = data_of(page_of(tmp_path, Examples("Questions", [row])))["rows"]
    assert found["candidates"] == [["mill", None]]
    assert found["orders"] == {"first": None}


def test_nothing_is_fetched(tmp_path):
    table = Table("Outcome", ("outcome",), [("wrong",)], filter_name="Outcome")
    page = page_of(tmp_path, Section("Results", tables=[table]), Examples("Q", [example()]))
    for _, attributes in Elements(page).found:
        for name in ("src", "href", "action", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))
    assert not re.search(r"url\(|@import|https?://|\bimport\b|fetch\(", page)
    assert "default-src 'none'" in page
    assert re.search(r"script-src 'sha256-[\w+/]+=*'", page)


def test_an_empty_section_is_its_heading(tmp_path):
    page = page_of(tmp_path, Section("Nothing"))
    tags = [tag for tag, _ in Elements(page).found]
    assert tags[-3:] == ["main", "section", "h2"]
    assert "script" not in page


def test_the_page_is_written_atomically(tmp_path, monkeypatch):
    page_of(tmp_path, title="first")

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="no space"):
        page_of(tmp_path, title="second")
    assert "first" in (tmp_path / "page.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
