"""The first sentence of a biography in the Italian wiki, which its template ``Bio`` writes.

https://it.wikipedia.org/wiki/Template:Bio describes the arguments.
"""

from __future__ import annotations

import re

from data_prep.text.mediawiki_templates.arguments import Arguments

_TAKES_UNO = re.compile(r"s[^aeiouàèéìòù\W]|z|gn|ps|pn|x|y", re.IGNORECASE)
_VOWEL = re.compile(r"[aeiouàèéìòù]", re.IGNORECASE)


def first_sentence(arguments: Arguments) -> str:
    """Anna Rossi (Roma, 3 marzo 1902 – Milano, 5 maggio 1980) è stata una pittrice italiana."""
    names = (arguments("Titolo"), arguments("Nome"), arguments("Cognome"))
    name = " ".join(filter(None, names)) + _attached(arguments("PostCognome"))
    if not name:
        return ""
    before = arguments("PreData")
    inside = "; ".join(filter(None, [before, _life(arguments)]))
    text = f"{name} ({inside})" if inside else name
    text += _attached(arguments("FineIncipit") or _what(arguments))
    return text if text.endswith((".", "!", "?", ":")) else text + "."


def _life(arguments: Arguments) -> str:
    born, died = (
        ", ".join(filter(None, (arguments(f"Luogo{event}"), _day(arguments, event))))
        for event in ("Nascita", "Morte")
    )
    return " – ".join(filter(None, (born, died)))


def _day(arguments: Arguments, event: str) -> str:
    parts = (arguments(f"GiornoMese{event}"), arguments(f"Anno{event}"))
    return " ".join(filter(None, parts))


def _what(arguments: Arguments) -> str:
    activities = [arguments("Attività"), arguments("Attività2"), arguments("Attività3")]
    activities = list(filter(None, activities))
    if not activities:
        return arguments("PostNazionalità")
    is_woman = arguments("Sesso").upper() == "F"
    is_past = bool(arguments("AnnoMorte"))
    other = arguments("AttivitàAltre")
    words = ", ".join(activities)
    if len(activities) > 1 and not other:
        words = f"{', '.join(activities[:-1])} e {activities[-1]}"
    nationality = arguments("Nazionalità")
    if is_woman and nationality.endswith("o"):
        nationality = nationality[:-1] + "a"
    verb = f"è {'stata' if is_woman else 'stato'}" if is_past else "è"
    text = f"{verb} {_article(words, is_woman=is_woman)}{words}{_attached(other)}"
    return f"{text}{_attached(nationality)}{_attached(arguments('PostNazionalità'))}"


def _article(word: str, *, is_woman: bool) -> str:
    if is_woman:
        return "un'" if _VOWEL.match(word) else "una "
    return "uno " if _TAKES_UNO.match(word) else "un "


def _attached(text: str) -> str:
    """Text that follows other text: a blank before words, none before a comma."""
    return text if not text or text[0] in ",.;:" else f" {text}"
