"""The text of templates that are part of a sentence: dashes, quantities, dates, foreign words.

A wiki computes what a template shows. Here, a table of those that are common in running text says
which of their arguments a reader sees; templates that are not in it are left out. Names and
arguments are those of the templates' documentation in the English Wikipedia, from which others have
most of theirs, and in the German and the French one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Template
    from mwparserfromhell.wikicode import Wikicode


# An apostrophe that is not markup, until this is taken from the text. It cannot be in a page.
APOSTROPHE = "\x04"


class Arguments:
    """A template's arguments, which are rendered when a rule asks for them."""

    def __init__(self, template: Template, render: Callable[[Wikicode], str]):
        # Of equal names, MediaWiki uses the last.
        self._values = {
            str(parameter.name).strip(): parameter.value for parameter in template.params
        }
        self._render = render

    def __call__(self, *names: str) -> str:
        """The first of the named arguments that is not empty; "1" is the first without a name."""
        for name in names:
            if name in self._values and (value := self._render(self._values[name]).strip()):
                return value
        return ""

    def positional(self) -> list[str]:
        """The arguments "1", "2" and so on, without surrounding white space; some may be empty."""
        values: list[str] = []
        while (name := str(len(values) + 1)) in self._values:
            values.append(self._render(self._values[name]).strip())
        return values


Rule = Union[str, Callable[[Arguments], str]]


def render_template(template: Template, render: Callable[[Wikicode], str], language: str) -> str:
    """The text that a reader sees in place of a template; empty if it is not known.

    ``render`` turns an argument into text, ``language`` is the wiki's, such as ``de``.
    """
    name = " ".join(str(template.name).replace("_", " ").split())
    rule = _rule(name, language)
    if rule is None:
        # The parser takes all of {{formatnum:1234}} for the name.
        found = re.fullmatch(r"formatnum: ?([\d.,−-]+)", name, re.IGNORECASE)
        return found[1] if found else ""
    return rule if isinstance(rule, str) else rule(Arguments(template, render))


def _rule(name: str, language: str) -> Rule | None:
    for rules in (_RULES_OF_LANGUAGES.get(language, {}), _RULES):
        if name.lower() in rules:
            return rules[name.lower()]
    families = (
        rule for of, names, rule in _FAMILIES if of in ("", language) and names.fullmatch(name)
    )
    return next(families, None)


def superscript(text: str) -> str:
    """Text above the line, in Unicode's characters for it: the 6 of a power of ten as ⁶.

    Without them 10<sup>6</sup> would be the number 106. Vocabularies that were made of Wikipedia,
    such as BERT's own, have these characters. Words stay as they are ("19th"); what cannot be
    written so begins with a caret.
    """
    return _raised(text, _SUPERSCRIPT, "^")


def subscript(text: str) -> str:
    """Text below the line, see ``superscript``; what cannot be written so begins with _."""
    return _raised(text, _SUBSCRIPT, "_")


