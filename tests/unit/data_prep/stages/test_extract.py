"""Articles from MediaWiki dumps: what is read, what is left out, what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.sources import mediawiki_dump
from data_prep.sources.mediawiki_dump import read_pages
from data_prep.stages import extract
from data_prep.stages.extract import Settings, run
from data_prep.text import left_out
from data_prep.text.mediawiki_text import Options, plain_text
from tests.helpers.mediawiki import dump, page

HIDDEN = frozenset({"file", "image", "category", "datei", "kategorie", "bild", "tập tin"})


def text_of(markup, **options):
    return plain_text(markup, Options(HIDDEN, **options))


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("'''Anarchism''' is a ''[[philosophy]]''.", ["Anarchism is a philosophy."]),
        ("See [[Paris|the city]] and [[Rome#History|]].", ["See the city and."]),
        ("One&nbsp;two&mdash;three &#65;&#xD800;&#99999999;", ["One two—three A&#99999999;"]),
        ("One.<ref>{{cite|a=b}} [http://x y]</ref> Two<ref name=a />.", ["One. Two."]),
        ("A word.<ref>never ended", ["A word.never ended"]),
        ("Text {{infobox\n| a = {{b|c}}\n}} more.", ["Text more."]),
        ("{| class=x\n! head\n|-\n| cell\n{|\n|inner\n|}\n|}\nAfter.", ["After."]),
        ("Before.\n{|\n| a table without an end", ["Before."]),
        ("[[File:a.png|thumb|A [[caption]] here]]Text.", ["Text."]),
        ("[[Datei:a.png|mini|x]]Text.[[Kategorie:Y]]", ["Text."]),
        ("[[:Category:Birds]] are listed.", ["Category:Birds are listed."]),
        ("[[de:Vogel]]\nBirds fly. [[fr:Oiseau]]", ["Birds fly."]),
        ("[http://example.org The page] or [http://example.org].", ["The page or."]),
        ("Rivers, {{x}}, and seas, {{coord|1}}. 一，{{x}}。", ["Rivers, and seas. 一。"]),
        ("Euler: <math>e^{i\\pi}</math> is known.<!-- not shown -->", ["Euler: is known."]),
        ("Andorra ({{IPA|x}}, {{lang|y}}), is", ["Andorra, is"]),
        ("He ({{b|1}}; died 1900) lived", ["He (died 1900) lived"]),
        ("One<br />two\n\nthree", ["One", "two", "three"]),
        ("<blockquote>Said.</blockquote>Then.", ["Said.", "Then."]),
        ("__NOTOC__\n----\n!!!", []),
        ("Am [[17.&nbsp;Juni]] und [[:simple:Bird]] [[simple:Bird]].",
         ["Am 17. Juni und simple:Bird."]),
        ("[[ Bild : a.png|mini|Der [[Markt]]]]Text.[[Tập_tin:b.png|x]]", ["Text."]),
        ("[[:Datei:a.png|Das Bild]] hängt da.", ["Das Bild hängt da."]),
        ("The <code>f(x)</code> is <nowiki>''so''</nowiki>.", ["The f(x) is ''so''."]),
        ("<!-- <ref>{{ -->Text.<ref>{{x</ref> <math>{{a}_{b}}}</math>More.", ["Text. More."]),
        ("A (born 1900; {{IPA|x}}), B, {{IPA|x}}, C ({{IPA|x}} ).", ["A (born 1900), B, C."]),
        ("#REDIRECT-like # no list\nNot * a list", ["Not * a list"]),
        ("", []),
    ],
)  # fmt: skip
def test_running_text(markup, lines):
    assert text_of(markup) == lines


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("''a'' and '''b''' and '''''c'''''.", ["a and b and c."]),
        ("L'''Iliade'' est ''longue''.", ["L'Iliade est longue."]),
        ("The ''Eagle'''s crew.", ["The Eagle's crew."]),
        ("''''Quoted'''' and '''''''more'''''.", ["'Quoted' and ''more."]),
        ("l&#39;''Iliade'' et l<nowiki>'</nowiki>''Odyssée''.", ["l'Iliade et l'Odyssée."]),
        ("Open ''here\nand '''there\n\nand then.", ["Open here", "and there", "and then."]),
    ],
)
def test_italics_and_bold(markup, lines):
    assert text_of(markup) == lines


def test_a_mark_that_is_not_closed_in_a_table_hides_nothing():
    table = "{|\n! '''Head\n|-\n| ''cell || <b>x\n|}\n"
    assert text_of(f"{table}Text.\n== A ==\n{table}More.") == ["Text.", "More."]


ARTICLE = "\n'''Anna''' is {{nowrap|a painter}}.\n\n== Life ==\nShe lives.\n{{Navigation|a}}\n"


@pytest.mark.parametrize(
    "infobox",
    [
        "{{Infobox\n| a = {{b|c}\n| d = e\n}}",
        "{{Infobox\n| a = {{b|c\n| d = e\n}}",
        "{{Infobox\n| a = {{b|c}}\n| d = e",
        "{{Infobox|\na = {{b|c}}|\nname = d|\n",
        "{{Infobox\n| a = {{b|c}}}}\n| d = e\n}}",
        "{{Infobox\n| a = {{{b|c}}\n\n| d = e\n* f\n}}",
        "  {{Infobox | a = {{b|c}}\n  | d = [[e|f]]\n",
        "}}",
    ],
)
@pytest.mark.parametrize("rest", ["", "{{Other\n}}\n}}\n", "}}"])
def test_an_infobox_that_is_not_closed(infobox, rest):
    """It neither hides the article, whatever closes after it, nor is shown."""
    assert text_of(infobox + ARTICLE + rest) == ["Anna is a painter.", "She lives."]


def test_a_template_that_is_not_closed_in_a_sentence():
    assert text_of("It was{{when|date=May 2010]] so {{nowrap|good} here.") == [
        "It was so good here."
    ]


def test_an_indented_paragraph_is_text_and_a_formula_is_not():
    quotation = "It is for us the living, rather, to be dedicated here to the unfinished work."
    assert text_of(f"He said:\n:''{quotation}''\n:a + b = c\n:* {quotation}") == [
        "He said:",
        quotation,
    ]


LISTS = (
    "Start.\n== A ==\n=== B ===\nText of b.\n* one\n** two\n; term : meaning\n== C ==\n* x\n== D =="
)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["Start.", "Text of b."]),
        ({"headings": True}, ["Start.", "A", "B", "Text of b."]),
        ({"lists": True}, ["Start.", "Text of b.", "one", "two", "term meaning", "x"]),
        (
            {"lists": True, "headings": True},
            ["Start.", "A", "B", "Text of b.", "one", "two", "term meaning", "C", "x"],
        ),
    ],
)
def test_lists_and_headings(options, lines):
    assert [" ".join(line.replace(":", " ").split()) for line in text_of(LISTS, **options)] == lines


@given(st.text(alphabet="ab .\n'[]{}|<>/=*#:;!&-_()refn", max_size=80))
@settings(max_examples=300, deadline=None)
def test_no_markup_breaks_it(markup):
    for line in text_of(markup, lists=True, headings=True):
        assert line == " ".join(line.split())
        assert any(map(str.isalnum, line))
        assert not set("\x01\x02\x03\x04") & set(line)


@pytest.mark.parametrize("opening", ["{{a|", "[[a|", "[http://a ", "{|\n", "<ref>"])
def test_marks_that_are_never_closed_take_no_time(opening):
    """The parser alone would take hours for this."""
    assert text_of(f"First.\n{opening * 20_000}")[0] == "First."


def test_deep_nesting_ends():
    text_of("[[a|" * 5000 + "x" + "]]" * 5000)


PAGES = [
    page("One", "The ''first'' one.\n\nSecond paragraph.\n[[Datei:x.png|mini|y]]"),
    page("Two", "#REDIRECT [[One]]", redirect=True),
    page("Talk:One", "Talk.", namespace=1),
    page("Three", "{{only a template}}"),
    page("Four", "ß & <b>ü</b>.\n* a list"),
]
TEXT = "The first one.\nSecond paragraph.\n\nß & ü.\n\n"


def write(tmp_path, content, name="dump.xml"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def extract_all(tmp_path, *paths, name="out", **options):
    return run(Settings(",".join(map(str, paths)), str(tmp_path / name), **options))


@pytest.mark.parametrize(
    ("language", "link"),
    [
        ("de", "Bild:x.png|mini|Alt"),
        ("de", "Medium:x.ogg|anhören"),
        ("nl", "Afbeelding:x.png|thumb|oud"),
        ("ru", "Изображение:x.png|мини|старое"),
        ("zh", "文件:x.png|thumb|旧"),
        ("xx", "Image:x.png|thumb|old"),
    ],
)
def test_other_names_of_namespaces(tmp_path, language, link):
    path = write(tmp_path, dump(page("P", f"Text.[[{link}]]"), language=language))
    out = extract_all(tmp_path, path, num_workers=1)
    assert (out / "articles-00000.txt").read_text() == "Text.\n\n"


@pytest.mark.parametrize("version", ["0.10", "0.11"])
@pytest.mark.parametrize("compress", [bytes, bz2.compress, gzip.compress, lzma.compress])
def test_a_dump(tmp_path, version, compress):
    path = write(tmp_path, compress(dump(*PAGES, version=version)))
    out = extract_all(tmp_path, path, num_workers=1)
    assert (out / "articles-00000.txt").read_text() == TEXT
    manifest = read_manifest(out)
    assert manifest.counts == {
        "articles": 2,
        "articles_without_text": 1,
        "redirects": 1,
        "other_pages": 1,
        "templates_left_out": 1,
        "{{Only a template}}": 1,
    }
    assert [entry.count for entry in manifest.outputs] == [2]


def test_a_dump_of_several_compressed_streams(tmp_path):
    content = dump(*PAGES)
    path = write(tmp_path, bz2.compress(content[:900]) + bz2.compress(content[900:]))
    out = extract_all(tmp_path, path, num_workers=1)
    assert (out / "articles-00000.txt").read_text() == TEXT


def test_workers_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(extract, "BATCH_BYTES", 500)
    pages = [page(f"P{n}", f"Sentence {n} of ''many''. " * (n % 40 + 1)) for n in range(100)]
    paths = [
        write(tmp_path, dump(*pages[:60]), "a.xml"),
        write(tmp_path, bz2.compress(dump(*pages[60:])), "b.xml.bz2"),
    ]
    texts = [
        (
            extract_all(tmp_path, *paths, name=f"{n}", num_workers=n) / "articles-00000.txt"
        ).read_bytes()
        for n in (1, 2)
    ]
    assert texts[0] == texts[1]
    assert texts[0].count(b"\n\n") == 100


def test_templates_left_out_are_counted_by_name_on_any_number_of_processes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(extract, "BATCH_BYTES", 500)
    monkeypatch.setattr(left_out, "MOST_NAMES", 30)
    monkeypatch.setattr(left_out, "MOST_IN_MANIFEST", 10)
    pages = [
        page(f"P{n}", f"A river {{{{n{n}}}}} {{{{Sea}}}} flows {{{{x{n % 3}}}}}." * 3)
        for n in range(99)
    ]
    path = write(tmp_path, dump(*pages))
    found = [
        read_manifest(extract_all(tmp_path, path, name=f"{n}", num_workers=n)).counts
        for n in (1, 2)
    ]
    assert found[0] == found[1]
    named = {name: count for name, count in found[0].items() if name.startswith("{{")}
    assert named["{{Sea}}"] == 297
    assert [named[f"{{{{X{n}}}}}"] for n in range(3)] == [99, 99, 99]
    assert len(named) == 11
    assert sum(named.values()) == found[0]["templates_left_out"] == 3 * 3 * 99
    said = capsys.readouterr().err
    assert "extract: templates left out, 891: {{Sea}} 297, {{X0}} 99, {{X1}} 99, {{X2}} 99" in said


ZH = "-{zh-hans:计算机;zh-tw:電腦}-在河边。"


@pytest.mark.parametrize(("variant", "text"), [("", "计算机在河边。"), ("zh-tw", "電腦在河边。")])
def test_one_variant_of_a_language(tmp_path, variant, text):
    path = write(tmp_path, dump(page("A", ZH), language="zh"))
    out = extract_all(tmp_path, path, num_workers=1, variant=variant)
    assert (out / "articles-00000.txt").read_text() == f"{text}\n\n"
    assert read_manifest(out).parameters.get("variant", "") == variant


@pytest.mark.parametrize(
    ("language", "sentence"),
    [("sr", r"\(sr\); give one of sr, sr-cyrl, sr-ec"), ("de", r"\(de\); leave the flag out")],
)
def test_a_variant_of_another_language(tmp_path, language, sentence):
    path = write(tmp_path, dump(page("A", ZH), language=language))
    with pytest.raises(UserError, match=sentence):
        extract_all(tmp_path, path, variant="zh-tw")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"<html></html>", "begins with <html>"),
        (b"not XML", "not a whole MediaWiki dump"),
        (dump(*PAGES)[:-20], "not a whole MediaWiki dump"),
        (bz2.compress(dump(*PAGES))[:-20], "damaged or was not downloaded completely"),
        (gzip.compress(dump(*PAGES))[:-20], "damaged or was not downloaded completely"),
        (lzma.compress(dump(*PAGES))[:-20], "damaged or was not downloaded completely"),
        (bz2.compress(dump(*PAGES))[:40] + bytes(100), "damaged or was not downloaded completely"),
        (dump(PAGES[1], PAGES[3]), "contains no article with text"),
        (dump(page("A", "a", namespace="x")), "damaged: the number of a namespace is 'x'; down"),
        (
            dump(*PAGES).replace(b'key="14"', b'key="1:"'),
            "damaged: the number of a namespace is '1:'; download",
        ),
    ],
    ids=["html", "text", "cut", "cut bz2", "cut gz", "cut xz", "bad bz2", "no text", "ns", "key"],
)
def test_what_is_refused(tmp_path, content, sentence):
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=sentence):
        extract_all(tmp_path, path, num_workers=1)
    assert not list(tmp_path.glob("out/*"))


def test_a_page_without_end_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(mediawiki_dump, "LONGEST_PAGE_BYTES", 1 << 20)
    content = dump()[: -len("</mediawiki>")] + b"<page><title>x</title><ns>0</ns><text>"
    path = write(tmp_path, content + b"a" * (2 << 20))
    with pytest.raises(UserError, match="a page of more than 1 MiB"):
        extract_all(tmp_path, path, num_workers=1)


def test_entities_do_not_explode(tmp_path):
    names = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12)]
    head = f'<!DOCTYPE mediawiki [<!ENTITY e0 "{"x" * 100}">{"".join(names)}]>'
    content = head.encode() + dump(page("One", "text")).replace(b"text</text>", b"&e11;</text>")
    with pytest.raises(UserError, match="not a whole MediaWiki dump"):
        list(read_pages(io.BytesIO(content), "dump.xml"))


def test_memory_does_not_grow_with_the_dump(tmp_path):
    """The tree that the parser builds keeps no pages."""
    content = dump(*[page(f"P{n}", "word " * 50) for n in range(2000)])
    kept = set()

    class Watched(mediawiki_dump._Bounded):
        def read(self, size):
            kept.add(len(roots[-1]) if roots else 0)
            return super().read(size)

    roots = []

    def root(element, name):
        roots.append(element)
        return element

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mediawiki_dump, "_Bounded", Watched)
        patch.setattr(mediawiki_dump, "_root", root)
        assert sum(1 for _ in read_pages(io.BytesIO(content), "dump.xml")) == 2000
    # The parser is fed 16 KiB or 64 KiB at a time, and hands out what is in them later.
    assert max(kept) < 500


@pytest.mark.skipif(
    not Path("../shared/data/wikipedia").is_dir(), reason="needs real dumps in ../shared"
)
def test_real_dumps(tmp_path):
    out = extract_all(tmp_path, *sorted(Path("../shared/data/wikipedia").glob("*.bz2")))
    text = (out / "articles-00000.txt").read_text()
    counts = read_manifest(out).counts
    assert (counts["articles"], counts["redirects"]) == (110, 99)
    assert "Anarchism is a political philosophy that advocates self-governed societies" in text
    # Templates between words, a power, and what follows a table with bold that is not closed.
    for words in ("located 128 km west", "as of 2013", "1465 cm⁻¹", "Alaska has vast energy"):
        assert words in text, words
    for mark in ("{{", "]]", "<ref", "'''", "{|", "thumb|", "&nbsp;"):
        assert text.count(mark) < 5, mark
