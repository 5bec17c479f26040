"""Turns MediaWiki's markup into running text, by mwparserfromhell's parser.

Like BERT's own data, it keeps "only the text passages" and leaves out "lists, tables, and headers"
(Devlin et al. 2019, section 3.1), unless they are asked for. Of templates it keeps those that are
part of a sentence, see ``mediawiki_templates``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import mwparserfromhell

from data_prep.mediawiki_templates import render_template, subscript, superscript

if TYPE_CHECKING:
    from mwparserfromhell.wikicode import Wikicode

# Elements whose content is no running text.
_WITHOUT_TEXT = frozenset({
    "ce", "chem", "code", "gallery", "graph", "hiero", "imagemap", "indicator", "inputbox",
    "mapframe", "maplink", "math", "pre", "ref", "references", "score", "section", "source",
    "syntaxhighlight", "table", "templatedata", "templatestyles", "timeline",
})  # fmt: skip
_ENDS_LINE = frozenset({"div", "hr", "p", "blockquote", "poem", "center"})
_RAISED = {"sup": superscript, "sub": subscript}
_LIST_MARKS = frozenset("*#:;")
_MAX_DEPTH = 40
# The parser's time grows with the square of the number of marks that are never closed.
_MOST_OPEN = 500
_MARKS = (("{{", "}}"), ("[", "]"), ("{|", "|}"), ("<", "</"))

# What stands at the start of a line of a list, and of a heading of each level. Neither can be in a
# page: XML does not allow them.
_LIST, _HEADING = "\x01", "\x02"

# Links to the same article in other languages are not in the text but beside it.
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple|tokipona")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
_QUOTES = re.compile(r"'{2,}")
_LEFT_OF_TABLE = re.compile(r"\s*(\{\||\|\}|\||!)")
_GAP_IN_BRACKETS = re.compile(r"\((?: |[,;:](?= ))+")
_EMPTY_BRACKETS = re.compile(r" ?(\([ ,;:–-]*\)|\[ ?\])")
_LEFT_OF_ELEMENT = re.compile(r"</?[A-Za-z][^<>]*>")
_WITHOUT_END = re.compile(r"<(?:br|hr)\b[^<>]*>", re.IGNORECASE)
_REFERENCE = re.compile(r"<ref\b[^<>]*>", re.IGNORECASE)
_END_OF_REFERENCE = re.compile(r"</ref\s*>", re.IGNORECASE)
_SPACE_BEFORE = re.compile(r" ([,.;:!?)\]])(?= |$)")


class Options(NamedTuple):
    """What is kept besides running text.

    Attributes:
      hidden: lower-case prefixes of links that show no text, see ``mediawiki_dump.Site``.
      lists, headings: whether the lines of lists, and the headings of sections with text, are kept.
      language: the wiki's, such as ``de``; some templates show other text in another language.
    """

    hidden: frozenset[str]
    lists: bool = False
    headings: bool = False
    language: str = ""


def plain_text(markup: str, options: Options) -> list[str]:
    """The paragraphs of a page, without markup; empty if it has no running text."""
    markup = _WITHOUT_END.sub("\n", _without_references(markup))
    for opening, closing in _MARKS:
        # A closing </b> has an opening mark of its own.
        closed = markup.count(closing) * (2 if closing == "</" else 1)
        if markup.count(opening) - closed > _MOST_OPEN:
            markup = markup.replace(opening, " ")
    code = mwparserfromhell.parse(markup)
    rendered = "".join(_render(code, options, 0))
    lines = (_clean(line) for line in rendered.split("\n"))
    return list(_chosen(filter(None, lines), options))


def _without_references(markup: str) -> str:
    """Most markup is in references; that of a wrong one would make the parser miss its end."""
    parts, begin = [], 0
    while found := _REFERENCE.search(markup, begin):
        end = found
        if not found[0].endswith("/>"):
            end = _END_OF_REFERENCE.search(markup, found.end())
        if end is None:
            break
        parts.append(markup[begin : found.start()])
        begin = end.end()
    return "".join([*parts, markup[begin:]])


def _render(code: Wikicode, options: Options, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    for node in code.nodes:
        if isinstance(node, mwparserfromhell.nodes.Text):
            yield node.value
        elif isinstance(node, mwparserfromhell.nodes.HTMLEntity):
            yield _character(node)
        elif isinstance(node, mwparserfromhell.nodes.Wikilink):
            yield from _render_link(node, options, depth)
        elif isinstance(node, mwparserfromhell.nodes.ExternalLink):
            if node.title is not None:
                yield from _render(node.title, options, depth + 1)
        elif isinstance(node, mwparserfromhell.nodes.Heading):
            title = "".join(_render(node.title, options, depth + 1))
            yield f"\n{_HEADING * node.level}{title}\n"
        elif isinstance(node, mwparserfromhell.nodes.Tag):
            yield from _render_tag(node, options, depth)
        elif isinstance(node, mwparserfromhell.nodes.Template):
            yield render_template(
                node, lambda value: "".join(_render(value, options, depth + 1)), options.language
            )


def _character(node: mwparserfromhell.nodes.HTMLEntity) -> str:
    character = node.normalize()
    return "" if "\ud800" <= character <= "\udfff" else character  # half of a pair, no character


def _render_link(
    link: mwparserfromhell.nodes.Wikilink, options: Options, depth: int
) -> Iterator[str]:
    title = str(link.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and " ".join(prefix.replace("_", " ").split()).lower() in options.hidden:
        return
    if link.text is not None:
        yield from _render(link.text, options, depth + 1)
    elif not (colon and _LANGUAGE.fullmatch(prefix)):
        title = "".join(_render(link.title, options, depth + 1)).strip()
        yield title.lstrip(":").partition("#")[0] or title.lstrip("#")


def _render_tag(tag: mwparserfromhell.nodes.Tag, options: Options, depth: int) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if tag.wiki_markup is not None and str(tag.wiki_markup) in _LIST_MARKS:
        yield _LIST
    elif name in _ENDS_LINE:
        yield "\n"
    elif name in _RAISED and tag.contents is not None:
        yield _RAISED[name]("".join(_render(tag.contents, options, depth + 1)).strip())
        return
    if name not in _WITHOUT_TEXT and tag.contents is not None:
        yield from _render(tag.contents, options, depth + 1)
        if name in _ENDS_LINE:
            yield "\n"


def _clean(line: str) -> str:
    """A line with single blanks, and without what markup has left."""
    marks = len(line) - len(line.lstrip(_LIST + _HEADING))
    line, mark = line[marks:], line[:marks]
    if _LEFT_OF_TABLE.match(line) or line.startswith("[["):  # what has no end is no markup
        return ""
    line = _MAGIC_WORD.sub("", _QUOTES.sub("", line)).replace(_LIST, " ").replace(_HEADING, " ")
    line = " ".join(_LEFT_OF_ELEMENT.sub("", line).split())
    # Templates and references leave gaps: "(born ; died 1900)", "word ,".
    line = _GAP_IN_BRACKETS.sub("(", _EMPTY_BRACKETS.sub("", line))
    line = " ".join(_SPACE_BEFORE.sub(r"\1", line).split())
    return mark + line if any(map(str.isalnum, line)) else ""


def _chosen(lines: Iterable[str], options: Options) -> Iterator[str]:
    """The lines to keep; a heading only if text follows before the next one of its level."""
    headings: list[tuple[int, str]] = []
    for line in lines:
        if line.startswith(_HEADING):
            text = line.lstrip(_HEADING)
            level = len(line) - len(text)
            headings = [heading for heading in headings if heading[0] < level]
            headings.append((level, text))
        elif options.lists or not line.startswith(_LIST):
            if options.headings:
                yield from (text for _, text in headings)
            headings = []
            yield line.lstrip(_LIST)
