"""A template's arguments, and rules that are written as patterns of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Union

from data_prep.text.mediawiki_templates.numerals import in_roman, subscript, superscript

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Template
    from mwparserfromhell.wikicode import Wikicode

# An apostrophe that is not markup, until this is taken from the text. It cannot be in a page.
APOSTROPHE = "\x04"

ENGLISH = ("", "en", "simple")  # wikis in English, or of which nothing is known

_OPTIONAL = re.compile(r"<([^<>]*)>")
_PLACE = re.compile(r"\{([^{}:]+)(?::([a-z]+))?\}")
_FORMATS = {"roman": in_roman, "super": superscript, "sub": subscript}


class Arguments:
    """A template's name, its wiki's language, and arguments, rendered when a rule asks for them."""

    def __init__(
        self, template: Template, name: str, render: Callable[[Wikicode], str], language: str
    ):
        """``render`` turns an argument into text."""
        self.name = name
        self.language = language
        # Of equal names, MediaWiki uses the last.
        self._values = {
            str(parameter.name).strip(): parameter.value for parameter in template.params
        }
        self._render = render
        self._rendered: dict[str, str] = {}

    def __call__(self, *names: str) -> str:
        """The first of the named arguments that is not empty; "1" is the first without a name."""
        return next(filter(None, map(self._value, names)), "")

    def positional(self) -> list[str]:
        """The arguments "1", "2" and so on, without surrounding white space; some may be empty."""
        values: list[str] = []
        while (name := str(len(values) + 1)) in self._values:
            values.append(self._value(name))
        return values

    def _value(self, name: str) -> str:
        if name == "0":
            return self.name
        if name not in self._rendered:
            found = self._values.get(name)
            # Once, since what it leaves out is counted.
            self._rendered[name] = "" if found is None else self._render(found).strip()
        return self._rendered[name]


Rule = Callable[[Arguments], str]


def nothing(_: Arguments) -> str:
    """The rule of a template of which a reader sees nothing."""
    return ""


# A rule, or the pattern of one.
Written = Union[str, Rule]


class _Part(NamedTuple):
    """Text of a pattern with places for arguments; whether it goes if these are empty."""

    text: str
    is_optional: bool

    def fill(self, arguments: Arguments) -> tuple[str, bool]:
        """The text with its arguments, and whether it has any."""
        values: list[str] = []

        def value(place: re.Match[str]) -> str:
            found = arguments(*place[1].split("|"))
            values.append(found)
            return _FORMATS[place[2]](found) if place[2] and found else found

        return _PLACE.sub(value, self.text), any(values)


def pattern(text: str) -> Rule:
    """The rule that shows ``text`` with arguments in their places.

    ``{1}`` is the first argument without a name, ``{text|1}`` the first of several that is not
    empty, ``{0}`` the template's name and ``{1:super}`` a number in another form. What is in angle
    brackets goes if no argument in it has a value: ``p. {1}<-{2}>``. The rule gives no text if none
    of the arguments outside of them has a value.
    """
    parts = [_Part(part, index % 2 == 1) for index, part in enumerate(_OPTIONAL.split(text))]
    needs_value = any(_PLACE.search(part.text) for part in parts if not part.is_optional)

    def rule(arguments: Arguments) -> str:
        filled = [(part, *part.fill(arguments)) for part in parts]
        has_needed = any(has_value for part, _, has_value in filled if not part.is_optional)
        if needs_value and not has_needed:
            return ""
        return "".join(t for part, t, has_value in filled if has_value or not part.is_optional)

    return rule


def table(*rows: tuple[Written, str]) -> dict[str, Rule]:
    """Rules by name, from rows of a rule and the names of its templates separated by bars."""
    return {
        name: pattern(rule) if isinstance(rule, str) else rule
        for rule, names in rows
        for name in names.split("|")
    }


def joined(separator: str, most: int | None = None) -> Rule:
    """The arguments without names, or the first of them."""
    return lambda arguments: separator.join(filter(None, arguments.positional()[:most]))


def last(arguments: Arguments) -> str:
    """The last argument without a name that is not empty."""
    return next(filter(None, reversed(arguments.positional())), "")
