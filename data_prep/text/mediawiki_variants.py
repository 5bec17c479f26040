"""MediaWiki's marks for languages that are written in several ways: ``-{zh-cn:网络;zh-tw:網路}-``.

A wiki shows one of the texts, depending on the reader's choice, and converts all others by tables
that are not read here: text without marks stays as it was written. The rules are those of
https://www.mediawiki.org/wiki/Writing_systems/Syntax, in the order of ConverterRule.php.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

# A wiki's language -> its variants, each with those that stand in for it, best first. The first is
# what a wiki shows to readers who have chosen none.
_CHINESE = {
    "zh": "zh-hans zh-hant zh-cn zh-tw zh-hk zh-sg zh-mo zh-my",
    "zh-hans": "zh-cn zh-sg zh-my",
    "zh-hant": "zh-tw zh-hk zh-mo",
    "zh-cn": "zh-hans zh-sg zh-my",
    "zh-sg": "zh-my zh-hans zh-cn",
    "zh-my": "zh-sg zh-hans zh-cn",
    "zh-tw": "zh-hant zh-hk zh-mo",
    "zh-hk": "zh-mo zh-hant zh-tw",
    "zh-mo": "zh-hk zh-hant zh-tw",
}
_KAZAKH = {
    "kk": "kk-cyrl kk-kz kk-latn kk-tr kk-arab kk-cn",
    "kk-cyrl": "kk-kz kk",
    "kk-latn": "kk-tr kk",
    "kk-arab": "kk-cn kk",
    "kk-kz": "kk-cyrl kk",
    "kk-tr": "kk-latn kk",
    "kk-cn": "kk-arab kk",
}
_SERBIAN = {
    "sr": "sr-ec sr-cyrl sr-el sr-latn",
    "sr-ec": "sr-cyrl sr",
    "sr-el": "sr-latn sr",
    "sr-cyrl": "sr-ec sr",
    "sr-latn": "sr-el sr",
}


def _pair(language: str, first: str, second: str) -> dict[str, str]:
    return {language: f"{first} {second}", first: language, second: language}


_LANGUAGES: dict[str, Mapping[str, str]] = {
    "ban": _pair("ban", "ban-latn", "ban-bali"),
    "crh": _pair("crh", "crh-latn", "crh-cyrl"),
    "gan": _pair("gan", "gan-hans", "gan-hant"),
    "iu": _pair("iu", "ike-cans", "ike-latn"),
    "kk": _KAZAKH,
    "ku": _pair("ku", "ku-latn", "ku-arab"),
    "mni": _pair("mni", "mni-mtei", "mni-beng"),
    "sh": _pair("sh", "sh-latn", "sh-cyrl"),
    "shi": _pair("shi", "shi-latn", "shi-tfng"),
    "sr": _SERBIAN,
    "tg": _pair("tg", "tg-cyrl", "tg-latn"),
    "tly": _pair("tly", "tly-latn", "tly-cyrl"),
    "uz": _pair("uz", "uz-latn", "uz-cyrl"),
    "wuu": _pair("wuu", "wuu-hans", "wuu-hant"),
    "zgh": _pair("zgh", "zgh-tfng", "zgh-latn"),
    "zh": _CHINESE,
}
VARIANTS = tuple(sorted({name for found in _LANGUAGES.values() for name in found}))

# What -{N|zh-tw}- shows.
_NAMES = {
    **{"zh": "中文", "zh-hans": "中文（简体）", "zh-hant": "中文（繁體）"},
    **{"zh-cn": "中文（中国大陆）", "zh-tw": "中文（臺灣）", "zh-hk": "中文（香港）"},
    **{"zh-mo": "中文（澳門）", "zh-sg": "中文（新加坡）", "zh-my": "中文（马来西亚）"},
    **{"sr": "српски / srpski", "sr-ec": "српски (ћирилица)", "sr-el": "srpski (latinica)"},
    **{"sr-cyrl": "српски (ћирилица)", "sr-latn": "srpski (latinica)"},
    **{"kk": "қазақша", "kk-cyrl": "қазақша (кирил)", "kk-latn": "qazaqşa (latın)"},
    **{"ku": "kurdî", "ku-latn": "kurdî (latînî)", "uz-latn": "oʻzbekcha", "uz-cyrl": "ўзбекча"},
    **{"tg": "тоҷикӣ", "tg-cyrl": "тоҷикӣ", "tg-latn": "tojikī", "ike-cans": "ᐃᓄᒃᑎᑐᑦ"},
    **{"ike-latn": "inuktitut", "gan": "贛語", "gan-hans": "赣语（简体）"},
    **{"gan-hant": "贛語（繁體）"},
}
_FLAGS = frozenset("ATRDHNS+-")
_FLAG_PART = re.compile(r"([^\[\]{}<>|]*)\|")
_ENTITY_END = re.compile(r"(&#?[a-zA-Z0-9]+);")
# In place of the semicolon that ends an entity. It cannot be in a page.
_OF_ENTITY = "\x05"
_TOKEN = re.compile(
    r"<nowiki\s*/>|<nowiki\b[^>]*>.*?</nowiki\s*>|-\{(?:(?!\{)|(?=\{\{(?!\{)))|\{\{|\}\}|\}-",
    re.DOTALL | re.IGNORECASE,
)
_CLOSES = {"{{": "}}", "-{": "}-"}
_DEEPEST = 10  # MediaWiki's own limit


def variants_of(language: str) -> tuple[str, ...]:
    """The variants of a wiki's language, such as ``zh``; empty if it has a single form."""
    return tuple(_LANGUAGES.get(language.partition("-")[0], ()))