_SUPERSCRIPT = str.maketrans("0123456789+-−–ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿⁱ")
_SUBSCRIPT = str.maketrans("0123456789+-−–nix", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋ₙᵢₓ")


def _raised(text: str, characters: dict[int, int], mark: str) -> str:
    text = text.replace("''", "").strip()
    raised = text.rstrip(",.;")
    if all(ord(character) in characters for character in raised):
        return raised.translate(characters) + text[len(raised) :]
    return mark + text if text[0].isdigit() or text[0] in "+-−" else text


def _argument(*names: str) -> Rule:
    return lambda arguments: arguments(*names)


def _with(before: str, *names: str, after: str = "") -> Rule:
    """An argument with text before and after it, if there is one."""

    def rule(arguments: Arguments) -> str:
        value = arguments(*names)
        return f"{before}{value}{after}" if value else ""

    return rule


def _joined(separator: str, most: int | None = None) -> Callable[[Arguments], str]:
    """The arguments without names, or the first of them."""
    return lambda arguments: separator.join(filter(None, arguments.positional()[:most]))


def _last(arguments: Arguments) -> str:
    return next(filter(None, reversed(arguments.positional())), "")


def _grouped(number: str) -> str:
    """12345.6 as 12,345.6."""
    found = re.fullmatch(r"([-−+]?)(\d{4,})(\.\d+)?", number)
    if not found:
        return number.replace("-", "−", 1) if number.startswith("-") else number
    sign, whole, fraction = found.groups("")
    return f"{sign.replace('-', '−')}{int(whole):,}{fraction}"


# Units of {{convert}}: the symbol, and the name in singular and plural (by default with an s).
_UNITS = {
    "mm": ("mm", "millimetre"),
    "cm": ("cm", "centimetre"),
    "m": ("m", "metre"),
    "km": ("km", "kilometre"),
    "in": ("in", "inch", "inches"),
    "ft": ("ft", "foot", "feet"),
    "foot": ("ft", "foot", "feet"),
    "yd": ("yd", "yard"),
    "mi": ("mi", "mile"),
    "nmi": ("nmi", "nautical mile"),
    "ly": ("ly", "light-year"),
    "m2": ("m²", "square metre"),
    "km2": ("km²", "square kilometre"),
    "ha": ("ha", "hectare"),
    "sqft": ("sq ft", "square foot", "square feet"),
    "sqmi": ("sq mi", "square mile"),
    "acre": ("acres", "acre"),
    "m3": ("m³", "cubic metre"),
    "ft3": ("cu ft", "cubic foot", "cubic feet"),
    "cuft": ("cu ft", "cubic foot", "cubic feet"),
    "l": ("L", "litre"),
    "ml": ("mL", "millilitre"),
    "usgal": ("US gal", "US gallon"),
    "impgal": ("imp gal", "imperial gallon"),
    "oilbbl": ("bbl", "barrel"),
    "oilbbl/d": ("bbl/d", "barrel per day", "barrels per day"),
    "g": ("g", "gram"),
    "kg": ("kg", "kilogram"),
    "t": ("t", "tonne"),
    "mt": ("t", "metric ton"),
    "lt": ("long tons", "long ton"),
    "st": ("st", "stone", "stone"),
    "oz": ("oz", "ounce"),
    "lb": ("lb", "pound"),
    "carat": ("carats", "carat"),
    "c": ("°C", "°C", "°C"),
    "f": ("°F", "°F", "°F"),
    "°c": ("°C", "°C", "°C"),
    "°f": ("°F", "°F", "°F"),
    "c-change": ("°C", "°C", "°C"),
    "f-change": ("°F", "°F", "°F"),
    "m/s": ("m/s", "metre per second", "metres per second"),
    "ft/s": ("ft/s", "foot per second", "feet per second"),
    "km/h": ("km/h", "kilometre per hour", "kilometres per hour"),
    "mph": ("mph", "mile per hour", "miles per hour"),
    "kn": ("kn", "knot"),
    "kw": ("kW", "kilowatt"),
    "hp": ("hp", "horsepower", "horsepower"),
    "/km2": ("/km²", "per square kilometre", "per square kilometre"),
    "/sqmi": ("/sq mi", "per square mile", "per square mile"),
    "pd/km2": ("/km²", "inhabitants per square kilometre", "inhabitants per square kilometre"),
    "pd/sqmi": ("/sq mi", "inhabitants per square mile", "inhabitants per square mile"),
}
_MULTIPLES = {
    **{"e3": "thousand", "e6": "million", "e9": "billion", "e12": "trillion"},
    **{"k": "thousand", "M": "million", "G": "billion", "T": "trillion"},
}
_BETWEEN = {
    **{"to": " to ", "and": " and ", "or": " or ", "to(-)": " to ", "and(-)": " and "},
    **{"-": "–", "–": "–", "by": " by ", "x": " × ", "×": " × ", "+/-": " ± ", "±": " ± "},
}


def _convert(arguments: Arguments) -> str:
    """The quantity as the author wrote it, without the one that is computed from it.

    {{convert|1300|mi|km}} is "1,300 miles", {{convert|5|to|10|km|mi}} "5 to 10 kilometres" and
    {{convert|6|ft|4|in|cm}} "6 feet 4 inches".
    """
    return _quantity(arguments, is_short=arguments("abbr") in ("on", "in"))


def _cvt(arguments: Arguments) -> str:
    return _quantity(arguments, is_short=arguments("abbr") != "off")


def _quantity(arguments: Arguments, *, is_short: bool) -> str:
    values, text = arguments.positional(), ""
    is_adjective = arguments("adj").startswith(("on", "mid")) and not is_short
    while len(values) >= 2 and re.match(r"[-−+]?[.\d]", values[0]):
        number, values = values[0], values[1:]
        text += _grouped(number)
        if values[0].lower() in _BETWEEN:
            text += _BETWEEN[values[0].lower()]
            values = values[1:]
            continue
        unit = _unit(values[0], number, is_short=is_short, is_adjective=is_adjective)
        text += ("-" if is_adjective and unit[:1].isalpha() else " ") + unit + " "
        values = values[1:]
        if len(values) < 2 or values[1].lower() not in _UNITS:  # what follows is the result
            break
    if arguments("sp") == "us":
        text = text.replace("metre", "meter").replace("litre", "liter")
    return text.strip()


def _unit(code: str, number: str, *, is_short: bool, is_adjective: bool) -> str:
    name, multiple = code, ""
    if found := re.fullmatch(r"(e\d+)(.+)|([kMGT])(oilbbl.*|cuft|USgal)", code):
        multiple, name = found[1] or found[3], found[2] or found[4]
    if name.lower() not in _UNITS:
        return code
    short, single, *several = _UNITS[name.lower()]
    if is_short:
        unit = short
    elif is_adjective or (number == "1" and not multiple):
        unit = single.replace(" ", "-") if is_adjective else single
    else:
        unit = several[0] if several else single + "s"
    return f"{_MULTIPLES.get(multiple, multiple)} {unit}".strip()


def _val(arguments: Arguments) -> str:
    """{{val|6.24|0.01|e=18|u=C}}: 6.24±0.01×10¹⁸ C."""
    number, uncertainty = arguments("1"), arguments("2")
    if uncertainty and re.match(r"[\d.]", uncertainty):
        number += f"±{uncertainty}"
    if power := arguments("e"):
        number += "×" * bool(number) + f"10{superscript(power)}"
    return f"{number} {arguments('u', 'ul')}".strip()


def _power_of_ten(arguments: Arguments) -> str:
    power = arguments("1")
    return f"×10{superscript(power)}" if re.fullmatch(r"[-−+]?\d+", power) else ""


def _zahl_exp(arguments: Arguments) -> str:
    number, power, unit = arguments("1"), arguments("2"), arguments("suffix", "3")
    return f"{number} · 10{superscript(power)} {unit}".strip() if number and power else number


def _fraction(arguments: Arguments) -> str:
    """{{frac|3}} is 1/3, {{frac|1|3}} too, and {{frac|2|1|3}} 2 1/3."""
    values = list(filter(None, arguments.positional()))
    if not values:
        return ""
    fraction = "/".join((["1", *values])[-2:])
    return " ".join([*values[:-2], fraction])


def _chemical_formula(arguments: Arguments) -> str:
    """{{chem|SO|4|2-}}: elements, their numbers, and charges, each an argument."""
    values = (value.replace("''", "") for value in arguments.positional())
    return "".join(
        superscript(value)
        if (index == 0 and value.isdigit()) or re.fullmatch(r"\d*[+−-]", value)
        else subscript(value)
        if re.fullmatch(r"[\dn+−-]+", value)
        else value
        for index, value in enumerate(values)
    )


def _chemical_equation(arguments: Arguments) -> str:
    """{{chem2|SO4(2-)}}: as it is typed."""
    text = "".join(arguments.positional())
    text = re.sub(r"\((\d*[+−-])\)|(?<=[A-Za-z\d\])])([+−-])(?= |$)", _charge, text)
    return re.sub(r"(?<=[A-Za-z\])])\d+", lambda found: subscript(found[0]), text)


def _charge(found: re.Match[str]) -> str:
    return superscript(found[1] or found[2])


_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_MONATE = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August"),
    *("September", "Oktober", "November", "Dezember"),
)


