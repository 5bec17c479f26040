"""The site that ``make docs`` builds: complete, without warnings, and of use without a network."""

import html.parser
import importlib.util
import re
import subprocess
import sys
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest

from tests.helpers.programs import ROOT

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
        reason="the documentation's packages are not installed: make setup, or pip install .[docs]",
    ),
]


class Links(html.parser.HTMLParser):
    """What a page links to and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.loaded = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "a" and attrs.get("href"):
            self.targets.append(attrs["href"])
        if tag in ("script", "img", "iframe") and attrs.get("src"):
            self.loaded.append(attrs["src"])
        if tag == "link" and attrs.get("href") and attrs.get("rel") != "canonical":
            self.loaded.append(attrs["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The directory of the built site; warnings, which include broken links, are errors."""
    path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--fresh-env",
         "--doctree-dir", path / "doctrees", ROOT / "docs", path / "html"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path / "html"


def pages_of(site):
    pages = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    return {name: Links(path.read_text(encoding="utf-8")) for name, path in pages.items()}


def resolved(page, target):
    """The page of the site that a link leads to."""
    parts = []
    for part in (PurePosixPath(page).parent / urlsplit(target).path).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def test_every_page_is_reached_from_the_index(site):
    pages = pages_of(site)
    reached, open_ends = {"index.html"}, ["index.html"]
    while open_ends:
        page = open_ends.pop()
        for target in pages[page].targets:
            found = resolved(page, target) if not urlsplit(target).scheme else None
            if found in pages and found not in reached:
                reached.add(found)
                open_ends.append(found)
    sources = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    assert {path.with_suffix(".html").as_posix() for path in sources} <= reached


def test_nothing_is_loaded_from_elsewhere(site):
    for page, links in pages_of(site).items():
        assert not [url for url in links.loaded if urlsplit(url).netloc], page
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""(@import|url\()\s*["']?(https?:)?//""", text), path


def test_the_search_finds_pages_and_flags(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for name in ("start/tutorial", "howto/data", "reference/generated/commands/run_pretraining"):
        assert f'"{name}"' in index
    assert "--learning_rate" in index
    assert (site / "search.html").is_file()


def test_the_search_ranks_pages_above_flags_that_contain_the_words(site):
    program = (site / "_static/language_data.js").read_text(encoding="utf-8")
    assert (ROOT / "docs/_static/search_scores.js").read_text(encoding="utf-8") in program