def in_one_variant(markup: str, language: str, variant: str = "") -> str:
    """Markup without the marks: in their place is what the wiki shows.

    ``variant`` is a reader's choice; by default, and in a wiki that does not have it, the first of
    the language. Markup of a language with one form stays as it is.
    """
    known = _LANGUAGES.get(language)
    if known is None or "-{" not in markup:
        return markup
    chosen = variant if variant in known else language
    order = tuple(dict.fromkeys((chosen, *known[chosen].split(), *known)))
    parts: list[str] = []
    opened: list[tuple[str, int]] = []  # marks, and where they are among the parts
    position = depth = 0
    for token in _TOKEN.finditer(markup):
        mark = token[0]
        parts += (markup[position : token.start()], mark)
        position = token.end()
        if mark == "{{" or (mark == "-{" and depth < _DEEPEST):
            opened.append((mark, len(parts) - 1))
            depth += mark == "-{"
        elif opened and mark == _CLOSES[opened[-1][0]]:
            mark, begin = opened.pop()
            if mark == "-{":
                depth -= 1
                parts[begin:] = [_shown("".join(parts[begin + 1 : -1]), order)]
    return "".join([*parts, markup[position:]])


def _shown(inside: str, order: tuple[str, ...]) -> str:
    """What stands in place of ``-{inside}-``; ``order`` has all variants, the wanted one first."""
    flags, text = _flags_of(inside, order)
    if "R" in flags:
        return text
    if "N" in flags:
        return _NAMES.get(text.strip(), text.strip())
    if flags & {"-", "H"}:
        return ""
    if not flags <= _FLAGS:  # the variants for which the text is meant
        return text
    rules = list(_rules(text, order))
    if "D" in flags:
        described = (f"{_NAMES.get(rule.variant, rule.variant)}：{rule.text}；" for rule in rules)
        return "".join(described) if flags <= {"D", "S"} else ""
    if flags and not flags & {"A", "S"}:  # for a title or for other text
        return ""
    # What has no rule is one text for all.
    return min(rules, key=lambda rule: rule.rank).text if rules else text


def _flags_of(inside: str, variants: Collection[str]) -> tuple[set[str], str]:
    """The flags before the first bar, those that are valid, and the text after it."""
    found = _FLAG_PART.match(inside)
    if found is None:
        return set(), inside
    names = {name.strip() for name in found[1].split(";")}
    return names & {*_FLAGS, *variants}, inside[found.end() :]


class _Rule(NamedTuple):
    """The text for a variant; ``rank`` is lowest for the one to show.

    One-way rules, ``from=>zh-cn:to``, are for other text and come last.
    """

    variant: str
    text: str
    rank: tuple[bool, int]


def _rules(text: str, order: tuple[str, ...]) -> Iterator[_Rule]:
    """The rules in a mark; none if it has text for something else than a variant."""
    names = "|".join(sorted(order, key=len, reverse=True))
    begin = rf"\s*(?:([^;:]*?)=>)?\s*({names})\s*:"
    # A semicolon of an entity, and one without a variant behind it, separate nothing.
    text = _ENTITY_END.sub(rf"\1{_OF_ENTITY}", text)
    parts = re.split(rf";(?=\s*(?:[^;:]*?=>)?\s*(?:{names})\s*:|\s*$)", text, flags=re.IGNORECASE)
    parsed = [(part, re.match(begin, part, re.IGNORECASE)) for part in parts if ":" in part]
    if not all(found for _, found in parsed):
        return
    for part, found in parsed:
        if found is None:
            continue
        shown = part[found.end() :].replace(_OF_ENTITY, ";").strip()
        if shown:
            name = found[2].lower()
            yield _Rule(name, shown, (found[1] is not None, order.index(name)))
