"""Documented Python objects as contexts for questions: a signature line and the documentation.

A context looks like this, each paragraph and each item of a list on a line of its own::

    json.detect(data, strict=True)
    Finds the encoding of some bytes.
    Args:
    data: The bytes to look at.

The sections (arguments, returns, raises) are kept as spans, so that a pattern can be restricted to
one of them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Union

SECTIONS = ("arguments", "returns", "raises")

_MAX_SIGNATURE_WORDS = 40
_HEADERS = {
    "arguments": "arguments",
    "args": "arguments",
    "parameters": "arguments",
    "keyword args": "arguments",
    "raises": "raises",
    "return": "returns",
    "returns": "returns",
}
_OTHER_HEADERS = {"attributes", "note", "notes", "warning", "warnings", "yields"}
_LEFT_OUT = {"example", "examples", "reference", "references", "see also", "usage"}
_UNDERLINE = re.compile(r"[-=~^]{3,}$")
_CODE = re.compile(r"```|~~~|\|.*\||</?\w+[^>]*>$|\.\. (?:code|math|image|figure|plot)")
_ITEM = re.compile(r":\w+[^:]*:|[`*]*\w+[`*]*(?: ?\([^()]*\))? ?:(?:\s|$)|[-*+•] |\d+[.)] |\.\. \w")
_NUMPY_ITEM = re.compile(r"[`*]*\w+[`*]*(?:, [`*]*\w+[`*]*)* : \S")
_ROLE = re.compile(r":[a-z][a-z:]*:`~?([^`<]*)[^`]*`")

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Documented = Union[ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]


class Span(NamedTuple):
    """Characters [start, end) of a context."""

    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class DocumentedObject:
    """A class or function with its documentation.

    Attributes:
      name: qualified name inside its module, for example ``Reader.read``.
      context: the signature line and the lines of the documentation.
      sections: the spans in the context of ``arguments``, ``returns`` and ``raises``, without their
        headers, as far as they exist.
    """

    name: str
    context: str
    sections: Mapping[str, Span]

    @property
    def documentation(self) -> str:
        """The context without its signature line."""
        return self.context.partition("\n")[2]


class _Line(NamedTuple):
    """A paragraph, item or header (``section`` is set) of a docstring, as one line."""

    text: str
    indentation: int
    section: str | None = None
    underlined: bool = False


def documented_objects(source: str, module: str, *, max_words: int) -> Iterator[DocumentedObject]:
    """The public classes and functions of a module, in the order of the source.

    Args:
      source: the module's source code.
      module: its dotted name, with which signature lines begin.
      max_words: maximum number of words in a context; longer ones lose whole lines at the end.

    Raises SyntaxError, ValueError or RecursionError for source that cannot be parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other packages' strings
        tree = ast.parse(source)
    yield from _objects_inside(tree, module, (), max_words)


def _objects_inside(
    node: ast.AST, module: str, outer: tuple[str, ...], max_words: int
) -> Iterator[DocumentedObject]:
    for child in getattr(node, "body", ()):
        if not isinstance(child, (ast.ClassDef, *_Function)) or child.name.startswith("_"):
            continue
        names = (*outer, child.name)
        docstring = ast.get_docstring(child, clean=False)
        if docstring:
            name = ".".join(names)
            yield _object(name, _signature(child, f"{module}.{name}"), docstring, max_words)
        if isinstance(child, ast.ClassDef):
            yield from _objects_inside(child, module, names, max_words)


def _signature(node: _Documented, name: str) -> str:
    """The first line of a context; just the name if the signature would be very long."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        signature = f"class {name}({bases})" if bases else f"class {name}"
    else:
        arguments = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
        signature = f"{name}({arguments})"
        if node.returns is not None:
            signature += f" -> {ast.unparse(node.returns)}"
    is_plain = signature.isprintable() and len(signature.split()) <= _MAX_SIGNATURE_WORDS
    return signature if is_plain else name


def _object(name: str, signature: str, docstring: str, max_words: int) -> DocumentedObject:
    context, num_words = signature, len(signature.split())
    sections: dict[str, Span] = {}
    section, header = None, None
    for line in _lines(docstring):
        num_words += len(line.text.split())
        if num_words > max_words:
            break
        start = len(context) + 1
        context = f"{context}\n{line.text}"
        if line.section is not None:
            section, header = line.section, line
        elif header and not header.underlined and line.indentation <= header.indentation:
            section, header = None, None
        elif section in SECTIONS and (
            section not in sections or sections[section].end == start - 1
        ):
            first = sections[section].start if section in sections else start
            sections[section] = Span(first, len(context))
    return DocumentedObject(name, context, sections)


def _lines(docstring: str) -> Iterator[_Line]:
    """Paragraphs, items and headers of a docstring, without code and sections of examples."""
    left_out: _Line | None = None
    for line in _joined_lines(inspect.cleandoc(docstring).expandtabs(4)):
        ends = line.section is not None or (
            left_out and not left_out.underlined and line.indentation <= left_out.indentation
        )
        if ends:
            left_out = line if line.section == "left out" else None
        if left_out is None:
            yield line


def _joined_lines(text: str) -> Iterator[_Line]:
    """Joins the lines of each paragraph, item or header; drops underlines and code."""
    raw = text.split("\n")
    joined: _Line | None = None
    fenced = in_doctest = False
    for number, full in enumerate(raw):
        stripped = _plain(full)
        fenced ^= full.strip().startswith(("```", "~~~"))
        in_doctest = bool(stripped) and (in_doctest or stripped.startswith(">>>"))
        is_code = fenced or in_doctest or _CODE.match(stripped)
        ends = not stripped or is_code or _UNDERLINE.match(stripped)
        indentation = len(full) - len(full.lstrip())
        underlined = number + 1 < len(raw) and bool(_UNDERLINE.match(raw[number + 1].strip()))
        section = None if ends else _section(stripped, underlined)
        if joined and (ends or section or _starts_line(stripped, indentation, joined)):
            yield joined
            joined = None
        if ends:
            continue
        if section:
            yield _Line(stripped, indentation, section, underlined)
        elif joined:
            joined = joined._replace(text=f"{joined.text} {stripped}")
        else:
            joined = _Line(stripped, indentation)
    if joined:
        yield joined


def _plain(line: str) -> str:
    """A line without inline mark-up of reStructuredText and Markdown."""
    return " ".join(_ROLE.sub(r"\1", line).replace("`", "").split())


def _starts_line(text: str, indentation: int, before: _Line) -> bool:
    """Whether a line is an item, is indented less than the line before, or follows a numpy item."""
    is_item = bool(_ITEM.match(text)) and indentation <= before.indentation
    return is_item or indentation < before.indentation or bool(_NUMPY_ITEM.match(before.text))


def _section(line: str, underlined: bool) -> str | None:
    """The section that a header starts, or ``other`` or ``left out``; None for other lines."""
    title = line.rstrip(":").strip("* ").lower()
    if not (underlined or line.endswith(":")):
        return None
    if title in _HEADERS:
        return _HEADERS[title]
    if title in _LEFT_OUT:
        return "left out"
    return "other" if underlined or title in _OTHER_HEADERS else None
