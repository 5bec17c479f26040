"""Quantities: numbers, units, fractions, chemical formulas."""

from __future__ import annotations

import re

from data_prep.text.mediawiki_templates.arguments import ENGLISH, Arguments
from data_prep.text.mediawiki_templates.numerals import grouped, subscript, superscript

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


def convert(arguments: Arguments) -> str:
    """The quantity as the author wrote it, without the one that is computed from it.

    {{convert|1300|mi|km}} is "1,300 miles", {{convert|5|to|10|km|mi}} "5 to 10 kilometres" and
    {{convert|6|ft|4|in|cm}} "6 feet 4 inches". In other languages than English, units are symbols.
    """
    in_words = arguments.language in ENGLISH and arguments("abbr") not in ("on", "in")
    return _quantity(arguments, is_short=not in_words)


def cvt(arguments: Arguments) -> str:
    """{{cvt|80|acre|ha}}: a quantity with the unit's symbol."""
    return _quantity(arguments, is_short=arguments("abbr") != "off")


def _quantity(arguments: Arguments, *, is_short: bool) -> str:
    values, text = arguments.positional(), ""
    is_adjective = arguments("adj").startswith(("on", "mid")) and not is_short
    while len(values) >= 2 and re.match(r"[-−+]?[.\d]", values[0]):
        number, values = values[0], values[1:]
        text += grouped(number, arguments.language)
        if values[0].lower() in _BETWEEN:
            between = _BETWEEN[values[0].lower()]
            text += (
                between if arguments.language in ENGLISH or not between.strip().isalpha() else "–"
            )
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


def val(arguments: Arguments) -> str:
    """{{val|6.24|0.01|e=18|u=C}}: 6.24±0.01×10¹⁸ C."""
    number, uncertainty = arguments("1"), arguments("2")
    if uncertainty and re.match(r"[\d.]", uncertainty):
        number += f"±{uncertainty}"
    if power := arguments("e"):
        number += "×" * bool(number) + f"10{superscript(power)}"
    return f"{number} {arguments('u', 'ul')}".strip()


def power_of_ten(arguments: Arguments) -> str:
    """5.98{{e|24}}: 5.98×10²⁴."""
    power = arguments("1")
    return f"×10{superscript(power)}" if re.fullmatch(r"[-−+]?\d+", power) else ""


def zahl_exp(arguments: Arguments) -> str:
    """{{ZahlExp|6,241|18|suffix=C}}: 6,241 · 10¹⁸ C."""
    number, power, unit = arguments("1"), arguments("2"), arguments("suffix", "3")
    return f"{number} · 10{superscript(power)} {unit}".strip() if number and power else number


def fraction(arguments: Arguments) -> str:
    """{{frac|3}} is 1/3, {{frac|1|3}} too, and {{frac|2|1|3}} 2 1/3."""
    values = list(filter(None, arguments.positional()))
    if not values:
        return ""
    fraction = "/".join((["1", *values])[-2:])
    return " ".join([*values[:-2], fraction])


def chemical_formula(arguments: Arguments) -> str:
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


def chemical_equation(arguments: Arguments) -> str:
    """{{chem2|SO4(2-)}}: as it is typed."""
    text = "".join(arguments.positional())
    text = re.sub(r"\((\d*[+−-])\)|(?<=[A-Za-z\d\])])([+−-])(?= |$)", _charge, text)
    return re.sub(r"(?<=[A-Za-z\])])\d+", lambda found: subscript(found[0]), text)


def _charge(found: re.Match[str]) -> str:
    return superscript(found[1] or found[2])


def french_quantity(arguments: Arguments) -> str:
    """{{unité|5|km||h|-1}}: a number, and units with their powers."""
    number, *units = arguments.positional() or [""]
    powers = [*units[1::2], ""]
    symbols = (unit + superscript(power) for unit, power in zip(units[::2], powers))
    if power := arguments("e"):
        number += f"×10{superscript(power)}"
    return f"{number} {'·'.join(symbols)}".strip()


def track_gauge(arguments: Arguments) -> str:
    """{{RailGauge|1435mm}}: 1,435 mm."""
    found = re.fullmatch(r"([\d.]+) ?([a-z]+)", arguments("1"))
    return f"{grouped(found[1], arguments.language)} {found[2]}" if found else ""