def _month(month: str, names: tuple[str, ...] = _MONTHS) -> str:
    is_number = month.isdecimal() and 1 <= int(month) <= 12
    return names[int(month) - 1] if is_number else month


def _date(arguments: Arguments) -> str:
    """{{birth date|1809|2|12}}: February 12, 1809, or with df=y 12 February 1809."""
    year, month, day = (arguments(name) for name in "123")
    is_day_first = arguments("df") not in ("", "n", "no")
    return _written_date(year, _month(month), day.lstrip("0"), is_day_first=is_day_first)


def _written_date(year: str, month: str, day: str, *, is_day_first: bool) -> str:
    if month and day and not is_day_first:
        return f"{month} {day}, {year}"
    return " ".join(filter(None, (day if month else "", month, year)))


def _as_of(arguments: Arguments) -> str:
    """{{as of|2014|5|lc=y}}: as of May 2014."""
    if not arguments("1") or arguments("alt"):
        return arguments("alt")
    words = "Since" if arguments("since") else "As of"
    if arguments("bare"):
        words = ""
    elif arguments("lc"):
        words = words.lower()
    year, month, day = (arguments(name) for name in "123")
    is_day_first = arguments("df").lower() != "us"
    date = _written_date(year, _month(month), day.lstrip("0"), is_day_first=is_day_first)
    return f"{words} {date}{arguments('post')}".strip()


