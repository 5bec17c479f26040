"""Extracts plain prose from Python docstrings and package descriptions.

Paragraphs that read like sentences are kept; headings, code, doctests, tables, argument lists and
badges are left out. Mark-up (reStructuredText, Markdown, HTML) is reduced to its text.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
import warnings
from collections.abc import Iterator

_MIN_WORDS, _MIN_WORDS_WITHOUT_END = 5, 10  # for a paragraph with or without a full stop
_MIN_PROSE_SHARE = 0.85  # fraction of letters, spaces and prose punctuation
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE_SIGNS = re.compile(r">>>|\.\.\. |::$|\|.*\||==|\+--|--\+|#!/|^\.\.|^%|[{};]$")
_LIST_MARK = re.compile(r"^([-*+•]|\d+[.)]|#+|:\w+(?: [\w*]+)*:|\(?[a-z\d]\))\s+")
_NAMED_ARGUMENT = re.compile(r"^[`*]*\w+[`*]*(?: ?\([^)]*\))?: ")
_SENTENCE_END = re.compile(r"[.!?][\"')]*$")
_WORD = re.compile(r"[A-Za-z][a-z']+")

_MARK_UP = (
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), ""),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"`([^`<]*)<[^`>]*>`_*"), r"\1"),
    (re.compile(r":[a-z:]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"`+([^`]*)`+_*"), r"\1"),
    (re.compile(r"\*\*?([^*\s][^*]*)\*\*?"), r"\1"),
    (re.compile(r"\[([\w.]+)\]_*"), r"\1"),
    (re.compile(r"https?://\S+"), ""),
)


def docstrings_of_module(source: str) -> list[str]:
    """The docstrings of a module, its classes and functions, in source order.

    Raises SyntaxError, ValueError or RecursionError for source that cannot be parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other packages' strings
        tree = ast.parse(source)
    return list(_docstrings(tree))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings of a node and of the definitions in it; expressions are not visited."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for part in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, part, ()):
            yield from _docstrings(child)


def description_of_metadata(metadata: str) -> str:
    """A package's description (usually its README) from the text of its METADATA file."""
    return metadata.partition("\n\n")[2]


def prose_paragraphs(text: str) -> list[str]:
    """The paragraphs that are prose, each as one line."""
    text = _FENCE.sub("", inspect.cleandoc(text))
    paragraphs = []
    for block in re.split(r"\n[ \t]*\n", text):
        for lines in _split_at_indentation(block):
            paragraph = _strip_mark_up(" ".join(line.strip() for line in lines))
            if _is_prose(paragraph):
                paragraphs.append(paragraph)
    return paragraphs


def _split_at_indentation(block: str) -> list[list[str]]:
    """Groups lines into paragraphs: a first line, and following ones with the same indentation."""
    groups: list[list[str]] = []
    body_indentation = None
    for line in block.expandtabs(4).split("\n"):
        stripped = line.lstrip()
        if not stripped:
            continue
        indentation = len(line) - len(stripped)
        continues = groups and not _starts_item(stripped)
        if continues and len(groups[-1]) == 1:
            continues = not _is_header(groups[-1][0], stripped)
            body_indentation = indentation
        elif continues:
            continues = indentation == body_indentation
        if continues:
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _starts_item(line: str) -> bool:
    return bool(_LIST_MARK.match(line) or _NAMED_ARGUMENT.match(line))


def _is_header(line: str, next_line: str) -> bool:
    """Whether a line is a header: underlined, ``Args:`` or ``name : type``."""
    line = line.strip()
    underlined = len(next_line) > 2 and not next_line.strip("=-~^*\"'#.")
    return underlined or line.endswith(":") or " : " in line


def _strip_mark_up(text: str) -> str:
    for pattern, replacement in _MARK_UP:
        text = pattern.sub(replacement, text)
    text = html.unescape(text)
    while True:
        shorter = _NAMED_ARGUMENT.sub("", _LIST_MARK.sub("", text, count=1), count=1)
        if shorter == text:
            return " ".join(text.split())
        text = shorter


def _is_prose(paragraph: str) -> bool:
    if not paragraph.isprintable() or _CODE_SIGNS.search(paragraph):
        return False
    is_sentence = _SENTENCE_END.search(paragraph)
    if len(_WORD.findall(paragraph)) < (_MIN_WORDS if is_sentence else _MIN_WORDS_WITHOUT_END):
        return False
    num_prose = sum(char.isalpha() or char in " .,'" for char in paragraph)
    return num_prose >= _MIN_PROSE_SHARE * len(paragraph)
