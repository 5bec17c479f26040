"""Sentence splitting: forms of input, chunking, identity for any number of workers."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util import digest
from bert_tf.util.errors import UserError
from data_prep.stages import sentences, stage
from data_prep.stages.sentences import (
    SentenceSplitter,
    Settings,
    join_wrapped_lines,
    read_chunks,
    run,
)
from data_prep.text.documents import Part
from data_prep.text.wikitext_corpus import MARKUPS


def _run(tmp_path, content, name="out", **options):
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    options.setdefault("num_workers", 1)
    out = run(Settings(str(path), str(tmp_path / name), **options))
    return b"".join(path.read_bytes() for path in sorted(out.glob("*.txt"))).decode()


def _prose(num_documents, seed=0):
    rng = random.Random(seed)
    words = [f"{a}{b}" for a in ("ba", "do", "ke", "mi", "zu") for b in ("lu", "ra", "n", "st")]
    documents = []
    for _ in range(num_documents):
        sizes = [rng.randint(4, 14) for _ in range(rng.randint(1, 9))]
        lines = [" ".join(rng.choices(words, k=size)).capitalize() + "." for size in sizes]
        documents.append(rng.choice((" ", "\n")).join(lines) + "\n")
    return "\n".join(documents)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "One here. Two there. We met Mr. Smith today.",
            "One here.\nTwo there.\nWe met Mr. Smith today.\n\n",
        ),
        ("One is.\nTwo is.\n\nThree is.\n", "One is.\nTwo is.\n\nThree is.\n\n"),
        ("A title\nOne is. Two is.\n", "A title\nOne is.\nTwo is.\n\n"),
        ("\n\n \nOne.\n\t\n\n\nTwo.\n\n", "One.\n\nTwo.\n\n"),
        ("One.\r\n\r\nTwo is.\r\nThree.\r\n", "One.\n\nTwo is.\nThree.\n\n"),
        ("\ufeffOne  is\there.", "One is here.\n\n"),
        ("One.\n\u3000\u00a0\nTwo.", "One.\n\nTwo.\n\n"),
        ("a\0b is. \u2028 \x0c\x85 More.", "ab is.\nMore.\n\n"),
        ("他来了。她走了！", "他来了。\n她走了！\n\n"),
        ("No end of line", "No end of line\n\n"),
        ("\x01\x02", "\x01\x02\n\n"),
    ],
)
def test_forms_of_input(tmp_path, text, expected):
    assert _run(tmp_path, text) == expected


WRAPPED = (
    "The ship had been at sea for many days when the man at the mast saw\n"
    "a light far off. Nobody believed him at first, for the charts that\n"
    "they had bought showed nothing but water in that place. He said it\n"
    "again.\n"
    "Then all of them came to the rail and looked for a long time at the\n"
    "dark water without a word.\n"
)
JOINED = [
    "The ship had been at sea for many days when the man at the mast saw a light far off.",
    "Nobody believed him at first, for the charts that they had bought showed nothing but water "
    "in that place.",
    "He said it again.",
    "Then all of them came to the rail and looked for a long time at the dark water without a "
    "word.",
]


@pytest.mark.parametrize(
    ("line_breaks", "expected"),
    [
        ("auto", JOINED),
        ("wrapped", JOINED),
        ("sentence", WRAPPED.splitlines()),
    ],
)
def test_meaning_of_line_ends(tmp_path, line_breaks, expected):
    assert _run(tmp_path, WRAPPED, line_breaks=line_breaks).split("\n")[:-2] == expected


def test_lines_of_paragraphs_end_sentences(tmp_path):
    lines = _run(tmp_path, WRAPPED, line_breaks="paragraph").split("\n")
    assert lines[0].endswith("mast saw")
    assert lines[1] == "a light far off."


def test_sentences_as_they_are(tmp_path):
    text = "One is. Two is.\nand a third\n"
    assert _run(tmp_path, text, line_breaks="sentence") == text + "\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["Only one line of text that is long enough to have been wrapped at its end"],
        ["short", "lines", "without", "ends"],
        [f"{'word ' * n}without an end" for n in (9, 20, 3, 12, 30, 7, 16, 11)],
        [f"{'word ' * n}ends here." for n in (14, 14, 15, 14, 13, 14)],
        ["x" * 300] * 5,
    ],
)
def test_lines_that_are_not_wrapped_stay(lines):
    lines = [line.strip() for line in lines]
    assert join_wrapped_lines(lines) == lines


@pytest.mark.parametrize("line_breaks", ["auto", "sentence"])
def test_output_does_not_depend_on_the_number_of_workers(tmp_path, monkeypatch, line_breaks):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 500)
    monkeypatch.setattr(stage, "OUTPUT_FILE_BYTES", 9_000)
    text = _prose(200)
    outputs = []
    for num_workers in (1, 2, 3):
        name = f"out{num_workers}"
        _run(tmp_path, text, name, line_breaks=line_breaks, num_workers=num_workers)
        files = sorted((tmp_path / name).glob("[!.]*"))
        outputs.append({path.name: path.read_bytes() for path in files})
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0]) > 4
    manifest = read_manifest(tmp_path / "out1")
    assert manifest.counts["documents"] == 200
    assert sum(entry.count for entry in manifest.outputs) == 200


def test_chunks_do_not_change_the_documents(tmp_path, monkeypatch):
    text = _prose(60)
    whole = _run(tmp_path, text)
    for size in (40, 333):
        monkeypatch.setattr("data_prep.text.documents.READ_BYTES", size)
        # Chunks that small may cut documents; their sentences stay the same.
        assert _run(tmp_path, text, f"out{size}").split() == whole.split()
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 2000)
    assert _run(tmp_path, text, "out2000") == whole


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab .\n\r中é😀"), max_size=300), st.integers(1, 40))
def test_chunks_hold_every_byte_and_whole_characters(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("chunks") / "input.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_prep.text.documents.READ_BYTES", size)
        chunks = list(read_chunks(path))
    assert b"".join(chunk.content for chunk in chunks) == text.encode()
    assert [chunk.offset for chunk in chunks] == [
        sum(len(chunk.content) for chunk in chunks[:i]) for i in range(len(chunks))
    ]
    if size > 4:
        for chunk in chunks:
            chunk.content.decode("utf-8")


def test_large_document_is_cut_at_sentences(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1000)
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_BYTES", 600)
    text = " ".join(f"This is sentence number {n} of the text." for n in range(200))
    documents = _run(tmp_path, text).split("\n\n")[:-1]
    assert max(map(len, documents)) <= 600
    assert len(documents) < 30
    lines = [line for document in documents for line in document.split("\n")]
    assert lines == [f"This is sentence number {n} of the text." for n in range(200)]
    assert read_manifest(tmp_path / "out").counts["cut_documents"] == len(documents) - 1
    assert f"were cut {len(documents) - 1} times" in capsys.readouterr().err


def test_documents_that_are_not_cut_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1000)
    _run(tmp_path, _prose(60))
    assert "cut_documents" not in read_manifest(tmp_path / "out").counts


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("abcXYZ01=.!?\"'() \n\t中。é😀:;,-\u2028\u2029"), max_size=200))
def test_no_character_is_lost(text):
    for line_breaks, markup in itertools.product(sentences.LINE_BREAKS, MARKUPS):
        result = SentenceSplitter(line_breaks, "error", markup, "en")(Part("", 0, text.encode()))
        lines = result.text.decode().split("\n")
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert all(line == " ".join(line.split()) for line in lines)
        assert result.counts["documents"] == sum(
            not line and bool(before) for before, line in zip(lines, lines[1:])
        )


def test_bytes_that_are_not_utf8_are_refused_with_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 64)
    content = b"\xef\xbb\xbf" + b"Good text here.\n\n" * 20 + b"caf\xe9 bad\n"
    position = content.index(b"\xe9")
    for num_workers in (1, 2):
        with pytest.raises(UserError, match=rf"input\.txt, at byte {position}, is not UTF-8;"):
            _run(tmp_path, content, num_workers=num_workers)
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    content = b"caf\xe9 bad \xff.\n" + "Old \ufffd one.\n".encode()
    assert _run(tmp_path, content, invalid_utf8="replace") == (
        "caf\ufffd bad \ufffd.\nOld \ufffd one.\n\n"
    )
    assert read_manifest(tmp_path / "out").counts["replaced_bytes"] == 2


def test_second_run_is_skipped_and_a_change_is_not(tmp_path, capsys):
    _run(tmp_path, "One. Two.")
    _run(tmp_path, None, num_workers=2)
    assert "up to date, skipped" in capsys.readouterr().err
    assert _run(tmp_path, "One. Three.") == "One.\nThree.\n\n"
    assert _run(tmp_path, None, line_breaks="sentence") == "One. Three.\n\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (" \n\n\t\n", {}, "contains only white space"),
        ("", {}, "are empty"),
        ("One.", {"line_breaks": "none"}, "--line_breaks=none is not one of"),
        ("One.", {"invalid_utf8": "drop"}, "--invalid_utf8=drop is not one of"),
        ("One.", {"num_workers": -2}, "--num_workers=-2"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, content, options, message):
    with pytest.raises(UserError, match=message):
        _run(tmp_path, content, **options)


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1 << 14)
    monkeypatch.setattr(digest, "BLOCK_BYTES", 1 << 14)
    path, sizes, peaks = tmp_path / "input.txt", [], []
    for run_number, num_documents in enumerate((100, 1500, 6000)):  # the first one warms up
        path.write_text(_prose(num_documents))
        sizes.append(path.stat().st_size)
        tracemalloc.start()
        run(Settings(str(path), str(tmp_path / f"out{run_number}"), num_workers=1))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Of a chunk a count is kept, here some 3 % of its 16 KiB; its text would be all of it.
    assert peaks[2] - peaks[1] < 0.1 * (sizes[2] - sizes[1])


WIKITEXT = " \n ".join(
    ["", "= Elm Lake =", "", "Elm Lake is a <unk> . It is deep .", "", "= = Fish = =", ""]
    + ["Dr. <unk> saw 1 @.@ 5 trout . They swim .", "It rains .", "", "= = = Of 1 = 1 = = =", ""]
    + ["One .", "", "= Hill =", "", "A hill .", ""]
)


def test_an_article_of_wikitext_is_a_document(tmp_path, capsys):
    assert _run(tmp_path, WIKITEXT, markup="wikitext").split("\n") == [
        "= Elm Lake =",
        "Elm Lake is a <unk> .",
        "It is deep .",
        "= = Fish = =",
        "Dr. <unk> saw 1 @.@ 5 trout .",
        "They swim .",
        "It rains .",
        "= = = Of 1 = 1 = = =",
        "One .",
        "",
        "= Hill =",
        "A hill .",
        "",
        "",
    ]
    manifest = read_manifest(tmp_path / "out")
    assert manifest.parameters["markup"] == "wikitext"
    assert dict(manifest.counts) == {
        "documents": 2,
        "sentences": 11,
        "replaced_bytes": 0,
        "headings": 4,
        "unknown_words": 2,
    }
    assert "--markup" not in capsys.readouterr().err


def test_text_that_looks_like_wikitext_is_said_to(tmp_path, capsys):
    text = _run(tmp_path, WIKITEXT)
    assert text.startswith("= Elm Lake =\n\nElm Lake is")  # as before: what is said changes nothing
    said = capsys.readouterr().err
    assert (
        "sentences: 4 lines look like WikiText headings (= Title =) and 2 words are <unk>" in said
    )
    assert "give --markup=wikitext" in said
    _run(tmp_path, "a = b\n\n= 1\n\n== Title ==\n\n= = = =\n\n= =\n\n<unknown>\n", name="other")
    assert "--markup" not in capsys.readouterr().err
    assert set(read_manifest(tmp_path / "other").counts) == {
        "documents",
        "sentences",
        "replaced_bytes",
    }


def test_articles_are_not_cut_between_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 512)
    articles = [
        f" = Title {n} = \n \n Text {n} . \n \n = = Part = = \n \n{' More text .' * (n % 9)} \n"
        for n in range(60)
    ]
    for workers in (1, 2):
        text = _run(
            tmp_path,
            "".join(articles),
            name=f"out{workers}",
            markup="wikitext",
            num_workers=workers,
        )
        documents = text.split("\n\n")[:-1]
        assert [document.split("\n")[0] for document in documents] == [
            f"= Title {n} =" for n in range(60)
        ]
    assert len(list(read_chunks(tmp_path / "input.txt", markup="wikitext"))) > 4


def test_other_markup_is_refused(tmp_path):
    with pytest.raises(UserError, match="--markup=html is not one of"):
        _run(tmp_path, "text", markup="html")
