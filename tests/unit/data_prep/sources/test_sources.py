"""What extraction reads besides dumps: JSON, Parquet, text files, WikiExtractor's, archives."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.sources import containers, source_text
from data_prep.stages.extract import Settings, run
from tests.helpers.archives import parquet_of, tar_of, zip_of
from tests.helpers.mediawiki import dump, page

DOCUMENTS = [["First paragraph.", "Second one."], ["Ünïcode — text."], ["Three.", "3.", "III."]]
EXPECTED = "".join("".join(f"{line}\n" for line in lines) + "\n" for lines in DOCUMENTS)


def extract(tmp_path, name, **options):
    options = {"num_workers": 1, **options}
    return run(Settings(str(tmp_path / name), str(tmp_path / "out"), **options))


def text_of(directory):
    return "".join(path.read_text() for path in sorted(directory.glob("articles-*.txt")))


def json_lines(documents, field="text"):
    return "".join(json.dumps({"id": 1, field: "\n\n".join(d)}) + "\n" for d in documents).encode()


TEXTS = {f"{n}.txt": "\n\n".join(lines).encode() for n, lines in enumerate(DOCUMENTS)}
WIKIEXTRACTOR = "".join(
    f'<doc id="{n}" url="u" title="T {n}">\nT {n}\n\n' + "\n\n".join(lines) + "\n\n</doc>\n\n"
    for n, lines in enumerate(DOCUMENTS)
).encode()
SOURCES = {
    "a.jsonl": json_lines(DOCUMENTS),
    "wiki_00": json_lines(DOCUMENTS),
    "lists.json": "".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS).encode(),
    "one.json": json.dumps([{"text": d} for d in DOCUMENTS], indent=1).encode(),
    "wiki_01": WIKIEXTRACTOR,
    "plain.txt": EXPECTED.encode(),
    "crlf.txt": EXPECTED.replace("\n", "\r\n").encode(),
    "cr.txt": EXPECTED.replace("\n", "\r").encode(),
    "marked.txt": EXPECTED.encode("utf-8-sig"),
    "wide.txt": EXPECTED.encode("utf-16"),
    "wider.txt": EXPECTED.encode("utf-32"),
    "wide.jsonl": json_lines(DOCUMENTS).decode().encode("utf-16"),
    "dump.xml": dump(*[page("P", "\n\n".join(d)) for d in DOCUMENTS]),
    "lines.tar": tar_of({"data/a.jsonl": json_lines(DOCUMENTS)}),
    "lines.zip": zip_of({"data/a.jsonl": json_lines(DOCUMENTS)}),
    "several.tar": tar_of({"a.json": json_lines(DOCUMENTS[:1]), "b.xz": lzma.compress(
        json_lines(DOCUMENTS[1:]))}),
}  # fmt: skip


@pytest.mark.parametrize("compress", [bytes, bz2.compress, gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", SOURCES)
def test_each_format_is_recognised(tmp_path, name, compress):
    if name.endswith(".zip") and compress is not bytes:
        pytest.skip("a zip archive is read in random order")
    (tmp_path / name).write_bytes(compress(SOURCES[name]))
    out = extract(tmp_path, name)
    assert text_of(out) == EXPECTED
    assert read_manifest(out).counts["articles"] == 3


@pytest.mark.parametrize("pack", ["folder", "tar", "zip", "tar of tars"])
def test_a_document_a_file(tmp_path, pack):
    if pack == "folder":
        for name, content in TEXTS.items():
            (tmp_path / "in" / "deep" / name[0]).mkdir(parents=True)
            (tmp_path / "in" / "deep" / name[0] / name).write_bytes(content)
        (tmp_path / "in" / "deep" / ".hidden").write_text("Not this.")
    elif pack == "zip":
        (tmp_path / "in").write_bytes(zip_of({"__MACOSX/._0.txt": b"\0", **TEXTS}))
    elif pack == "tar":
        (tmp_path / "in").write_bytes(tar_of(TEXTS))
    else:  # as OpenWebText is published: a tar.xz of tars that are compressed by xz
        inner = lzma.compress(tar_of(TEXTS))
        (tmp_path / "in").write_bytes(lzma.compress(tar_of({"urlsf_subset00-1_data.xz": inner})))
    with pytest.raises(UserError, match="is plain text; give --format=documents if"):
        extract(tmp_path, "in")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    out = extract(tmp_path, "in", format="documents")
    assert text_of(out) == EXPECTED
    counts = read_manifest(out).counts
    assert counts == {"articles": 3} | ({"skipped_members": 1} if pack == "zip" else {})


def test_wrapped_paragraphs_of_a_book_are_joined(tmp_path):
    line = "It was a dark and stormy night, and the rain fell in torrents upon all"
    (tmp_path / "book.txt").write_text(f"CHAPTER I\n\n{line}\n{line}\n{line}\nthe roofs.\n\nEnd.\n")
    out = extract(tmp_path, "book.txt", format="documents")
    assert text_of(out) == f"CHAPTER I\n{line} {line} {line} the roofs.\nEnd.\n\n"


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "lists"])
def test_parquet(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    texts = [d if kind == "lists" else "\n".join(d) for d in DOCUMENTS] + [None]
    column = pyarrow.array(texts)
    if kind == "large_string":
        column = column.cast(pyarrow.large_string())
    elif kind == "dictionary":
        column = column.dictionary_encode()
    parquet_of(tmp_path / "part.parquet", {"id": [1, 2, 3, 4], "content": column}, row_group_size=2)
    out = extract(tmp_path, "part.parquet", text_field="content")
    assert text_of(out) == EXPECTED
    assert read_manifest(out).counts == {"articles": 3, "articles_without_text": 1}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([b"One.", b"T\xffwo."], "row 1 of .*part.parquet is not UTF-8"),
        ([[b"One."], [b"T\xffwo."]], "row 1 of .*part.parquet is not UTF-8"),
        ([1, 2], "row 0 of .* is not text or a list of texts"),
        ([["One."], ["Two.", None]], "row 1 of .* is not text or a list of texts"),
    ],
)
def test_parquet_without_text(tmp_path, values, sentence):
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array(values)
    if values[0] == b"One.":  # as text, which no writer checks
        column = column.view(pyarrow.string())
    parquet_of(tmp_path / "part.parquet", {"text": column})
    with pytest.raises(UserError, match=sentence):
        extract(tmp_path, "part.parquet")
    if "UTF-8" in sentence:
        out = extract(tmp_path, "part.parquet", invalid_utf8="replace")
        assert text_of(out) == "One.\n\nT\ufffdwo.\n\n"
        assert read_manifest(out).counts["replaced_characters"] == 1


def test_lists_of_other_writers(tmp_path):
    """Spark, for example, calls their values "element"; here they are not UTF-8."""
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array([b"One.", b"T\xffwo."]).view(pyarrow.string())
    kind = pyarrow.list_(pyarrow.field("element", pyarrow.string(), nullable=False))
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 2], pyarrow.int32()), column, type=kind)
    parquet_of(tmp_path / "part.parquet", {"text": lists})
    with pytest.raises(UserError, match=r"row 0 of .*part.parquet is not UTF-8"):
        extract(tmp_path, "part.parquet")
    out = extract(tmp_path, "part.parquet", invalid_utf8="replace")
    assert text_of(out) == "One.\nT\ufffdwo.\n\n"


def test_damaged_pages_of_parquet(tmp_path):
    path = tmp_path / "part.parquet"
    parquet_of(path, {"text": ["word " * 500]}, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index(b"word ") + 700] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged or no whole Parquet file"):
        extract(tmp_path, "part.parquet")


def test_a_sentence_a_row(tmp_path):
    """As bookcorpus of Hugging Face: no row is a document."""
    rows = [f"sentence {n} ." for n in range(10)]
    parquet_of(tmp_path / "part.parquet", {"text": rows}, row_group_size=3)
    expected = "".join("".join(f"{r}\n" for r in rows[n : n + 4]) + "\n" for n in (0, 4, 8))
    assert text_of(extract(tmp_path, "part.parquet", rows_per_document=4)) == expected
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": r}) + "\n\n" for r in rows))
    assert text_of(extract(tmp_path, "rows.jsonl", rows_per_document=4)) == expected


def test_windows_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("Ein „Wörterbuch“ – 5 €.".encode("cp1252"))
    with pytest.raises(UserError, match=r"is not UTF-8; .* with its --encoding, such as"):
        extract(tmp_path, "a.txt")
    out = extract(tmp_path, "a.txt", encoding="windows-1252")
    assert text_of(out) == "Ein „Wörterbuch“ – 5 €.\n\n"
    out = extract(tmp_path, "a.txt", invalid_utf8="replace")
    assert text_of(out).count("\ufffd") == read_manifest(out).counts["replaced_characters"] == 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"text": "a"}\n{"body": "b"}\n', "=text: line 2 of .* has no such field, but body"),
        (b'{"text": "a"}\n\n{"text": 1}\n', "text in line 3 of .* is not text or a list"),
        (b'{"text": "a"}\n{"text": \n', "line 2 of .* is not valid JSON"),
        (b'{"text": "a"}\n[1]\n', "line 2 of .* is not a JSON object"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2 of .* is not UTF-8"),
        (b'{"text": "a"}\n' + b'{"a":' * 100_000 + b"\n", "line 2 of .* is nested too deeply"),
        (b'{"text": null}\n', "contains no article with text"),
        (WIKIEXTRACTOR[:-20], "ends inside the article at line "),
        (WIKIEXTRACTOR + b"after", "is outside of <doc> and </doc>"),
        (b"PAR1" + bytes(100), "damaged or no whole Parquet file"),
        (gzip.compress(b"PAR1" + bytes(100)), "a Parquet file inside another file"),
        (b"%PDF-1.7\n", "is a PDF file, not text"),
        (b"\n<!DOCTYPE html>\n<p>A page.</p>", "is HTML, whose tags"),
        (b"<?xml version='1.0'?>\n<!-- a > b --><HTML lang=en><body>", "is HTML, whose tags"),
        (b"\x28\xb5\x2f\xfd" + bytes(9), "compressed by zstd"),
        ("UTF-16 without a mark".encode("utf-16-le"), "full of null bytes"),
        (tar_of(TEXTS)[:-9000], "damaged or was not downloaded completely"),
        (tar_of(TEXTS)[:1600], "damaged or was not downloaded completely"),
        (tar_of(TEXTS)[:1024] + b"x" * 2048, "damaged or was not downloaded completely"),
        (zip_of(TEXTS)[:-30], "damaged or was not downloaded completely"),
        (
            zip_of({"ä.txt": b""}).replace("ä".encode(), b"\xff\xff", 1),
            "damaged or was not downloaded completely",
        ),
        (zip_of(TEXTS)[:4] + zip_of(TEXTS)[40:], "damaged or was not downloaded completely"),
        (zip_of({"a": zip_of(TEXTS)}), "is a zip archive inside another file"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_refused(tmp_path, content, sentence):
    if content.startswith(b"PAR1"):
        pytest.importorskip("pyarrow")
    (tmp_path / "input").write_bytes(content)
    reading = {"format": "documents"} if b"0.txt" in content else {}
    reading |= {"format": "jsonl"} if content.startswith(b'{"t') else {}
    with pytest.raises(UserError, match=sentence):
        extract(tmp_path, "input", **reading)
    assert not list(tmp_path.glob("out/*"))


def test_a_member_of_a_zip_archive_without_a_name(tmp_path):
    content = zip_of({"aa": b"Its text.\n"}).replace(b"aa", b"\0a")
    (tmp_path / "a.zip").write_bytes(content)
    assert text_of(extract(tmp_path, "a.zip", format="text")) == "Its text.\n\n"


def test_text_about_html_is_text(tmp_path):
    content = "<htmlish> is not a tag, but <html> begins a page.\n\n"
    (tmp_path / "a.txt").write_text(content)
    assert text_of(extract(tmp_path, "a.txt")) == content


def test_numbers_are_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": ' + "9" * 10_000 + ', "text": "Kept."}\n')
    assert text_of(extract(tmp_path, "a.jsonl")) == "Kept.\n\n"


def test_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"need the package pyarrow, .*pip install"):
        extract(tmp_path, "a.parquet")


def test_workers_and_batches_change_nothing(tmp_path):
    documents = [[f"{n} of {m}. " * (n % 7 + 1) for n in range(m % 9 + 1)] for m in range(3000)]
    (tmp_path / "a.jsonl").write_bytes(json_lines(documents))
    one = text_of(extract(tmp_path, "a.jsonl"))
    assert one.count("\n\n") == 3000
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    assert text_of(extract(tmp_path, "a.jsonl", num_workers=2)) == one


@given(st.text(alphabet="a \t\u3000"), st.integers(1, 5))
def test_white_space_of_long_lines(line, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_text, "REDUCED_CHARACTERS", at_once)
        assert source_text.reduced([line]) == list(filter(None, [" ".join(line.split())]))


def test_long_documents_are_cut_and_counted(tmp_path, monkeypatch):
    from data_prep.sources import plain_text_files

    monkeypatch.setattr(plain_text_files, "LONGEST_DOCUMENT_BYTES", 2000)
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1000)
    text = "".join(f"Word{n} ends. " for n in range(1000)).strip()
    (tmp_path / "a.txt").write_text(text)
    out = extract(tmp_path, "a.txt")
    assert text_of(out).split() == text.split()
    counts = read_manifest(out).counts
    assert counts["cut_documents"] == counts["articles"] - 1 > 5
    assert all(line.endswith("ends.") for line in text_of(out).split("\n") if line)


# Lines of plain text are joined where they look wrapped, which takes 40 characters.
LINES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=39)


@given(
    documents=st.lists(st.lists(LINES, min_size=1), min_size=1),
    compress=st.sampled_from([bytes, gzip.compress]),
    seed=st.sampled_from([".jsonl", ".json", ".txt", ".tar"]),
)
@settings(max_examples=40, deadline=None)
def test_texts_come_back(tmp_path_factory, documents, compress, seed):
    tmp_path = tmp_path_factory.mktemp("case")
    expected = "".join("\n".join(d) + "\n\n" for d in documents)
    content = {
        ".jsonl": json_lines(documents),
        ".json": json.dumps([{"text": d} for d in documents], indent=0).encode(),
        ".txt": expected.encode(),
        ".tar": tar_of({f"{n}": "\n\n".join(d).encode() for n, d in enumerate(documents)}),
    }[seed]
    (tmp_path / f"a{seed}").write_bytes(compress(content))
    found = {".txt": "text", ".tar": "documents"}.get(seed, "auto")
    assert text_of(extract(tmp_path, f"a{seed}", format=found)) == expected


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", ["plain.txt", "a.jsonl", "dump.xml", "lines.tar"])
def test_several_streams_are_read_whole_or_not_at_all(tmp_path, name, compress):
    content, path = SOURCES[name], tmp_path / name
    middle = len(content) // 2
    first, second = compress(content[:middle]), compress(content[middle:])
    path.write_bytes(first + second)
    assert text_of(extract(tmp_path, name, format="auto")) == EXPECTED
    changed = bytes([second[0] ^ 1]) + second[1:]
    for damaged in (first + changed, first + second + b"more"):
        path.write_bytes(damaged)
        at = damaged.find(changed) if changed in damaged else len(first + second)
        with pytest.raises(UserError, match=rf"{path} is damaged .* at byte {at}, .*; download"):
            extract(tmp_path, name)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_joined_tar_archives_are_refused(tmp_path, compress):
    """A tar archive ends with zeros, and what follows them belongs to another one."""
    one = SOURCES["lines.tar"]
    (tmp_path / "two.tar").write_bytes(compress(one + one))
    said = rf"two.tar has content at byte {len(one)}, after the end of its tar archive"
    with pytest.raises(UserError, match=said):
        extract(tmp_path, "two.tar")


def test_bombs_end_early(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    bomb = bytes(8 << 20).replace(b"\0", b"a ")
    cases = [gzip.compress(bomb), bz2.compress(bomb), tar_of({"a": bomb}, "w:xz")]
    cases += [zip_of({"a": bomb}), gzip.compress(gzip.compress(bomb))]
    for content in cases:
        (tmp_path / "bomb").write_bytes(content)
        with pytest.raises(UserError, match="expands to more than 200 times its size"):
            extract(tmp_path, "bomb", format="documents")
