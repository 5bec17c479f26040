from __future__ import annotations

import subprocess
import sys

from benchmarks.sentence_bounds import Score, read_paragraphs, score
from tests.helpers.programs import ROOT, environment

TREEBANK = """\
# newdoc id = a
# text = Eine Überschrift
1\tEine\t_
# text = Es war im 19. Jahrhundert.
# text = 2014 kam er.
# newpar
# text = Dann ging er.
"""


def test_paragraphs_end_where_the_treebank_has_them_and_after_headings(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(TREEBANK + "# text = Ja.\n" * 12)
    assert [len(paragraph) for paragraph in read_paragraphs(path)] == [0, 1, 2, 10, 3]


def test_bounds_are_compared_whatever_the_blanks():
    found = score([["A b.", "C d.", "E."]], lambda text: ["A b. C ", " d. ", "E."])
    assert found == Score(marked=2, found=2, right=1)
    assert (found.precision, found.recall, found.f1) == (0.5, 0.5, 0.5)


def test_scores_of_both_are_printed(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(TREEBANK)
    command = [sys.executable, "-m", "benchmarks.sentence_bounds", "--language=de"]
    done = subprocess.run(
        [*command, f"--input_file={path}"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 bounds, sentencex: precision 0.00 %, recall 0.00 %" in done.stdout
    assert "1 bounds, ours: precision 100.00 %, recall 100.00 %, F1 100.00 %" in done.stdout
