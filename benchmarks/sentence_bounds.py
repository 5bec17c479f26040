"""Scores the sentence boundaries found by data_prep.sentences against those in a treebank.

    python -m benchmarks.sentence_bounds --language=de \
        --input_file=de_gsd-ud-dev.conllu,de_gsd-ud-test.conllu

The files are CoNLL-U, as published by Universal Dependencies. Consecutive sentences are joined to
paragraphs of at most ten. A paragraph also ends where the treebank ends one, and after a sentence
without final punctuation, such as a heading, whose boundary no rule can find. For each file, the
program prints precision, recall and F1 of the boundaries inside paragraphs, for sentencex alone and
with data_prep.text.sentence_rules.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable, NamedTuple

import sentencex
from absl import flags

from benchmarks.script import REQUIRED, run_benchmark
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_input_files
from data_prep.text.languages import validate_language
from data_prep.text.sentence_splitting import split_sentences

_SENTENCES_A_PARAGRAPH = 10
_FINAL_PUNCTUATION = re.compile(r"[.!?…][.!?…\"'’”“»«)\]]*$")
_TEXT = "# text = "


class Score(NamedTuple):
    """Numbers of boundaries in the treebank, of those found, and of those in both."""

    marked: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Fraction of the found boundaries that are right."""
        return self.right / max(1, self.found)

    @property
    def recall(self) -> float:
        """Fraction of the marked boundaries that were found."""
        return self.right / max(1, self.marked)

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 2 * self.right / max(1, self.found + self.marked)


def read_paragraphs(path: Path) -> Iterator[list[str]]:
    """The sentences of each paragraph in a CoNLL-U file."""
    paragraph: list[str] = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith(("# newdoc", "# newpar")):
                yield paragraph
                paragraph = []
            elif line.startswith(_TEXT):
                sentence = " ".join(line[len(_TEXT) :].split())
                paragraph.append(sentence)
                is_full = len(paragraph) == _SENTENCES_A_PARAGRAPH
                if is_full or not _FINAL_PUNCTUATION.search(sentence):
                    yield paragraph
                    paragraph = []
    yield paragraph


def score(paragraphs: Iterable[list[str]], split: Callable[[str], Iterable[str]]) -> Score:
    """Compares the boundaries found by ``split`` with those between the sentences."""
    total = Score(0, 0, 0)
    for paragraph in paragraphs:
        marked, found = _bounds(paragraph), _bounds(split(" ".join(paragraph)))
        counts = map(len, (marked, found, marked & found))
        total = Score(*map(sum, zip(total, counts)))
    return total


def _bounds(sentences: Iterable[str]) -> set[int]:
    """Boundaries as counts of non-space characters; splitters treat spaces differently."""
    lengths = [len("".join(sentence.split())) for sentence in sentences]
    return set(itertools.accumulate(lengths[:-1])) - {0, sum(lengths)}


def measure() -> None:
    """Prints the scores of each file."""
    values = flags.FLAGS
    validate_language(values.language)
    for path in expand_input_files(values.input_file, flag="input_file"):
        paragraphs = list(read_paragraphs(path))
        splitters = {
            "sentencex": lambda text: sentencex.segment(values.language, text),
            "ours": lambda text: split_sentences(text, values.language),
        }
        for name, split in splitters.items():
            found = score(paragraphs, split)
            if not found.marked:
                raise UserError(
                    f'--input_file: {path} has no sentence boundaries; give CoNLL-U with "{_TEXT}".'
                )
            print(
                f"{path.name}: {found.marked:,} bounds, {name}: precision "
                f"{100 * found.precision:.2f} %, recall {100 * found.recall:.2f} %, "
                f"F1 {100 * found.f1:.2f} %"
            )


FLAGS = {
    "input_file": (REQUIRED, "Treebanks in CoNLL-U: comma-separated files and globs."),
    "language": (REQUIRED, "Code of their language, such as de."),
}

if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
