"""Reads the pages of a MediaWiki dump in XML, one at a time.

The format is MediaWiki's export format, https://www.mediawiki.org/wiki/Help:Export. Memory is that
of a page, whatever the size of the dump.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

from bert_tf.util.errors import UserError, short_repr
from data_prep.text.languages import is_language
from data_prep.text.mediawiki_namespaces import namespace_aliases

ARTICLES = 0  # the namespace of articles
_WITHOUT_TEXT = (-2, 6, 14)  # media, files, categories
# MediaWiki's own limit is 2 MiB of text; XML has characters as entities.
LONGEST_PAGE_BYTES = 64 << 20


# In the first tag; what is before it may be a comment.
_LANGUAGE = re.compile(rb"<mediawiki\s[^>]*?\bxml:lang=[\"']([A-Za-z0-9-]+)")


class Page(NamedTuple):
    """A page's latest revision in a dump."""

    title: str
    namespace: int
    is_redirect: bool
    text: str


class Site(NamedTuple):
    """What a dump says of its wiki.

    Attributes:
      language: such as ``de``; empty if the dump does not say.
      hidden: lower-case prefixes of links that show no text: files, media and categories.
    """

    language: str
    hidden: frozenset[str]


def language_of(head: bytes) -> str | None:
    """The language that a dump names at its beginning, by the code of a Wikipedia."""
    found = _LANGUAGE.search(head)
    code = found[1].decode("ascii").lower() if found else ""
    return code if is_language(code) else None


def read_pages(stream: IO[bytes], name: str) -> Iterator[tuple[Site, Page]]:
    """Yields all pages of a dump, each with the site.

    Raises UserError, with the dump's name, if it is truncated or no dump.
    """
    try:
        yield from _pages(_Bounded(stream, name), name)
    except ElementTree.ParseError as error:
        raise UserError(
            f"--input_file: {name} is not a whole MediaWiki dump in XML ({error}); download it "
            "again."
        ) from error


class _Bounded:
    """A stream that refuses to bring more than a page may have, before the page ends.

    A few kilobytes can decompress to many gigabytes.
    """

    def __init__(self, stream: IO[bytes], name: str):
        self._stream = stream
        self._name = name
        self.since_page = 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.since_page += len(block)
        if self.since_page > LONGEST_PAGE_BYTES:
            raise UserError(
                f"--input_file: {self._name} has a page of more than "
                f"{LONGEST_PAGE_BYTES >> 20} MiB, so it is not a dump of the latest revisions; "
                "give a file such as pages-articles.xml.bz2."
            )
        return block


def _pages(stream: _Bounded, name: str) -> Iterator[tuple[Site, Page]]:
    site, depth = Site("", frozenset()), 0
    root: ElementTree.Element | None = None
    for event, element in ElementTree.iterparse(stream, events=("start", "end")):
        if event == "start":
            depth += 1
            if root is None:
                root = _root(element, name)
                language = _language(element)
                site = Site(language, _hidden({}, language))
            continue
        depth -= 1
        if depth != 1:
            continue
        tag = _local(element.tag)
        if tag == "siteinfo":
            site = site._replace(hidden=_hidden(_namespaces(element, name), site.language))
        elif tag == "page":
            yield site, _page(element, name)
        if root is not None:
            root.clear()
        stream.since_page = 0


def _root(element: ElementTree.Element, name: str) -> ElementTree.Element:
    if _local(element.tag) != "mediawiki":
        raise UserError(
            f"--input_file: {name} is not a MediaWiki dump: it begins with <{_local(element.tag)}>."
        )
    return element


def _language(root: ElementTree.Element) -> str:
    return root.get("{http://www.w3.org/XML/1998/namespace}lang", "")


def _page(element: ElementTree.Element, name: str) -> Page:
    found = {_local(inside.tag): inside for inside in element.iter()}
    return Page(
        title=_text(found.get("title")),
        namespace=_number(_text(found.get("ns")) or str(ARTICLES), name),
        is_redirect="redirect" in found,
        text=_text(found.get("text")),
    )


def _namespaces(siteinfo: ElementTree.Element, name: str) -> dict[int, str]:
    return {
        _number(inside.get("key", str(ARTICLES)), name): _text(inside)
        for inside in siteinfo.iter()
        if _local(inside.tag) == "namespace"
    }


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"--input_file: {name} is damaged: the number of a namespace is {short_repr(text)}; "
            "download it again."
        ) from None


def _hidden(namespaces: dict[int, str], language: str) -> frozenset[str]:
    """The prefixes of links to files, media and categories: MediaWiki's own and the wiki's."""
    own = {namespaces.get(number, "") for number in _WITHOUT_TEXT} - {""}
    names = {"file", "image", "category", "media"} | own | namespace_aliases(language)
    return frozenset(name.lower() for name in names)


def _text(element: Any) -> str:
    return (element.text or "") if element is not None else ""


def _local(tag: str) -> str:
    """A name without its XML namespace, which has the version of the format."""
    return tag.rpartition("}")[2]