def _old_style_date(arguments: Arguments) -> str:
    """{{OldStyleDate|3 September|1662|24 August}}."""
    day, year, old = (arguments(name) for name in "123")
    return " ".join(filter(None, (day, f"[O.S. {old}]" if old else "", year)))


def _julian_date(arguments: Arguments) -> str:
    """{{JULGREGDATUM|25|12|1642}}: the date as written, in the Julian calendar."""
    day, month, year = (arguments(name) for name in "123")
    return f"{day}. {_month(month, _MONATE)} {year}".strip() if day else ""


def _approximate(arguments: Arguments) -> str:
    """{{circa|1500|1510}}; without arguments, the date follows the template."""
    return " – ".join(f"c. {value}" for value in arguments.positional() if value) or "c."


def _reign(arguments: Arguments) -> str:
    years = "–".join(filter(None, arguments.positional()))
    return f"r. {years}".strip()


def _century(arguments: Arguments) -> str:
    """{{s-|XIX|e}}: XIXe siècle."""
    number, suffix = arguments("1"), arguments("2") or "e"
    return f"{number}{suffix} siècle" if number else ""


def _french_quantity(arguments: Arguments) -> str:
    """{{unité|5|km||h|-1}}: a number, and units with their powers."""
    number, *units = arguments.positional() or [""]
    powers = [*units[1::2], ""]
    symbols = (unit + superscript(power) for unit, power in zip(units[::2], powers))
    return f"{number} {'·'.join(symbols)}".strip()


def _nihongo(arguments: Arguments) -> str:
    """{{nihongo|English|kanji|rōmaji|more}}."""
    english, *japanese = (arguments(name) for name in "1234")
    inside = ", ".join(filter(None, japanese))
    return f"{english} ({inside})" if english and inside else english or inside


def _phonetic(arguments: Arguments) -> str:
    """A sound that the text speaks of, {{IPA|/a/}}; not the pronunciation of a word."""
    sound = arguments("1")
    return sound if sound.startswith(("/", "[")) else ""


def _chinese(arguments: Arguments) -> str:
    names = ("c", "t", "s", "p", "w", "j", "poj")
    return "; ".join(filter(None, map(arguments, names))) or _joined("; ")(arguments)


def _accidental(arguments: Arguments) -> str:
    return {"flat": "♭", "sharp": "♯", "natural": "♮"}.get(arguments("1"), "")


def _track_gauge(arguments: Arguments) -> str:
    found = re.fullmatch(r"([\d.]+) ?([a-z]+)", arguments("1"))
    return f"{_grouped(found[1])} {found[2]}" if found else ""


def _paragraph(*names: str) -> Rule:
    return _with("\n", *names, after="\n")


def _table(*rows: tuple[Rule, str]) -> dict[str, Rule]:
    """Rules by name, from rows of a rule and the names of its templates separated by bars."""
    return {name: rule for rule, names in rows for name in names.split("|")}


_SHIPS = ("HMS", "HMAS", "HMCS", "MS", "MV", "RMS", "SMS", "SS", "USCGC", "USS")

