"""Numbers in other forms: raised, lowered, Roman, grouped as in a language."""

from __future__ import annotations

import re

_SUPERSCRIPT = str.maketrans("0123456789+-−–ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿⁱ")
_SUBSCRIPT = str.maketrans("0123456789+-−–nix", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋ₙᵢₓ")
_ROMAN = (
    *((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L")),
    *((40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")),
)
_LARGEST_ROMAN = 3999
# What stands between thousands, and before decimals.
_SEPARATORS = {
    **dict.fromkeys(("de", "it", "nl", "pt", "vi"), (".", ",")),
    **dict.fromkeys(("es", "fr", "pl", "ru", "sv", "uk"), ("\u00a0", ",")),
}


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


def _raised(text: str, characters: dict[int, int], mark: str) -> str:
    text = text.replace("''", "").strip()
    raised = text.rstrip(",.;")
    if all(ord(character) in characters for character in raised):
        return raised.translate(characters) + text[len(raised) :]
    return mark + text if text[0].isdigit() or text[0] in "+-−" else text


def in_roman(number: str) -> str:
    """A number in Roman numerals, 19 as XIX; what is not a number stays as it is."""
    if not re.fullmatch(r"[0-9]{1,4}", number) or int(number) > _LARGEST_ROMAN:
        return number
    rest, text = int(number), ""
    for value, letters in _ROMAN:
        text += letters * (rest // value)
        rest %= value
    return text


def grouped(number: str, language: str) -> str:
    """12345.6 as 12,345.6, and in other languages as 12.345,6 or 12 345,6."""
    found = re.fullmatch(r"([-−+]?)(\d{4,30})(\.\d+)?", number)
    if not found:
        return number.replace("-", "−", 1) if number.startswith("-") else number
    sign, whole, fraction = found.groups("")
    thousands, decimals = _SEPARATORS.get(language, (",", "."))
    shown = f"{int(whole):,}".replace(",", thousands) + fraction.replace(".", decimals)
    return sign.replace("-", "−") + shown
