"""Cleaning: rules, equal and similar documents, counts."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.stages import clean
from data_prep.stages.clean import Judge, Settings, run
from data_prep.text import duplicates
from data_prep.text.duplicates import find_duplicates, rows_of_band, sketch

WORDS = [f"word{number}" for number in range(5000)]


def document(seed, words=120):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words)).replace("word", "")


def text_of(seed, words=120):
    """A document of letters: numbers are spelt by letters."""
    return document(seed, words).translate(str.maketrans("0123456789", "abcdefghij"))


def clean_all(tmp_path, documents, name="out", **options):
    path = tmp_path / "input.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    out = run(Settings(str(path), str(tmp_path / name), **{"num_workers": 1, **options}))
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(out.glob("clean-*.txt")))
    return [kept for kept in text.split("\n\n") if kept], read_manifest(out).counts


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["a" * 200], None),
        (["a" * 199], "too_short"),
        (["a " * 199], "too_short"),
        (["a" * 120 + "1" * 80], None),
        (["a" * 119 + "1" * 81], "few_letters"),
        (["हिन्दी में एक वाक्य। " * 20], None),
        (["中文的句子。" * 50], None),
        (["\ufffd" * 90 + "a" * 130], "few_letters"),
        (["a" * 140, "b" * 60, "b" * 60], None),
        (["a" * 130, "b" * 60, "b" * 60], None),
        (["a" * 70, "b" * 70, "b" * 70], "repetitive"),
    ],
)
def test_rules(lines, reason):
    assert Judge(Settings("", "")).reason_to_remove(lines) == reason


def test_equal_and_similar_documents(tmp_path):
    first, other = text_of(1), text_of(2)
    words = first.split()
    similar = " ".join([*words[:60], "another", *words[60:]])
    half = " ".join([*words[:60], *text_of(3).split()[:60]])
    kept, counts = clean_all(
        tmp_path, [first, other, first.upper().replace(" ", "  "), similar, half, "short"]
    )
    assert kept == [first, other, half]
    assert counts == {
        "documents": 3,
        "too_short": 1,
        "few_letters": 0,
        "repetitive": 0,
        "exact_duplicates": 1,
        "near_duplicates": 1,
    }


@pytest.mark.parametrize(
    ("options", "number"),
    [({"near_duplicate_similarity": 0.0}, 2), ({"keep_duplicates": True}, 3), ({}, 1)],
)
def test_what_may_be_kept(tmp_path, options, number):
    text = text_of(1)
    kept, counts = clean_all(tmp_path, [text, text, f"{text} end"], **options)
    assert len(kept) == counts["documents"] == number


def jaccard(first, second):
    def runs(text):
        words = text.casefold().split()
        return {tuple(words[place : place + 5]) for place in range(len(words) - 4)}

    return len(runs(first) & runs(second)) / len(runs(first) | runs(second))


@given(st.integers(0, 10**6), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_signatures_estimate_the_similarity(seed, share):
    words = text_of(seed, 300).split()
    replaced = text_of(seed + 1, 300).split()
    begin = int(share * 300)
    first, second = " ".join(words), " ".join([*replaced[:begin], *words[begin:]])
    values = [
        np.frombuffer(sketch(text, near=True), duplicates._SKETCH)["values"][0]
        for text in (first, second)
    ]
    # Five standard deviations of a mean of 128.
    assert np.mean(values[0] == values[1]) == pytest.approx(jaccard(first, second), abs=0.22)


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_pairs_a_little_over_the_threshold_are_found(tmp_path, threshold):
    """Among what the signatures of all pairs find, computed without bands."""
    texts, length = [], 400
    target = min(0.99, threshold + 0.03)
    for seed in range(100):
        words, other = text_of(2 * seed, length).split(), text_of(2 * seed + 1, length).split()
        # With a part p in common, the similarity is p / (2 - p).
        replaced = round(length * (1 - 2 * target / (1 + target)))
        texts += [" ".join(words), " ".join([*other[:replaced], *words[replaced:]])]
    path = tmp_path / "sketches"
    path.write_bytes(b"".join(sketch(text, near=True) for text in texts))
    values = np.fromfile(path, duplicates._SKETCH)["values"]
    agreeing = np.mean(values[::2] == values[1::2], axis=1) >= threshold
    assert agreeing.sum() > 50
    found = set(find_duplicates(path, threshold=threshold).near.tolist())
    expected = set((2 * np.flatnonzero(agreeing) + 1).tolist())
    assert found <= expected
    assert len(found) >= 0.9 * len(expected)


@pytest.mark.parametrize(("threshold", "rows"), [(0.05, 1), (0.5, 3), (0.8, 8), (1.0, 128)])
def test_bands_are_as_narrow_as_the_threshold_needs(threshold, rows):
    assert rows_of_band(threshold) == rows


@pytest.mark.parametrize("part_documents", [1 << 22, 100, 30])
def test_parts_change_nothing(tmp_path, monkeypatch, part_documents):
    monkeypatch.setattr(duplicates, "PART_DOCUMENTS", part_documents)
    monkeypatch.setattr(duplicates, "CHUNK_DOCUMENTS", 11)
    rng = random.Random(0)
    texts = [text_of(rng.randrange(150)) for _ in range(300)]
    path = tmp_path / "sketches"
    path.write_bytes(b"".join(sketch(text, near=True) for text in texts))
    expected = [number for number, text in enumerate(texts) if text in texts[:number]]
    found = find_duplicates(path, threshold=0.8)
    assert found.exact.tolist() == expected
    assert found.near.tolist() == []


def test_workers_change_nothing(tmp_path, monkeypatch):
    texts = [text_of(seed % 700, 200) for seed in range(1500)]
    outputs = []
    for workers in (1, 2):
        kept, _ = clean_all(tmp_path, texts, name=f"{workers}", num_workers=workers)
        outputs.append(kept)
    assert outputs[0] == outputs[1]
    assert outputs[0] == texts[:700]


def test_nothing_is_left(tmp_path):
    with pytest.raises(UserError, match=r"nothing is left of .*2 too_short"):
        clean_all(tmp_path, ["a", "b"])
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "options",
    [{"min_characters": -1}, {"min_letter_share": 1.5}, {"near_duplicate_similarity": -0.1}],
)
def test_wrong_flags(tmp_path, options):
    with pytest.raises(UserError, match=f"--{next(iter(options))}"):
        clean_all(tmp_path, [text_of(1)], **options)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes(b"one\n\ntwo \xff\n")
    with pytest.raises(UserError, match=r"line 3 of .* is not UTF-8"):
        run(Settings(str(path), str(tmp_path / "out"), num_workers=1))


def test_memory_does_not_grow_with_the_documents(tmp_path, monkeypatch):
    """In parts, with sketches on disk."""
    monkeypatch.setattr(duplicates, "PART_DOCUMENTS", 500)
    monkeypatch.setattr(duplicates, "CHUNK_DOCUMENTS", 500)
    peaks = []
    for number in (1000, 5000):
        path = tmp_path / f"{number}"
        found = np.zeros(number, duplicates._SKETCH)
        found["exact"] = np.arange(number)
        found["values"] = np.arange(number, dtype=np.uint32)[:, None]
        found.tofile(path)
        del found
        tracemalloc.start()
        assert not len(find_duplicates(path, threshold=0.8).near)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 5000 * 2 + 50_000


def test_the_stage_is_skipped_when_nothing_has_changed(tmp_path, capsys):
    texts = [text_of(1)]
    clean_all(tmp_path, texts)
    clean_all(tmp_path, texts)
    assert f"{clean.STAGE}: {tmp_path / 'out'} is up to date" in capsys.readouterr().err


def test_pieces_of_a_document_that_is_too_long_are_kept(tmp_path, monkeypatch, capsys):
    """A cut makes no document repetitive or too short, and its pieces no duplicates."""
    monkeypatch.setattr(clean, "MAX_DOCUMENT_BYTES", 2000)
    long = "The same sentence stands here again and again, in every line.\n" * 100
    (tmp_path / "a.txt").write_text(f"{long}\n{text_of(1)}\n\n{long}")
    out = run(Settings(str(tmp_path / "a.txt"), str(tmp_path / "out"), num_workers=1))
    documents = (out / "clean-00000.txt").read_text().split("\n\n")
    assert "\n".join(documents[:-2]) + "\n" == long
    assert documents[-2] == text_of(1)
    counts = read_manifest(out).counts
    # The second time, the pieces are duplicates of the first.
    assert counts["exact_duplicates"] == len(documents) - 2
    assert counts["cut_documents"] == 2 * (len(documents) - 3) > 4
    said = capsys.readouterr().err
    assert f"were cut {counts['cut_documents']} times, and their pieces kept" in said
