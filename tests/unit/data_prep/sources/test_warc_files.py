"""Text from web archives: against warcio's own iteration, and damaged ones made by hand."""

from __future__ import annotations

import collections
import encodings.aliases
import gzip
import importlib.metadata
import io
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.sources import warc_files
from data_prep.stages.extract import Settings, run
from tests.helpers.archives import tar_of, wet_of

warcio = pytest.importorskip("warcio")

from warcio.archiveiterator import ArchiveIterator  # noqa: E402
from warcio.statusandheaders import StatusAndHeaders  # noqa: E402
from warcio.warcwriter import WARCWriter  # noqa: E402

PAGES = [["Eine Überschrift", "Ein Satz, und noch einer."], ["一个句子。", "另一个。"], ["Three."]]
EXPECTED = "".join("".join(f"{line}\n" for line in lines) + "\n" for lines in PAGES)
TEXTS = ["\n".join(lines) for lines in PAGES]


def write(writer, body, kind="conversion", media="text/plain", http=None, truncated=None):
    """Writes a record; ``http`` are the headers of a response."""
    options = {"warc_content_type": media} if http is None else {"http_headers": http}
    if truncated:
        options["warc_headers_dict"] = {"WARC-Truncated": truncated}
    payload = io.BytesIO(body)
    writer.write_record(
        writer.create_warc_record("http://example.org", kind, payload=payload, **options)
    )


def warc_of(*records):
    """A file without compression; each record is a body with the options of ``write``."""
    content = io.BytesIO()
    writer = WARCWriter(content, gzip=False)
    for body, options in records:
        write(writer, body, **options)
    return content.getvalue()


def response(body, media="text/plain", status="200 OK", truncated=None, **headers):
    headers = [(name.replace("_", "-"), value) for name, value in headers.items()]
    http = StatusAndHeaders(status, [("Content-Type", media), *headers], protocol="HTTP/1.1")
    return body, {"kind": "response", "http": http, "truncated": truncated}


def by_hand(*records, version=b"WARC/1.0"):
    """Records of headers (a dictionary) and a body, exactly as given."""
    return b"".join(
        version
        + b"\r\n"
        + b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        + b"\r\n"
        + body
        + b"\r\n\r\n"
        for headers, body in records
    )


def text_record(body, **headers):
    own = {"WARC-Type": "conversion", "Content-Type": "text/plain", "Content-Length": len(body)}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    return {name: value for name, value in own.items() if value is not None}, body


def extract(tmp_path, content, name="a.warc", **options):
    (tmp_path / name).write_bytes(content)
    return run(Settings(str(tmp_path / name), str(tmp_path / "out"), num_workers=1, **options))


def text_of(directory):
    return "".join(path.read_text() for path in sorted(directory.glob("articles-*.txt")))


@pytest.mark.parametrize("name", ["CC-MAIN-20260101-00000.warc.wet.gz", "plain.warc", "b"])
def test_each_record_of_a_wet_file_is_a_document(tmp_path, name):
    content = wet_of(TEXTS, compresses=name.endswith(".gz"))
    iterated = [
        record.content_stream().read().decode()
        for record in ArchiveIterator(io.BytesIO(content))
        if record.rec_type == "conversion"
    ]
    assert iterated == TEXTS
    out = extract(tmp_path, content, name)
    assert text_of(out) == EXPECTED
    manifest = read_manifest(out)
    assert manifest.counts == {"articles": 3, "other_records": 1}
    assert manifest.made_by == {"stage": "2", "warcio": importlib.metadata.version("warcio")}


def test_a_member_of_an_archive(tmp_path):
    members = {
        "x/a.warc.wet.gz": wet_of(TEXTS[:1]),
        "x/b.warc": wet_of(TEXTS[1:], compresses=False),
    }
    assert text_of(extract(tmp_path, tar_of(members), "both.tar")) == EXPECTED


def test_one_gzip_member_for_all_records_and_one_member_for_each(tmp_path):
    plain = wet_of(TEXTS, compresses=False)
    assert wet_of(TEXTS).count(b"\x1f\x8b\x08") == len(PAGES) + 1
    assert text_of(extract(tmp_path, gzip.compress(plain), "a.warc.gz")) == EXPECTED


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_what_warcio_iterates_over_is_read(bodies):
    content = warc_of(*((body, {}) for body in bodies))
    found = warc_files.read_warc(io.BytesIO(content), "a", collections.Counter(), encoding="utf-8")
    iterated = [record.raw_stream.read() for record in ArchiveIterator(io.BytesIO(content))]
    assert [record.content for record in found] == iterated == bodies


