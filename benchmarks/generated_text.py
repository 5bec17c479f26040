"""Generates text of any size for measurements, with an endless supply of words by Zipf's law.

The text is meaningless, but costs as much to process as real text: a few words are frequent, and
new ones keep occurring however long it is, so that caches of words fill up. Two of a hundred
documents are copies of earlier ones, one of them with a few changed words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

_WORDS_AT_ONCE = 500_000
_EXPONENT = 1.3  # a fortieth of the words are rarer than the 100,000 most frequent ones
_RAREST = 1 << 40
_SYLLABLES = [a + b for a, b in itertools.product("bcdfghklmnprstvwyzjx", "aeiou")]
_WORDS_OF_SENTENCE = (6, 30)
_SENTENCES_OF_DOCUMENT = (4, 60)
_SHARE_OF_COPIES = 0.02


def documents(num_bytes: int, seed: int = 0) -> Iterator[str]:
    """Documents with a total of at least ``num_bytes`` bytes, each a paragraph of ASCII text."""
    generator = np.random.default_rng(seed)
    earlier: list[str] = []
    written = 0
    while True:
        for document in _some_documents(generator):
            if earlier and generator.random() < _SHARE_OF_COPIES:
                copied = earlier[generator.integers(len(earlier))]
                document = copied if generator.random() < 0.5 else f"{document[:40]}. {copied}"
            elif len(earlier) < 1000:
                earlier.append(document)
            yield document
            written += len(document)
            if written >= num_bytes:
                return


def _some_documents(generator: np.random.Generator) -> Iterator[str]:
    ranks = np.minimum(generator.zipf(_EXPONENT, _WORDS_AT_ONCE), _RAREST)
    different, places = np.unique(ranks, return_inverse=True)
    words = np.array(list(map(word, different.tolist())), object)[places].tolist()
    lengths = generator.integers(*_WORDS_OF_SENTENCE, _WORDS_AT_ONCE // _WORDS_OF_SENTENCE[0])
    ends = np.cumsum(lengths)
    ends = ends[ends <= len(words)].tolist()
    sentences = [
        " ".join(words[start:end]).capitalize() + "." for start, end in zip([0, *ends], ends)
    ]
    start = 0
    while start < len(sentences):
        end = start + int(generator.integers(*_SENTENCES_OF_DOCUMENT))
        yield " ".join(sentences[start:end])
        start = end


def word(rank: int) -> str:
    """The word with a given frequency rank, 1 being the most frequent; rarer words are longer."""
    syllables = []
    rest = rank + len(_SYLLABLES) - 1  # at least two syllables, about the length of English words
    while rest:
        rest, digit = divmod(rest, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(syllables)
