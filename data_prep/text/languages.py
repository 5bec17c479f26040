"""Codes of languages, as in the names of Wikipedias: en, de, zh-yue."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

from bert_tf.util.errors import UserError

DEFAULT_LANGUAGE = "en"

# The codes of ISO 639-1 and of Wikipedias. A variety adds to one of them: de-at, sr-latn.
_CODES = (
    "aa ab ace ady ae af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay "
    "az azb ba ban bar bat-smg bbc bcl bdr be be-x-old bew bg bh bho bi bjn blk bm bn bo bpy br bs "
    "btm bug bxr ca cbk-zam cdo ce ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de dga "
    "din diq dsb dtp dty dv dz ee el eml en eo es et eu ext fa fat ff fi fiu-vro fj fo fon fr frp "
    "frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak haw he hi "
    "hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv ka "
    "kaa kab kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad "
    "lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lu lv lzh mad mai map-bms mdf mg mh mhr mi "
    "min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nd nds nds-nl "
    "ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc oj olo om or os pa pag pam pap pcd pcm "
    "pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rki rm rmy rn ro roa-rup roa-tara rsk ru rue rup "
    "rw sa sah sat sc scn sco sd se sg sgs sh shi shn si simple sk skr sl sm smn sn so sq sr srn "
    "ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to tok tpi tr "
    "trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi "
    "yo yue za zea zgh zh zh-classical zh-min-nan zh-yue zu"
)
_KNOWN = frozenset(_CODES.split())
_FORM = re.compile(r"[a-z]+(-[a-z0-9]+)*")
# What is given in place of a code: names, in English and their own, and similar codes.
_MISTAKEN = {
    "ar": "arabic",
    "bg": "bulgarian",
    "ca": "catalan català",
    "cs": "czech čeština cz cze ces",
    "da": "danish dansk dk dan",
    "de": "german deutsch ger deu",
    "el": "greek gr gre ell",
    "en": "english uk-en eng us gb",
    "es": "spanish español espanol sp spa",
    "et": "estonian eesti ee est",
    "fa": "persian farsi",
    "fi": "finnish suomi fin",
    "fr": "french français francais fra fre",
    "he": "hebrew iw heb",
    "hi": "hindi",
    "hr": "croatian hrvatski hrv",
    "hu": "hungarian magyar hun",
    "id": "indonesian",
    "is": "icelandic",
    "it": "italian italiano ita",
    "ja": "japanese jp jpn",
    "ko": "korean kr kor",
    "lt": "lithuanian",
    "lv": "latvian",
    "nl": "dutch nederlands dut nld",
    "no": "norwegian norsk nor",
    "pl": "polish polski pol",
    "pt": "portuguese português portugues por",
    "ro": "romanian",
    "ru": "russian rus",
    "sk": "slovak slk",
    "sl": "slovene slovenian slovenski slv",
    "sr": "serbian srp",
    "sv": "swedish svenska swe",
    "ta": "tamil",
    "te": "telugu",
    "th": "thai",
    "tr": "turkish türkçe tur",
    "uk": "ukrainian ukr ua",
    "vi": "vietnamese",
    "zh": "chinese zho cn",
}
# Wikipedias whose dumps name their language by another code.
_CODE_IN_DUMPS = {
    "als": "gsw",
    "bat-smg": "sgs",
    "bh": "bho",
    "fiu-vro": "vro",
    "no": "nb",
    "roa-rup": "rup",
    "simple": "en",
    "zh-classical": "lzh",
    "zh-min-nan": "nan",
    "zh-yue": "yue",
}


# Languages in Latin letters whose accents tell no words apart: nothing is lost without them.
_WITHOUT_ACCENTS = {
    "en": "they are in words from other languages: café, naïve",
    "ia": "they are in words from other languages",
    "id": "é shows beginners how e is spoken, and is not written otherwise",
    "ms": "as in Indonesian",
    "min": "as in Indonesian",
    "la": "macrons show how a vowel is spoken, and are not written otherwise",
    "rn": "tones are not written",
    "rw": "tones are not written",
    "sn": "tones are not written",
    "so": "it is written without accents",
    "ss": "tones are not written",
    "sw": "it is written without accents",
    "xh": "tones are not written",
    "zu": "tones are not written",
}


class Choice(NamedTuple):
    """A language, and a phrase that says where it comes from."""

    language: str
    origin: str


def is_language(code: str) -> bool:
    """Whether this is the code of a language, or of a variety of one."""
    is_known = code in _KNOWN or code.partition("-")[0] in _KNOWN
    return is_known and _FORM.fullmatch(code) is not None


def validate_language(code: str) -> None:
    """Raises UserError, with similar codes, for what is not the code of a language."""
    if is_language(code):
        return
    similar = similar_codes(code)
    hint = f"did you mean {' or '.join(similar)}? Give" if similar else "give"
    raise UserError(
        f"--language={code} is not the code of a language; {hint} one as in the address of a "
        "Wikipedia, such as en, de or zh-yue."
    )


def similar_codes(code: str) -> list[str]:
    """Codes that may be meant by another one, or by the name of a language."""
    spelt = code.lower().replace("_", "-")
    codes = {name: right for right, names in _MISTAKEN.items() for name in names.split()}
    codes |= {right: right for right in _KNOWN}
    is_found = spelt in codes or is_language(spelt)
    near = [spelt] if is_found else difflib.get_close_matches(spelt, codes, cutoff=0.7)
    return list(dict.fromkeys(codes.get(name, name) for name in near))


def choose_language(given: str | None, of_text: Collection[str]) -> Choice:
    """The language of a text.

    Args:
      given: --language, if it was given.
      of_text: the languages that the text is known to be in.

    Raises:
      UserError: none was given, and there are several.
    """
    if given is not None:
        return Choice(given, "--language")
    if len(of_text) > 1:
        raise UserError(
            f"--input_file: the text comes from dumps in several languages "
            f"({', '.join(sorted(of_text))}); prepare each by itself, or give the --language by "
            "whose rules all sentences should end."
        )
    if of_text:
        return Choice(next(iter(of_text)), "the language of the dump")
    return Choice(DEFAULT_LANGUAGE, "the default; --language names another")


def accents_tell_words_apart(language: str | None) -> bool:
    """Whether a text loses words without its accents; so does one in an unknown language."""
    return language is None or _main(language) not in _WITHOUT_ACCENTS


def contradicts(language: str, of_text: Collection[str]) -> bool:
    """Whether the text is known to be in other languages only."""
    return bool(of_text) and _main(language) not in map(_main, of_text)


def _main(code: str) -> str:
    return _CODE_IN_DUMPS.get(code, code).partition("-")[0]