# A template's name in lower case -> the text that it shows.
_RULES: dict[str, Rule] = _table(
    # Dashes, blanks and marks
    ("–", "ndash|en dash|endash|en-dash|--"),
    ("—", "mdash|em dash|emdash|em-dash|---|mdashb|mdash-"),
    (" – ", "snd|spnd|sndash|spndash|spaced ndash|spaced en dash|dash|ndash-|spaced-ndash"),
    (" — ", "smd|spmd|mdsp|spaced mdash|spaced em dash"),
    (
        " ",
        "nbsp|nbs|nnbsp|space|spaces|sp|thinsp|thin space|hairsp|hair space|ensp|en space|emsp|"
        "em space|figure space|narrow no-break space|pad|gap|quad|0",
    ),
    ("\n", "br|break|crlf|pb|paragraph break|parabr"),
    (" · ", "·|dot|middot|•|bullet"),
    (" / ", "\\|slash"),
    ("=", "="),
    (APOSTROPHE, "'|-'|apostrophe"),
    (f"{APOSTROPHE}s", "'s"),
    (f'{APOSTROPHE} "', "' \"|'\""),
    (f'" {APOSTROPHE}', "\" '|\"'"),
    ('"', '-"'),
    ("″", "pprime"),
    ("′", "prime"),
    ("×", "times"),
    ("[sic]", "sic!"),
    # Text in another form
    (
        _argument("1"),
        "nowrap|nobr|nwr|no wrap|small|smaller|big|larger|large|resize|nobold|noitalic|bold|"
        "italic|em|strong|strongbad|sc|smallcaps|allcaps|caps|aut|var|mvar|math|bigmath|mono|"
        "monospace|tt|kbd|samp|code|unicode|polytonic|polytonisch|vr|abbr|abbrv|tooltip|tooltip2|"
        "hover title|nastaliq|nq|hebrew|hebr|rtl|ltr|vanchor|visible anchor|underline|"
        "overline|uline|strikethrough|not a typo|as written|typo|proper name|flag|flagcountry|"
        "flagu|flag+link|by|date|dts|number|nts|formatnum|formatzahllokal|format price|"
        "highlight",
    ),
    (_argument("lt", "1"), "ill|interlanguage link|illm|interlanguage link multi|link-interwiki"),
    (_argument("2", "text"), "lang|langue|langx|lang-unicode|color|font color|colour"),
    (_last, "transl|transliteration|translit|script|rtl-lang|sort"),
    (_joined(" "), "gaps"),
    (_joined(" ", 2), "sortname|bibleref|bibleref2|ship"),
    (_joined(" ", 3), "bibleverse"),
    (_joined(""), "sic"),
    (_phonetic, "ipa"),
    (_with("/", "1", after="/"), "ipaslink"),
    (_with("[", "1", after="]"), "ipablink"),
    (_with("⟨", "1", after="⟩"), "angbr|angle bracket|angbr ipa|grapheme"),
    (_with('"', "1", after='"'), '"|quote inline|qi'),
    (_paragraph("1", "text", "quote", "Text"), "quote|blockquote|cquote|quotation|zitat"),
    # Quantities
    (_convert, "convert"),
    (_cvt, "cvt|cv"),
    (_val, "val"),
    (_power_of_ten, "e"),
    (lambda arguments: f"10{superscript(arguments('1'))}", "10^"),
    (_fraction, "frac|fraction|sfrac|bruch"),
    (lambda arguments: superscript(arguments("1")), "sup"),
    (lambda arguments: subscript(arguments("1")), "sub"),
    (_chemical_formula, "chem|chem/link"),
    (_chemical_equation, "chem2"),
    (_accidental, "music"),
    (_track_gauge, "railgauge|track gauge"),
    (_with("$", "1"), "usd|us$|$"),
    (_with("£", "1"), "gbp|£|pound sterling"),
    (_with("€", "1"), "€|euro"),
    (_with("₹", "1"), "inr|₹|indian rupee"),
    (_with("¥", "1"), "jpy|¥"),
    # Dates
    (_as_of, "as of|asof"),
    (
        _date,
        "birth date|birth date and age|birth-date|dob|bda|death date|death date and age|dda|"
        "start date|start date and age|end date|end date and age|birth year and age|film date|"
        "release date|launch date and age",
    ),
    (_approximate, "circa|c.|ca."),
    (lambda arguments: f"fl. {arguments('1')}".strip(), "floruit|fl."),
    (_reign, "reign|r.|reigned"),
    (_old_style_date, "oldstyledate|old style date"),
    # Names and other scripts
    (_nihongo, "nihongo|nihongo2|nihongo3|nihongo foot"),
    (_chinese, "zh|zh-full|chinese|lang-zh|cjkv"),
    *((_with(f"{prefix} ", "1"), prefix.lower()) for prefix in _SHIPS),
)
_RULES_OF_LANGUAGES: dict[str, dict[str, Rule]] = {
    "de": _table(
        (_with("„", "1", "Text", after="“"), '"'),
        (_with("", "1", after=" m"), "höhe"),
        (_with("", "1", after=" €"), "eur|euro"),
        (_zahl_exp, "zahlexp"),
        (_julian_date, "julgregdatum"),
    ),
    "fr": _table(
        (_century, "s|s-"),
        (_french_quantity, "unité|unite"),
        (_joined(" ", 2), "nombre|nb"),
        (_joined(" ", 3), "date|date-"),
        (_with("« ", "1", after=" »"), "citation|guil|guillemets"),
        (lambda arguments: " ".join(["1er", *filter(None, arguments.positional())]), "1er"),
        ("er", "er"),
        ("e", "e"),
    ),
}
# Families of names, in one language or in all: {{lang-ru|...}}, in German {{ruS|...}}.
_FAMILIES = (
    ("", re.compile(r"[Ll]ang-[A-Za-z-]+"), _argument("1", "text")),
    ("", re.compile(r"[Ss]cript/[A-Za-z]+"), _argument("1")),
    ("de", re.compile(r"[A-Za-z][a-z]{1,2}S"), _joined(", ")),
)
