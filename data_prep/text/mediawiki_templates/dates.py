"""Dates as the wikis' templates write them, in the forms of their languages."""

from __future__ import annotations

import re
from typing import NamedTuple

from data_prep.text.mediawiki_templates.arguments import ENGLISH, Arguments, Rule, joined
from data_prep.text.mediawiki_templates.numerals import in_roman


class _Form(NamedTuple):
    """How a language writes a date.

    Attributes:
      months: their names within a date; empty where they are numbers.
      day, month, year: what stands around each of them.
      separator: between them.
      first: how the first day of a month is written.
      is_year_first: the order is year, month, day.
    """

    months: str = ""
    day: str = "{}"
    month: str = "{}"
    year: str = "{}"
    separator: str = " "
    first: str = "1"
    is_year_first: bool = False


_NUMBERED = _Form(separator=".")  # in other languages
_EAST_ASIAN = _Form("", "{}日", "{}月", "{}年", "", is_year_first=True)
_FORMS = {
    "de": _Form(
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        day="{}.",
    ),
    "en": _Form(
        "January February March April May June July August September October November December"
    ),
    "es": _Form(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        separator=" de ",
    ),
    "fr": _Form(
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        first="1er",
    ),
    "it": _Form(
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre "
        "dicembre",
        first="1º",
    ),
    "ja": _EAST_ASIAN,
    "nl": _Form(
        "januari februari maart april mei juni juli augustus september oktober november december"
    ),
    "pl": _Form(
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października "
        "listopada grudnia"
    ),
    "pt": _Form(
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        separator=" de ",
    ),
    "ru": _Form(
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря"
    ),
    "sv": _Form(
        "januari februari mars april maj juni juli augusti september oktober november december"
    ),
    "uk": _Form(
        "січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня"
    ),
    "vi": _Form("", "ngày {}", "tháng {}", "năm {}"),
    "zh": _EAST_ASIAN,
}
_FORMS["simple"] = _FORMS["en"]
_SUFFIXES = ("e", "er")
_YEAR = re.compile(r"[-−]?\d{3,4}")
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")


def month(text: str, language: str) -> str:
    """A month's name where it is given by its number."""
    names = _FORMS.get(language, _NUMBERED if language else _FORMS["en"]).months.split()
    is_number = re.fullmatch(r"0?[1-9]|1[0-2]", text)
    return names[int(text) - 1] if is_number and names else text.lstrip("0")


def written_date(language: str, year: str, month_given: str, day: str) -> str:
    """A date in a language's form; what is empty is left out."""
    form = _FORMS.get(language, _NUMBERED)
    day = day.lstrip("0")
    parts = [
        form.day.format(form.first if day == "1" else day) if day else "",
        form.month.format(month(month_given, language)) if month_given else "",
        form.year.format(year) if year else "",
    ]
    return form.separator.join(filter(None, reversed(parts) if form.is_year_first else parts))


def english_date(year: str, month_given: str, day: str, *, is_day_first: bool) -> str:
    """February 12, 1809, or 12 February 1809."""
    name, day = month(month_given, "en"), day.lstrip("0")
    if name and day and not is_day_first:
        return f"{name} {day}, {year}"
    return " ".join(filter(None, (day if name else "", name, year)))


def year_first(arguments: Arguments) -> str:
    """{{birth date|1809|2|12}}: February 12, 1809, or with df=y 12 February 1809."""
    year, month_given, day = (arguments(name) for name in "123")
    if arguments.language not in ENGLISH:
        return _in_language(arguments, [year, month_given, day])
    is_day_first = arguments("df") not in ("", "n", "no")
    return english_date(year, month_given, day, is_day_first=is_day_first)


def day_first(arguments: Arguments) -> str:
    """{{date|11|11|1866}}: 11 novembre 1866; arguments after these are something else.

    {{date|1866|11|11}} and {{date|11 novembre 1866}} are the same.
    """
    return _in_language(arguments, arguments.positional()[:3])


def second_date(arguments: Arguments) -> str:
    """The second of two dates: that of a death, which follows a birth."""
    given = arguments.positional()
    return _in_language(arguments, given[3:6] if len(given) > 3 else given)


