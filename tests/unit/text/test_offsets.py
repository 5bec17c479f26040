"""Which characters of a text its ids stand for."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf.text.vocabulary import write_vocab_file
from tests.helpers.programs import ROOT
from tests.helpers.small_vocabulary import (
    load_tokenizer,
    odd_and_plain_texts,
    write_small_vocabulary,
)

GOLDEN = json.loads((ROOT / "tests/data/google_tokenizer_golden.json").read_text())
SHARED_DATA = ROOT.parent / "shared/data"

# Of these alone a small model has whole words as pieces.
SENTENCES = [
    f"{word} {other}" for word in ("the", "was", "in") for other in ("the", "was", "fin")
] * 9

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """By lower_case: single letters, so that pieces are short, and all of the golden entries."""
    path = tmp_path_factory.mktemp("offsets") / "vocab.txt"
    letters = [chr(code) for code in (*range(0x21, 0x250), *range(0x391, 0x3CA))]
    jamo = [chr(code) for code in range(0x1100, 0x1200)]
    entries = [*GOLDEN["vocabulary"], *letters, *(f"##{c}" for c in (*letters, *jamo)), *jamo]
    write_vocab_file(path, dict.fromkeys(e for e in map(str.strip, entries) if e.strip("#")))
    return {
        lower_case: load_tokenizer(vocab_file=path, do_lower_case=lower_case)
        for lower_case in (True, False)
    }


def _parts(tokenizer, text):
    """(entry, characters that it stands for) of each id."""
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [(token, text[start:end]) for token, start, end in zip(tokens, starts, ends)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    words = ["cafe", "##s", "in", "##di", "istanbul", "ος", "##σ", "a", ".", "中", "文", "ᄒ", "##ᅡ"]
    write_vocab_file(path, [*SPECIAL, *words, "##ᆫ", "##ok", "b"])
    return load_tokenizer(vocab_file=path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a\t\n a ", [("a", "a"), ("a", "a")]),
        ("Cafés", [("cafe", "Café"), ("##s", "s")]),
        ("Cafe\u0301s", [("cafe", "Cafe\u0301"), ("##s", "s")]),
        ("cafe\u0301\u0323", [("cafe", "cafe\u0301\u0323")]),
        ("\u0301a", [("a", "a")]),
        ("İstanbul.", [("istanbul", "İstanbul"), (".", ".")]),
        ("ΟΣ ΟΣΣ", [("ος", "ΟΣ"), ("[UNK]", "ΟΣΣ")]),
        ("中文a", [("中", "中"), ("文", "文"), ("a", "a")]),
        ("한", [("ᄒ", "한"), ("##ᅡ", "한"), ("##ᆫ", "한")]),
        ("xyz,a", [("[UNK]", "xyz"), ("[UNK]", ","), ("a", "a")]),
        ("in\x1cdi\u200bok", [("in", "in"), ("##di", "di"), ("##ok", "ok")]),
        ("\x1ca\x0b \x0b", [("a", "a")]),
        ("c\x00a\u00adfe", [("cafe", "c\x00a\u00adfe")]),
        ("a\u2028b\u00a0a", [("a", "a"), ("b", "b"), ("a", "a")]),
        ("a" * 201 + " b", [("[UNK]", "a" * 201), ("b", "b")]),
        ("\x0b", []),
        ("", []),
    ],
    ids=ascii,
)
def test_characters_of_pieces(small, text, expected):
    assert _parts(small, text) == expected


def test_offsets_count_from_the_start_of_the_text(small):
    assert small.encode_with_offsets("a  Cafés.")[1:] == ([0, 3, 7, 8], [1, 7, 8, 9])


INTERESTING = st.sampled_from(
    "aAbeEiInsΣσςİıé\u0301\u0345\u0323\u1b44\u302eÅ中文한가'’.,-#[] \t\n\x0b\x0c\x1c"
    "\x85\u2028\u200b\u00a0\ue000\ufb01\ufffd\ud800"
)
TEXTS = st.text(st.one_of(INTERESTING, st.characters()), max_size=60)


@settings(max_examples=500, deadline=None)
@given(TEXTS, st.booleans())
@example("a\u302e\u1b44b", True)  # the two change places in the canonical order, both are kept
def test_properties_of_any_text(tokenizers, text, lower_case):
    tokenizer = tokenizers[lower_case]
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends))
    words = [word.text for word in tokenizer.basic.aligned_words(text)]
    assert words == tokenizer.basic.words(text)


def _normalized(tokenizer, text):
    """The characters that are left of a text; one sigma, as a final one depends on what follows."""
    return "".join(tokenizer.basic.words(text)).replace("ς", "σ")


@settings(max_examples=500, deadline=None)
@given(TEXTS, st.booleans())
def test_characters_of_a_piece_give_the_piece(tokenizers, text, lower_case):
    tokenizer = tokenizers[lower_case]
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    for index, start, end in zip(ids, starts, ends):
        token = tokenizer.convert_ids_to_tokens([index])[0]
        part = _normalized(tokenizer, text[start:end])
        assert part
        shares = starts.count(start) > 1 or ends.count(end) > 1
        if index != tokenizer.unk_id and not shares:
            assert part == token[2 if token[:2] == "##" else 0 :].replace("ς", "σ")
    covered = set()
    for start, end in zip(starts, ends):
        covered.update(range(start, end))
    rest = "".join(char for at, char in enumerate(text) if at not in covered)
    # What no piece stands for is white space, was dropped, or is an accent without a letter.
    rest = "".join(char for char in rest if unicodedata.category(char) != "Mn")
    assert not _normalized(tokenizer, rest)


def test_long_chunks_and_repeated_ones_give_the_same(small):
    text = "Cafés. " * 3 + "x" * 70 + " Cafés."
    expected = [("cafe", "Café"), ("##s", "s"), (".", ".")]
    for _ in range(2):
        parts = _parts(small, text)
        assert parts[:9] == expected * 3
        assert parts[9:] == [("[UNK]", "x" * 70), *expected]


def released(name):
    """A released vocabulary and real text."""
    vocab_file = SHARED_DATA / f"vocab/bert-{name}-vocab.txt"
    if not vocab_file.exists():
        pytest.skip("../shared/data is not here")
    paths = ("text/botchan.txt", "wikitext/wikitext-2-valid.tokens", "imdb/dev.tsv")
    contents = [(SHARED_DATA / path).read_bytes()[:60_000] for path in paths]
    return vocab_file, [content.decode("utf-8", "ignore") for content in contents]


@pytest.mark.parametrize(
    ("name", "lower_case"),
    [
        ("uncased", True),
        ("multilingual-cased", False),
        ("chinese", True),
        ("small", True),
        ("small", False),
    ],
)
def test_offsets_of_real_text_are_those_of_transformers(name, lower_case, tmp_path):
    transformers = pytest.importorskip("transformers")
    if name == "small":
        vocab_file = write_small_vocabulary(tmp_path / "vocab.txt", lower_case=lower_case)
        texts = odd_and_plain_texts()
    else:
        vocab_file, texts = released(name)
    ours = load_tokenizer(vocab_file=vocab_file, do_lower_case=lower_case)
    theirs = transformers.BertTokenizerFast(str(vocab_file), do_lower_case=lower_case)
    count = 0
    for text in texts:
        for line in text.split("\n"):
            expected = theirs(line, add_special_tokens=False, return_offsets_mapping=True)
            ids, starts, ends = ours.encode_with_offsets(line)
            if "[UNK]" in line or "ς" in line.lower() or ids != expected["input_ids"]:
                continue  # differences of the ids are test_wordpiece.py's
            if "Mn" in map(unicodedata.category, line):
                continue  # an accent by itself goes with its letter here, and is left out there
            assert list(zip(starts, ends)) == expected["offset_mapping"], line
            count += len(ids)
    assert count > (10_000 if name == "small" else 30_000)


@pytest.fixture(scope="module", params=["ALBERT's", "small"])
def piece_tokenizers(request, tmp_path_factory):
    """By lower_case: a released model where it is at hand, and one that is trained here."""
    if request.param == "small":
        model_file = tmp_path_factory.mktemp("spm") / "small.model"
        content = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=content,
            vocab_size=120,
            hard_vocab_limit=False,
            minloglevel=2,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
            user_defined_symbols="fin",  # in any word
        )
        model_file.write_bytes(content.getvalue())
    else:
        model_file = SHARED_DATA / "vocab/albert-30k-clean.model"
        if not model_file.exists():
            pytest.skip("../shared/data is not here")
    return {
        lower_case: load_tokenizer(spm_model_file=model_file, do_lower_case=lower_case)
        for lower_case in (True, False)
    }


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans())
def test_sentencepiece_properties_of_any_text(piece_tokenizers, text, lower_case):
    pieces = piece_tokenizers[lower_case]
    ids, starts, ends = pieces.encode_with_offsets(text)
    assert ids == pieces.encode(text)
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    for start, end in zip(starts, ends):
        assert 0 <= start <= end <= len(text)
        assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" the  was ", [("▁the", "the"), ("▁was", "was")]),
        ("the\ufb01ne", [("▁the", "the"), ("fin", "\ufb01n"), ("e", "e")]),  # NFKC: fi, one char
        ("日本 the", [("▁", ""), ("<unk>", "日本"), ("▁the", "the")]),
        ("the\ud800", [("▁the", "the"), ("<unk>", "\ud800")]),
        ("", []),
    ],
    ids=ascii,
)
def test_sentencepiece_characters_of_pieces(piece_tokenizers, text, expected):
    assert _parts(piece_tokenizers[False], text) == expected


def test_sentencepiece_lower_case_that_is_longer(piece_tokenizers):
    parts = _parts(piece_tokenizers[True], "İthe")  # i and a dot, which the model does not know
    assert parts[:3] == [("▁", ""), ("i", "İ"), ("<unk>", "İ")]
    assert "".join(piece for piece, _ in parts[3:]) == "the"
    assert all(piece == characters for piece, characters in parts[3:])
