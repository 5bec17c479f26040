"""Shows templates as their wiki would, and counts those that are left out.

A wiki computes what a template shows. Here, tables of those that are common in running text say
which of their arguments a reader sees; templates that are not in them are left out. Names and
arguments are those of the templates' documentation in each wiki; those of the English one are known
to all.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from data_prep.text.mediawiki_templates.arguments import Arguments, Rule, nothing
from data_prep.text.mediawiki_templates.languages import LANGUAGES
from data_prep.text.mediawiki_templates.table import COMMON, FAMILIES

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Template
    from mwparserfromhell.wikicode import Wikicode

_NUMBER = re.compile(r"[\d.,−-]+")
# Functions that change only their argument's letters, and those of numbers.
_CASES: dict[str, Callable[[str], str]] = {
    "lc": str.lower,
    "uc": str.upper,
    "lcfirst": lambda text: text[:1].lower() + text[1:],
    "ucfirst": lambda text: text[:1].upper() + text[1:],
    "formatnum": lambda text: text if _NUMBER.fullmatch(text) else "",
}
_LONGEST_NAME = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def render_template(
    template: Template,
    render: Callable[[Wikicode], str],
    language: str,
    left_out: collections.Counter[str],
) -> str:
    """The text that a reader sees in place of a template; empty if it is not known.

    ``render`` turns an argument into text, ``language`` is the wiki's, such as ``de``;
    ``left_out`` counts templates without text by their names.
    """
    # The parser takes all of {{formatnum:1234}} for the name.
    raw = render(template.name) if "{{" in str(template.name) else str(template.name)
    name = " ".join(raw.replace("_", " ").split())
    function, colon, argument = name.partition(":")
    if colon and function.lower() in _CASES:
        text = _CASES[function.lower()](argument.strip())
        is_known = "{{" in str(template.name)  # what its argument leaves out is counted
    else:
        rule = _rule(name, language) or (_rule(function, language) if colon else None)
        text = rule(Arguments(template, name, render, language)) if rule else ""
        is_known = rule is nothing
    if not text and not is_known:
        left_out[_counted_name(name)] += 1
    return text


def _rule(name: str, language: str) -> Rule | None:
    for rules in (LANGUAGES.get(language, {}), COMMON):
        if name.lower() in rules:
            return rules[name.lower()]
    families = (
        rule for of, names, rule in FAMILIES if of in ("", language) and names.fullmatch(name)
    )
    return next(families, None)


def _counted_name(name: str) -> str:
    """A template's or function's name, without arguments of a function, as MediaWiki writes it."""
    function, colon, _ = name.partition(":")
    if colon and (function.startswith("#") or function.isupper() or function in _CASES):
        name = function
    name = _CONTROL.sub("", name)[:_LONGEST_NAME].strip()
    return name[:1].upper() + name[1:]
