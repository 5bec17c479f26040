"""Words that came back most often although the field has others: see CONTRIBUTING.md."""

import re

import pytest

from tests.helpers.programs import ROOT

INSTEAD = {
    r"learn\w* (?:\w+ )?by heart": "memorize",
    r"goes on (?:at|where)": "resumes",
    r"is no (?:address|encoding|text in)": "is not an ...",
    r"are no (?:articles|TFRecords)": "are not ...",
    r"says nothing of": "does not cover",
    r"[Ss]hares? out": "shard",
    r"names \w+ \w+ lead nowhere": "are streamed, never written",
    r'"""(?:Those|That) of ': "a verb, or the name of the thing",
}
SOURCES = [
    path
    for pattern in ("bert_tf/**/*.py", "data_prep/**/*.py", "docs/**/*.md", "README.md", "*.py")
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
