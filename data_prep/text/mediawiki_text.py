"""Turns MediaWiki's markup into running text, by mwparserfromhell's parser.

Like BERT's own data, it keeps "only the text passages" and leaves out "lists, tables, and headers"
(Devlin et al. 2019, section 3.1), unless they are asked for. Of templates it keeps those that are
part of a sentence, see ``mediawiki_templates``.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import mwparserfromhell

from data_prep.text.mediawiki_templates.arguments import APOSTROPHE
from data_prep.text.mediawiki_templates.numerals import subscript, superscript
from data_prep.text.mediawiki_templates.render import render_template
from data_prep.text.mediawiki_variants import in_one_variant

if TYPE_CHECKING:
    from mwparserfromhell.wikicode import Wikicode

# Elements whose content is not running text. It need not be markup either: what looks like a mark
# in a formula or a program would mislead the parser.
_WITHOUT_TEXT = (
    "ce", "chem", "gallery", "graph", "hiero", "imagemap", "indicator", "inputbox", "mapframe",
    "maplink", "math", "pre", "ref", "references", "score", "section", "source",
    "syntaxhighlight", "templatedata", "templatestyles", "timeline",
)  # fmt: skip
_ENDS_LINE = frozenset({"div", "hr", "p", "blockquote", "poem", "center"})
_RAISED = {"sup": superscript, "sub": subscript}
_MAX_DEPTH = 40
# The parser's time grows with the square of the number of marks that are never closed.
_MOST_OPEN = 500
_MARKS = (("[", "]"), ("{|", "|}"), ("<", "</"))

# What stands at the start of a line of a list, of a heading of each level, and of a line that is
# indented. None can be in a page: XML does not allow them.
_LIST, _HEADING, _INDENT = "\x01", "\x02", "\x03"
_LINE_MARKS = _LIST + _HEADING + _INDENT
_LINE_MARK = {"*": _LIST, "#": _LIST, ";": _LIST, ":": _INDENT}

# What is indented is a quotation or an explanation, or else a formula or an example.
_SENTENCE = re.compile(r".{40,}[.!?…。！？][\"'”“»)\]]*$")
# Links to the same article in other languages are not part of the text.
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple|tokipona")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
_STYLE = re.compile(r"('{2,})")
_LEFT_OF_TABLE = re.compile(r"\s*(\{\||\|\}|\||!)")
_GAP_IN_BRACKETS = re.compile(r"\((?: |[,;:](?= ))+")
_GAP_BEFORE_BRACKET = re.compile(r"[,;:]? \)")
_EMPTY_BRACKETS = re.compile(r" ?(\([ ,;:–-]*\)|\[ ?\])")
_LEFT_OF_ELEMENT = re.compile(r"</?[A-Za-z][^<>]*>")
_TEMPLATE_MARK = re.compile(r"\{{2,}|\}{2,}|\n==")
_DEEPEST_INDENT = 40
_CLOSED_BY_ONE_BRACE = re.compile(r"(\{\{[^{}\n]*)\}(?!\})")
_UNCLOSED = re.compile(r"\{\{(?:[^\n{}\[\]]*\]\])?")
_UNCLOSED_BLOCK = re.compile(
    r"\{\{[^\n]*"
    r"(?:\n[ \t]*(?:(?=\n)|(?:[|*!<#]|[\w .-]+=|\{\{[^\n]*\}\}[ \t]*(?=\n))[^\n]*))*"
    r"(?:\n[ \t]*\}+)?"
)
_WITHOUT_END = re.compile(r"<(?:br|hr)\b[^<>]*>", re.IGNORECASE)
_ELEMENT = re.compile(rf"<!--|<({'|'.join(_WITHOUT_TEXT)})\b[^<>]*>", re.IGNORECASE)
_END = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _WITHOUT_TEXT}
_END[""] = re.compile("-->")
_REPEATED_COMMAS = re.compile(r"(?:[,;] ?){1,3}([,;])(?= |$)")
_COMMA_BEFORE_END = re.compile(r"[,;] (?=\.(?: |$))|[，、；](?=。)")
_SPACE_BEFORE = re.compile(r" ([,.;:!?)\]])(?= |$)")


class Options(NamedTuple):
    """What is kept besides running text.

    Attributes:
      hidden: lower-case prefixes of links that show no text, see ``mediawiki_dump.Site``.
      lists, headings: whether the lines of lists, and the headings of sections with text, are kept.
      language: the wiki's, such as ``de``; some templates show other text in another language.
      variant: which of several texts to take in a language with variants, such as ``zh-tw``; by
        default the first, see ``mediawiki_variants``.
    """

    hidden: frozenset[str]
    lists: bool = False
    headings: bool = False
    language: str = ""
    variant: str = ""

    @property
    def base_language(self) -> str:
        """The language without a region or script: ``zh`` of ``zh-tw``."""
        return re.sub(r"[^a-z].*", "", self.language)


def plain_text(
    markup: str, options: Options, left_out: collections.Counter[str] | None = None
) -> list[str]:
    """The paragraphs of a page, without markup; empty if it has no running text.

    ``left_out`` counts the templates that are part of it and have no rule, by name.
    """
    left_out = collections.Counter() if left_out is None else left_out
    markup = _balanced(_without_elements(markup))
    markup = in_one_variant(markup, options.base_language, options.variant)
    markup = _WITHOUT_END.sub("\n", markup)
    for opening, closing in _MARKS:
        # A closing </b> has an opening mark of its own.
        closed = markup.count(closing) * (2 if closing == "</" else 1)
        if markup.count(opening) - closed > _MOST_OPEN:
            markup = markup.replace(opening, " ")
    # Its tags for italics and bold would go beyond the line, and the end of a table, where the
    # closing mark is missing.
    code = mwparserfromhell.parse(markup, skip_style_tags=True)
    rendered = "".join(_render(code, _Page(options, left_out), 0))
    lines = (_clean(line) for line in rendered.split("\n"))
    return list(_chosen(filter(None, lines), options))


def _without_elements(markup: str) -> str:
    """Markup without comments and the elements that have no text, of which most are references."""
    parts, begin, position = [], 0, 0
    never_closed = set()
    while found := _ELEMENT.search(markup, position):
        name, position = (found[1] or "").lower(), found.end()
        if not found[0].endswith("/>"):
            end = None if name in never_closed else _END[name].search(markup, position)
            if end is None:
                never_closed.add(name)
                continue
            position = end.end()
        parts.append(markup[begin : found.start()])
        begin = position
    return "".join([*parts, markup[begin:]])


def _balanced(markup: str) -> str:
    """Markup in which every template is closed, and before the next heading.

    One that is not would either be shown, or go on to the end of another one and hide the text
    between them.
    """
    markup = _CLOSED_BY_ONE_BRACE.sub(r"\1}}", markup)
    opened: list[int] = []
    left_out: list[tuple[int, int]] = []
    for mark in _TEMPLATE_MARK.finditer(markup + "\n=="):
        begin, end = mark.span()
        if markup.startswith("{", begin):
            opened += (begin, *range(end - 2 * ((end - begin) // 2 - 1), end, 2))
        elif markup.startswith("}", begin):
            pairs = (end - begin) // 2
            if pairs > len(opened):
                left_out.append((end - 2 * (pairs - len(opened)), end))
            del opened[max(0, len(opened) - pairs) :]
        else:  # a heading, or the end of the page
            left_out += ((begin, _end_of_unclosed(markup, begin)) for begin in opened)
            opened = []
    parts, position = [], 0
    for begin, end in sorted(left_out):
        parts.append(markup[position:begin])
        position = max(position, end)
    return "".join([*parts, markup[position:]])


def _end_of_unclosed(markup: str, begin: int) -> int:
    """Where a template ends that is not closed: after the lines of its arguments, if it has any."""
    before = markup[max(0, begin - _DEEPEST_INDENT) : begin].rpartition("\n")
    is_first_in_line = not before[2].strip() and (before[1] or begin <= _DEEPEST_INDENT)
    pattern = _UNCLOSED_BLOCK if is_first_in_line else _UNCLOSED
    found = pattern.match(markup, begin)
    return found.end() if found else begin


class _Page(NamedTuple):
    """How a page is rendered, and what of it is left out."""

    options: Options
    left_out: collections.Counter[str]


def _render(code: Wikicode, page: _Page, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    for node in code.nodes:
        if isinstance(node, mwparserfromhell.nodes.Text):
            yield node.value
        elif isinstance(node, mwparserfromhell.nodes.HTMLEntity):
            yield _character(node)
        elif isinstance(node, mwparserfromhell.nodes.Wikilink):
            yield from _render_link(node, page, depth)
        elif isinstance(node, mwparserfromhell.nodes.ExternalLink):
            if node.title is not None:
                yield from _render(node.title, page, depth + 1)
        elif isinstance(node, mwparserfromhell.nodes.Heading):
            title = "".join(_render(node.title, page, depth + 1))
            yield f"\n{_HEADING * node.level}{title}\n"
        elif isinstance(node, mwparserfromhell.nodes.Tag):
            yield from _render_tag(node, page, depth)
        elif isinstance(node, mwparserfromhell.nodes.Template):
            yield render_template(
                node,
                lambda value: "".join(_render(value, page, depth + 1)),
                page.options.base_language,
                page.left_out,
            )


def _character(node: mwparserfromhell.nodes.HTMLEntity) -> str:
    character = node.normalize()
    if character == "'":
        return APOSTROPHE
    return "" if "\ud800" <= character <= "\udfff" else character  # half of a pair, no character


def _render_link(link: mwparserfromhell.nodes.Wikilink, page: _Page, depth: int) -> Iterator[str]:
    title = str(link.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and " ".join(prefix.replace("_", " ").split()).lower() in page.options.hidden:
        return
    if link.text is not None:
        yield from _render(link.text, page, depth + 1)
    elif not (colon and _LANGUAGE.fullmatch(prefix)):
        title = "".join(_render(link.title, page, depth + 1)).strip()
        yield title.lstrip(":").partition("#")[0] or title.lstrip("#")


def _render_tag(tag: mwparserfromhell.nodes.Tag, page: _Page, depth: int) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if str(tag.wiki_markup) in _LINE_MARK:
        yield _LINE_MARK[str(tag.wiki_markup)]
    elif name in _ENDS_LINE:
        yield "\n"
    elif name in _RAISED and tag.contents is not None:
        yield _RAISED[name]("".join(_render(tag.contents, page, depth + 1)))
        return
    elif name == "nowiki":
        yield str(tag.contents).replace("'", APOSTROPHE)
        return
    if name != "table" and tag.contents is not None:
        yield from _render(tag.contents, page, depth + 1)
        if name in _ENDS_LINE:
            yield "\n"


def _clean(line: str) -> str:
    """A line with single blanks, and without what markup has left."""
    marks = len(line) - len(line.lstrip(_LINE_MARKS))
    line, mark = line[marks:], line[:marks]
    if _LEFT_OF_TABLE.match(line) or line.startswith("[["):  # without an end, it is not markup
        return ""
    line = _without_style(line).replace(APOSTROPHE, "'")
    line = _LEFT_OF_ELEMENT.sub("", _MAGIC_WORD.sub("", line))
    for mark_inside in _LINE_MARKS:
        line = line.replace(mark_inside, " ")
    line = " ".join(line.split())
    # Templates and references leave gaps: "(born ; died 1900)", "word ,".
    line = _GAP_IN_BRACKETS.sub("(", _EMPTY_BRACKETS.sub("", line))
    line = _REPEATED_COMMAS.sub(r"\1", _GAP_BEFORE_BRACKET.sub(")", line))
    line = _COMMA_BEFORE_END.sub("", line)
    line = " ".join(_SPACE_BEFORE.sub(r"\1", line).split())
    return mark + line if any(map(str.isalnum, line)) else ""


def _without_style(line: str) -> str:
    """A line without the apostrophes that stand for italics and bold; others are kept.

    L'''Iliade'' is L'Iliade: the rules are those of doQuotes in MediaWiki's Parser.php.
    """
    parts = _STYLE.split(line)
    words, marks = parts[::2], [len(mark) for mark in parts[1::2]]
    for index, length in enumerate(marks):
        literal = 1 if length == 4 else max(0, length - 5)
        words[index] += "'" * literal
        marks[index] -= literal
    bold = [index for index, length in enumerate(marks) if length == 3]
    both = marks.count(5)
    if bold and (len(bold) + both) % 2 and (marks.count(2) + both) % 2:
        # One of them is an apostrophe before italics, most likely after a single letter.
        words[min(bold, key=lambda index: _rank_as_elision(words[index]))] += "'"
    return "".join(words)


def _rank_as_elision(word: str) -> int:
    if word.endswith(" "):
        return 2
    return 0 if word[-2:-1] == " " else 1


def _chosen(lines: Iterable[str], options: Options) -> Iterator[str]:
    """The lines to keep; a heading only if text follows before the next one of its level."""
    headings: list[tuple[int, str]] = []
    for line in lines:
        if line.startswith(_HEADING):
            text = line.lstrip(_HEADING)
            level = len(line) - len(text)
            headings = [heading for heading in headings if heading[0] < level]
            headings.append((level, text))
            continue
        text = line.lstrip(_LIST + _INDENT)
        marks = line[: -len(text)]
        if options.lists or not marks or (_LIST not in marks and _SENTENCE.match(text)):
            if options.headings:
                yield from (heading for _, heading in headings)
            headings = []
            yield text