def dates_of_life(arguments: Arguments) -> str:
    """{{bd|1900年|1月2日|1980年|3月4日}}: （1900年1月2日－1980年3月4日）."""
    given = [*arguments.positional(), "", "", "", ""]
    born, died = "".join(given[:2]), "".join(given[2:4])
    return f"（{born}－{died}）" if born or died else ""


def _in_language(arguments: Arguments, given: list[str]) -> str:
    if len(given) == 1 and (found := _ISO.fullmatch(given[0])):
        given = list(found.groups())
    if len(given) == 1:
        return _with_first(given[0], arguments.language)
    given = [*given, "", "", ""][:3]
    if _YEAR.fullmatch(given[0]):
        given.reverse()
    day, month_given, year = given
    if day and not day.isdecimal():  # words, such as a day and its month
        return _with_first(" ".join(filter(None, given)), arguments.language)
    return written_date(arguments.language, year, month_given, day)


def _with_first(date: str, language: str) -> str:
    """A date in words with the first day of a month as the language writes it."""
    first = _FORMS.get(language, _NUMBERED).first
    return re.sub(r"^1(?= [^\W\d])", first, date)


def as_of(arguments: Arguments) -> str:
    """{{as of|2014|5|lc=y}}: as of May 2014."""
    if not arguments("1") or arguments("alt"):
        return arguments("alt")
    words = "Since" if arguments("since") else "As of"
    if arguments("bare"):
        words = ""
    elif arguments("lc"):
        words = words.lower()
    year, month_given, day = (arguments(name) for name in "123")
    is_day_first = arguments("df").lower() != "us"
    date = english_date(year, month_given, day, is_day_first=is_day_first)
    return f"{words} {date}{arguments('post')}".strip()


def old_style_date(arguments: Arguments) -> str:
    """{{OldStyleDate|3 September|1662|24 August}}: both calendars' days."""
    day, year, old = (arguments(name) for name in "123")
    if arguments.language in ENGLISH:
        return " ".join(filter(None, (day, f"[O.S. {old}]" if old else "", year)))
    if not old:
        return f"{day} {year}".strip()
    number, _, month_given = day.partition(" ")
    if old.isdecimal():
        return f"{old} ({number}) {month_given} {year}".strip()
    return f"{old} ({day}) {year}".strip()


def julian_date(arguments: Arguments) -> str:
    """{{JULGREGDATUM|25|12|1642}}: the date as written, in the Julian calendar."""
    day, month_given, year = (arguments(name) for name in "123")
    return written_date(arguments.language, year, month_given, day) if day else ""


def approximate(arguments: Arguments) -> str:
    """{{circa|1500|1510}}; without arguments, the date follows the template."""
    return " – ".join(f"c. {value}" for value in arguments.positional() if value) or "c."


def reign(arguments: Arguments) -> str:
    """{{reign|1509|1547}}: r. 1509–1547."""
    return f"r. {joined('–')(arguments)}".strip()


def french_century(before: str = "", after: str = " siècle") -> Rule:
    """{{s-|XIX|e}}: XIXe siècle; {{siècle|19}} is the same."""

    def rule(arguments: Arguments) -> str:
        number = in_roman(arguments("1"))
        suffix = arguments("2") or ("er" if number == "I" else "e")
        return f"{before}{number}{suffix}{after}" if number else ""

    return rule


def french_centuries(between: str, after: str = "") -> Rule:
    """{{sp|XVI|e|et|XVII|e|s}}: XVIe et XVIIe siècles; ``between`` is for those without a word."""

    def rule(arguments: Arguments) -> str:
        words = list(filter(None, arguments.positional()))
        is_plural = words[-1:] == ["s"]
        text = ""
        for word, following in zip(words, [*words[1:], ""]):
            if re.fullmatch(r"[IVXLC]+|\d+", word):
                suffix = "er" if word in ("I", "1") else "e"
                before = between if text and not text.endswith(" ") else ""
                text += before + in_roman(word) + (following if following in _SUFFIXES else suffix)
            elif word not in _SUFFIXES and word != "s":
                text += f" {word} "
        ending = "s" if is_plural or between == " et " else ""
        return f"{text} siècle{ending}{after}" if text else ""

    return rule