TEXT = "One ä and two"
SENT = {
    "utf-8": response(TEXT.encode()),
    "a byte order mark": response(TEXT.encode("utf-8-sig")),
    "windows-1252": response(TEXT.encode("cp1252"), "text/plain; charset=windows-1252"),
    "quoted": response(TEXT.encode("latin1"), 'TEXT/Plain;format=flowed; Charset = "ISO-8859-1"'),
    "utf-16": response(TEXT.encode("utf-16"), "text/plain;charset=utf-16"),
    "an unknown charset": response(TEXT.encode(), "text/plain; charset=unknown-8bit"),
    "a codec that is no charset": response(TEXT.encode(), "text/plain; charset=punycode"),
    "a codec of bytes": response(TEXT.encode(), "text/plain; charset=base64"),
    "chunks": response(
        b"6\r\nOne \xc3\xa4\r\n8\r\n and two\r\n0\r\n\r\n", Transfer_Encoding="chunked"
    ),
    "no chunks, against the header": response(TEXT.encode(), Transfer_Encoding="chunked"),
    "gzip": response(gzip.compress(TEXT.encode()), Content_Encoding="gzip"),
    "deflate": response(zlib.compress(TEXT.encode()), Content_Encoding="Deflate"),
    "identity": response(TEXT.encode(), Content_Encoding="identity"),
    "another success": response(TEXT.encode(), status="203 Non-Authoritative Information"),
    "a resource": (TEXT.encode(), {"kind": "resource"}),
}


@pytest.mark.parametrize("kind", SENT)
def test_plain_text_as_servers_send_it(tmp_path, kind):
    out = extract(tmp_path, warc_of(SENT[kind]))
    assert text_of(out) == f"{TEXT}\n\n"
    assert read_manifest(out).counts == {"articles": 1}


@pytest.mark.parametrize(
    ("encoding", "cut"), [("utf-8", 1), ("utf-8", 2), ("shift_jis", 1), ("utf-16-le", 1)]
)
def test_what_the_crawler_cut_ends_with_a_whole_character(tmp_path, encoding, cut):
    body = "One 日".encode(encoding)[:-cut]
    record = response(body, f"text/plain; charset={encoding}", truncated="length")
    out = extract(tmp_path, warc_of(record))
    assert text_of(out) == "One\n\n"
    assert read_manifest(out).counts == {"articles": 1, "truncated_records": 1}


def test_gzip_that_the_crawler_cut(tmp_path):
    words = "".join(f"{number} words. " for number in range(3000)).encode()
    body = gzip.compress(words)[:5000]
    record = response(body, Content_Encoding="gzip", truncated="disconnect")
    text = text_of(extract(tmp_path, warc_of(record))).encode().rstrip()
    assert len(text) > 5000
    assert words.startswith(text)


def test_lines_that_are_wrapped_are_joined_unless_they_were_extracted_from_a_page(tmp_path):
    line = "It was a dark and stormy night, and the rain fell in torrents upon all"
    body = "\n".join([line] * 3 + ["the roofs.", "", "End."]).encode()
    out = extract(tmp_path, warc_of(response(body), (body, {})))
    wrapped = f"{line}\n{line}\n{line}\nthe roofs.\nEnd.\n\n"
    assert text_of(out) == f"{line} {line} {line} the roofs.\nEnd.\n\n" + wrapped


