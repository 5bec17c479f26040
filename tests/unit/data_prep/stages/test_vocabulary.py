"""Vocabulary training: exact size, same bytes in every run, agreement with a naive trainer."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, read_vocab_file, unusual_entries
from bert_tf.util import digest
from bert_tf.util.errors import UserError
from data_prep.stages import vocabulary
from data_prep.stages.vocabulary import Settings, choose_alphabet, run
from tests.helpers.small_vocabulary import load_tokenizer

ROOT = Path(__file__).parents[4]
KINDS = ("wordpiece", "sentencepiece")


def _text(num_lines=600, seed=0):
    rng = random.Random(seed)
    syllables = [a + b for a in ("b", "d", "k", "m", "z", "É") for b in ("a", "o", "ur", "in")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(150)]
    weights = [1 / (rank + 1) for rank in range(150)]
    return "".join(
        " ".join(rng.choices(words, weights, k=9)).capitalize() + ".\n" for _ in range(num_lines)
    )


def _run(tmp_path, text, vocab_size=120, name="out", **options):
    path = tmp_path / "input.txt"
    path.write_text(text, encoding="utf-8")
    options = {"num_workers": 1, "language": "en", **options}
    return run(Settings(str(path), str(tmp_path / name), vocab_size, **options))


def _load(path, **options):
    key = "vocab_file" if path.suffix == ".txt" else "spm_model_file"
    return load_tokenizer(**{key: path}, **options)


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_has_its_size_and_covers_its_text(tmp_path, kind, lower_case):
    text = _text()
    path = _run(tmp_path, text, tokenizer=kind, do_lower_case=lower_case, character_coverage=1.0)
    tokenizer = _load(path, do_lower_case=lower_case)
    assert tokenizer.vocab_size == 120
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (3, 4)
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert len(ids) < 0.5 * len(text)
    assert read_manifest(path.parent).counts["entries"] == 120


def test_wordpiece_file_begins_as_bert_s(tmp_path):
    path = _run(tmp_path, _text())
    entries = read_vocab_file(path)
    assert unusual_entries(path) == ""
    assert tuple(entries[:5]) == SPECIAL_TOKENS == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert len(set(entries)) == 120


def _naive_wordpiece(words, vocab_size, min_frequency):
    """Joins the most frequent pair, the one with the lowest ids among equals, again and again."""
    alphabet = sorted({char for word in words for char in word})
    inner = sorted({char for word in words for char in word[1:]})
    ids = {entry: n for n, entry in enumerate(alphabet + [f"##{char}" for char in inner])}
    pieces = {word: [word[0], *(f"##{char}" for char in word[1:])] for word in words}
    while len(ids) < vocab_size:
        pairs = collections.Counter()
        for word, parts in pieces.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        pairs = {pair: count for pair, count in pairs.items() if count >= min_frequency}
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        joined = best[0] + best[1][2:]
        ids.setdefault(joined, len(ids))
        for parts in pieces.values():
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = [joined]
                place += 1
    return list(ids)


def test_wordpiece_agrees_with_a_naive_trainer(tmp_path):
    text = _text(120)
    entries = read_vocab_file(_run(tmp_path, text, character_coverage=1.0))
    words = collections.Counter(BasicTokenizer(lower_case=True).words(text))
    assert entries[5:] == _naive_wordpiece(words, 115, 2)


@pytest.mark.parametrize(("options", "min_frequency"), [({}, 2), ({"min_frequency": 9}, 9)])
def test_pairs_that_are_too_rare_are_no_entries(tmp_path, options, min_frequency):
    different = dict.fromkeys(BasicTokenizer(lower_case=True).words(_text(40)))
    words = {word: place % 12 + 1 for place, word in enumerate(different)}
    text = " ".join(" ".join([word] * count) for word, count in words.items())
    options = {"character_coverage": 1.0, **options}
    every = _naive_wordpiece(words, 10**6, min_frequency)
    assert len(every) < len(_naive_wordpiece(words, 10**6, min_frequency - 1))
    size = len(SPECIAL_TOKENS) + len(every)
    assert read_vocab_file(_run(tmp_path, text, size, **options))[5:] == every
    with pytest.raises(UserError, match=f"yields only {size} entries"):
        _run(tmp_path, text, size + 1, name="more", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_output_does_not_depend_on_the_number_of_workers(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 4000)
    outputs = []
    for num_workers in (1, 2, 3):
        path = _run(
            tmp_path, _text(), name=f"out{num_workers}", tokenizer=kind, num_workers=num_workers
        )
        outputs.append([file.read_bytes() for file in sorted(path.parent.glob("[!.]*"))])
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_the_same_in_other_processes(tmp_path, kind):
    """Hash seeds differ between processes, and the trainers have threads of their own."""
    path = _run(tmp_path, _text(), tokenizer=kind)
    for threads in ("1", "7"):
        out = tmp_path / f"threads{threads}"
        command = [sys.executable, "-m", "data_prep.vocabulary", "--vocab_size=120"]
        command += [f"--input_file={tmp_path / 'input.txt'}", f"--output_dir={out}"]
        command += [f"--tokenizer={kind}", "--num_workers=1", "--language=en"]
        environment = {**os.environ, "RAYON_NUM_THREADS": threads}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_sample_is_bounded_and_spread_over_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 4000)
    text = _text(2000)
    path = _run(tmp_path, text, vocab_sample_megabytes=0.05)
    sampled = read_manifest(path.parent).counts["sample_bytes"]
    assert 0.04e6 < sampled <= 0.05e6
    rule = vocabulary.SampleRule(1 << 31, 10**9)
    lines = rule.lines(text.encode())
    assert 0.45 < len(lines) / 2000 < 0.55
    # A line is in or out whatever is around it, and never more than allowed is taken.
    half = text[: text.index("\n", len(text) // 2) + 1].encode()
    assert rule.lines(half) == lines[: len(rule.lines(half))]
    short = vocabulary.SampleRule(1 << 32, 500).lines(text.encode())
    assert 400 < sum(len(line) + 1 for line in short) <= 500


def test_one_repeated_line_stays_within_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 4000)
    text = "abc abc abd.\n" * 20_000
    path = _run(tmp_path, text, 14, vocab_sample_megabytes=0.1, character_coverage=1.0)
    assert read_manifest(path.parent).counts["sample_bytes"] <= 0.1e6


def test_alphabet_is_the_frequent_part():
    words = {"ab": 90, "ac": 9, "é": 1}
    assert choose_alphabet(words, 1.0) == ["a", "b", "c", "é"]
    assert choose_alphabet(words, 0.99) == ["a", "b", "c"]
    assert choose_alphabet(words, 0.9) == ["a", "b"]
    assert choose_alphabet({"b": 1, "a": 1}, 0.5) == ["a"]


def test_rare_characters_are_unknown(tmp_path):
    text = _text() + "q\u4e2d\n"
    tokenizer = _load(_run(tmp_path, text, character_coverage=0.9999))
    assert tokenizer.encode("q\u4e2d") == [tokenizer.unk_id] * 2


def test_second_run_is_skipped_and_a_change_replaces_the_file(tmp_path, capsys):
    _run(tmp_path, _text())
    _run(tmp_path, _text(), num_workers=2)
    assert "up to date, skipped" in capsys.readouterr().err
    path = _run(tmp_path, _text(), tokenizer="sentencepiece")
    assert [file.name for file in sorted(path.parent.glob("[!.]*"))] == [
        "manifest.json",
        "spm.model",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize(
    ("text", "vocab_size", "options", "message"),
    [
        ("ab cd ab.\n", 500, {}, r"text is too small and yields only \d+ entries"),
        ("ab cd ab.\n", 500, {"tokenizer": "sentencepiece"}, r"a --vocab_size of at most \d+\.$"),
        (_text(), 12, {}, "special entries and the characters alone take 30"),
        (_text(), 12, {"tokenizer": "sentencepiece"}, "the characters alone take 19"),
        (_text(), 5, {}, "--vocab_size=5 must be at least 6; 5 are the special"),
        (_text(), 150, {"tokenizer": "bpe"}, "--tokenizer=bpe is not one of"),
        (_text(), 150, {"character_coverage": 0.0}, "--character_coverage=0 must be in"),
        (_text(), 150, {"min_frequency": 0}, "--min_frequency=0 must be at least 1"),
        (
            _text(),
            150,
            {"vocab_sample_megabytes": -1.0},
            "--vocab_sample_megabytes=-1 must be greater",
        ),
        (" \n\n", 150, {}, "has no words to train on"),
        (" \n\n", 150, {"tokenizer": "sentencepiece"}, "has no words to train on"),
        ("x" * 300 + "\n", 150, {}, "has no words to train on"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, text, vocab_size, options, message):
    with pytest.raises(UserError, match=message) as error:
        _run(tmp_path, text, vocab_size, **options)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_memory_depends_on_the_sample_not_on_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.text.documents.READ_BYTES", 1 << 12)
    monkeypatch.setattr(digest, "BLOCK_BYTES", 1 << 12)
    peaks = []
    for run_number, num_lines in enumerate((100, 2000, 8000)):  # the first one warms up
        text = _text(2000) * (num_lines // 2000) or _text(num_lines)
        (tmp_path / "input.txt").write_text(text)
        del text
        out = str(tmp_path / f"out{run_number}")
        tracemalloc.start()
        run(
            Settings(
                str(tmp_path / "input.txt"), out, 60, vocab_sample_megabytes=0.02, num_workers=1
            )
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_unknown_words_of_wikitext_are_no_words(tmp_path, kind):
    text = _text()
    marked = text.replace(".\n", ". <unk> <unk>\n")
    path = _run(tmp_path, marked, tokenizer=kind, markup="wikitext", character_coverage=1.0)
    tokenizer = _load(path)
    assert "<" not in "".join(tokenizer.convert_ids_to_tokens(range(5, 120)))
    assert read_manifest(path.parent).parameters["markup"] == "wikitext"
    if kind == "wordpiece":  # SentencePiece sees the blanks
        plain = _run(tmp_path, text, tokenizer=kind, name="plain", character_coverage=1.0)
        assert path.read_bytes() == plain.read_bytes()
        assert "markup" not in read_manifest(plain.parent).parameters
