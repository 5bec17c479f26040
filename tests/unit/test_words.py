"""Words that came back most often although the field has others: see CONTRIBUTING.md."""

import re

import pytest

from tests.helpers.programs import ROOT

INSTEAD = {
    r"learn\w* (?:\w+ )?by heart": "memorize",
    r"\bgo(?:es)? on (?:at|from|in|where|with)\b": "resumes, continues",
    r"(?<!here )\b(?:is|are) no (?!better|difference|faster|larger|longer|more|reason)": "is not a",
    r"\banew\b": "again, from scratch",
    r"\b(?:record|row|sentence|document|token)s? a (?:line|rank|row)\b": "one record per line",
    r"\bbeside (?:the|them|an?|each|its?|their|those)\b": "next to",
    r"says nothing of": "does not cover",
    r"[Ss]hares? out": "shard",
    r"names \w+ \w+ lead nowhere": "are streamed, never written",
    r'"""(?:Those of |That of |Of |As (?::|``))': "a verb, or the name of the thing; Like",
}
SOURCES = [
    path
    for pattern in (
        *(f"{package}/**/*.py" for package in ("bert_tf", "data_prep", "tools", "benchmarks")),
        "docs/**/*.md",
        "README.md",
        "*.py",
    )
    for path in ROOT.glob(pattern)
    if "generated" not in path.parts  # from the declarations, which are among these
]


@pytest.mark.parametrize("words", INSTEAD)
def test_the_terms_of_the_field(words):
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(words, line)
    ]
    assert not found, f"write {INSTEAD[words]!r} instead"