LEFT_OUT = {
    "html_records": response(b"<p>One.</p>", "text/html; charset=utf-8"),
    "other_records": response(b"\x89PNG", "image/png"),
    "a page that is missing": response(b"Not found.", status="404 Not Found"),
    "a status that is none": response(b"One.", status=""),
    "a request": (b"GET / HTTP/1.1\r\n\r\n", {"kind": "request", "media": "application/http"}),
    "metadata": (b"a: b", {"kind": "metadata"}),
    "another type": (b"{}", {"kind": "conversion", "media": "application/json"}),
    "a coding that is unknown": response(b"One.", Content_Encoding="br"),
    "damaged gzip": response(b"\x1f\x8b One.", Content_Encoding="gzip"),
    "cut gzip": response(gzip.compress(b"One.")[:-3], Content_Encoding="gzip"),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_records_that_are_left_out_are_counted(tmp_path, kind):
    content = warc_of(LEFT_OUT[kind], (b"One.", {}), LEFT_OUT[kind])
    out = extract(tmp_path, content)
    assert text_of(out) == "One.\n\n"
    [(name, count)] = {**read_manifest(out).counts, "articles": None}.items() - {("articles", None)}
    assert count == 2
    is_unreadable = kind in ("a coding that is unknown", "damaged gzip", "cut gzip")
    usual = "undecodable_records" if is_unreadable else "other_records"
    assert name == (kind if kind.endswith("_records") else usual)


def test_records_without_content_have_no_text(tmp_path):
    response = {"WARC-Type": "response", "Content-Type": "application/http", "Content-Length": 0}
    texts = warc_of((b"", {}), (b" \n\n", {}), (b"One.", {}), (b"", {}))
    out = extract(tmp_path, texts + by_hand((response, b"")))
    assert text_of(out) == "One.\n\n"
    counts = {"articles": 1, "articles_without_text": 3, "other_records": 1}
    assert read_manifest(out).counts == counts


@pytest.mark.parametrize("expands", [False, True])
def test_text_that_is_too_long_is_left_out(tmp_path, monkeypatch, expands):
    monkeypatch.setattr(warc_files, "LONGEST_TEXT_BYTES", 1000)
    long = b"word " * 201
    record = response(gzip.compress(long), Content_Encoding="gzip") if expands else (long, {})
    out = extract(tmp_path, warc_of(record, (long[:1000], {})))
    assert text_of(out).encode() == long[:999] + b"\n\n"
    left_out = "undecodable_records" if expands else "too_long_records"
    assert read_manifest(out).counts == {"articles": 1, left_out: 1}


def test_pages_in_html_alone_are_refused(tmp_path):
    page = response(b"<p>One.</p>", "text/html")
    xhtml = response(b"<p>One.</p>", "application/xhtml+xml")
    with pytest.raises(
        UserError, match=r"web pages in HTML \(2 records\), but no plain text; give"
    ):
        extract(tmp_path, warc_of(page, xhtml))


GOOD = text_record(b"Before.")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (by_hand(GOOD, text_record(b"One.", Content_Length=None)), "record 2 .* no Content-Length"),
        (by_hand(text_record(b"One.", Content_Length="four")), "the Content-Length 'four'"),
        (by_hand(text_record(b"One.", Content_Length="-4")), "the Content-Length '-4'"),
        (by_hand(text_record(b"One.", Content_Length="٤")), "the Content-Length"),
        (
            by_hand(text_record(b"One.", Content_Length="9" * 5000)),
            "the Content-Length '9{40}', so",
        ),
        (by_hand(text_record(b"One.", Content_Length="9" * 18)), "record 1 .* is longer than what"),
        (by_hand(text_record(b"One.", Content_Length="9")), "record 1 .* is longer than what"),
        (
            by_hand(text_record(b"One. Two.", Content_Length=4), GOOD),
            "record 2 .* begins with b' Two",
        ),
        (by_hand(text_record(b"One.", Content_Length=40), GOOD), "record 2 .* begins with"),
        (by_hand(GOOD, version=b"WARC/9.9"), "begins with b'WARC/9.9.* instead of WARC/1.0"),
        (by_hand(GOOD)[:60], "record 1 of .* (no Content-Length|longer than)"),
        (by_hand(GOOD)[:-6], "record 1 .* is longer than what is left of the file"),
        (
            by_hand(text_record(b"One.", X="y" * 2_000_000)),
            "the header of record 1 .* is longer than",
        ),
        (by_hand(text_record(b"One.", **{f"X{n}": "y" * 99 for n in range(20_000)})), "the header"),
        (by_hand(text_record(b"T\xffwo.")), "byte 1 of record 1 of .* is not UTF-8; "),
        (
            warc_of(response(b"T\xff", "text/plain; charset=ascii")),
            "byte 1 of record 1 of .* is not ASCII; ",
        ),
        (wet_of(TEXTS)[:-30], "a.warc is damaged or was not downloaded completely"),
        (wet_of(TEXTS) + b"rest", "a.warc is damaged or was not .*no gzip stream begins"),
    ],
)
def test_damaged_archives(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence) as raised:
        extract(tmp_path, content)
    assert len(str(raised.value)) < 400


def test_a_record_is_as_long_as_it_says(tmp_path):
    """Blank lines in it do not end it, and lines that look like a record do not begin one."""
    body = b"One.\r\n\r\nWARC/1.0\r\nWARC-Type: conversion\r\n\r\nTwo."
    out = extract(tmp_path, by_hand(text_record(body), GOOD, version=b"WARC/1.1"))
    assert text_of(out) == "One.\nWARC/1.0\nWARC-Type: conversion\nTwo.\n\nBefore.\n\n"


def test_bytes_of_a_wrong_charset_can_be_replaced(tmp_path):
    content = warc_of(
        response(b"T\xff\xffo", "text/plain; charset=ascii"), (b"T\xff\xef\xbf\xbdo", {})
    )
    out = extract(tmp_path, content, invalid_utf8="replace")
    assert text_of(out) == "T\ufffd\ufffdo\n\nT\ufffd\ufffdo\n\n"
    assert read_manifest(out).counts["replaced_characters"] == 3


def test_any_charset_is_decoded_or_taken_for_unknown():
    """Codecs of Python include some for which text cannot be cut, or decoding takes long."""
    for name in {*encodings.aliases.aliases, *encodings.aliases.aliases.values()}:
        found = warc_files._encoding_of(name, "utf-8")
        assert b"aaaa".startswith(warc_files._without_cut_character(b"aaaa", found))
        assert isinstance(b"aaaa".decode(found, "replace"), str)


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    content = wet_of(TEXTS)
    monkeypatch.setitem(sys.modules, "warcio", None)
    with pytest.raises(UserError, match=r"need the package warcio.*; run: pip install warcio=="):
        extract(tmp_path, content)
