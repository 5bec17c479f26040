"""Shards: balance, a held-out split by content, determinism."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.util import digest
from bert_tf.util.errors import UserError
from data_prep.stages import shards
from data_prep.stages.shards import Settings, hash_of_document, run


def _documents(count, seed=0):
    rng = random.Random(seed)
    return [
        "".join(f"Document {seed}-{n} line {line}.\n" for line in range(rng.randint(1, 30)))
        for n in range(count)
    ]


def _run(tmp_path, documents, name="out", **options):
    path = tmp_path / "input.txt"
    path.write_text("\n".join(documents))
    return run(Settings(str(path), str(tmp_path / name), **options))


def _read(out, kind):
    """Documents of each shard of a kind."""
    contents = [path.read_text() for path in sorted(out.glob(f"{kind}-*.txt"))]
    return [[text + "\n" for text in content.split("\n\n") if text] for content in contents]


def _flat(groups):
    return [document for group in groups for document in group]


def test_every_document_is_in_one_shard(tmp_path):
    documents = _documents(300)
    out = _run(tmp_path, documents, heldout_fraction=0.1, num_shards=5)
    train, heldout = _read(out, "train"), _read(out, "heldout")
    assert sorted(_flat(train) + _flat(heldout)) == sorted(documents)
    assert (len(train), len(heldout)) == (5, 1)
    assert 15 <= len(_flat(heldout)) <= 50
    manifest = read_manifest(out)
    assert manifest.counts["train_documents"] == len(_flat(train))
    assert manifest.counts["heldout_documents"] == len(_flat(heldout))
    assert [entry.count for entry in manifest.outputs] == [*map(len, train), *map(len, heldout)]


def test_shards_differ_by_no_more_than_a_document(tmp_path):
    documents = _documents(500)
    out = _run(tmp_path, documents, heldout_fraction=0.3, num_shards=7)
    for kind, number in (("train", 7), ("heldout", 3)):
        sizes = [path.stat().st_size for path in out.glob(f"{kind}-*.txt")]
        assert len(sizes) == number
        assert max(sizes) - min(sizes) <= max(map(len, documents)) + 1


def test_buffers_change_nothing(tmp_path, monkeypatch):
    documents = _documents(100)
    one = _run(tmp_path, documents, num_shards=4)
    monkeypatch.setattr(shards, "BUFFER_BYTES", 1000)
    two = _run(tmp_path, documents, "two", num_shards=4)
    names = sorted(path.name for path in one.glob("[!.]*"))
    assert len(names) == 6
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_split_of_old_documents_stays_when_the_corpus_grows(tmp_path):
    documents = _documents(300)
    first = _run(tmp_path, documents, heldout_fraction=0.05)
    more = documents[:150] + _documents(300, seed=1) + documents[150:]
    second = _run(tmp_path, more, "two", heldout_fraction=0.05, num_shards=3)
    old = set(documents)
    assert set(_flat(_read(second, "heldout"))) & old == set(_flat(_read(first, "heldout")))
    larger = _run(tmp_path, documents, "three", heldout_fraction=0.2)
    assert set(_flat(_read(first, "heldout"))) < set(_flat(_read(larger, "heldout")))


def test_equal_documents_are_on_one_side(tmp_path):
    out = _run(tmp_path, _documents(60) * 3, heldout_fraction=0.2, num_shards=2)
    train, heldout = _flat(_read(out, "train")), _flat(_read(out, "heldout"))
    assert len(train) + len(heldout) == 180
    assert train
    assert heldout
    assert not set(train) & set(heldout)


@pytest.mark.parametrize("fraction", [1e-6, 0.5])
@pytest.mark.parametrize("count", [2, 3])
def test_neither_side_is_empty(tmp_path, fraction, count, capsys):
    for seed in range(8):  # of two documents both are in the lower half once in four times
        documents = _documents(count, seed)
        out = _run(tmp_path, documents, f"out{seed}", heldout_fraction=fraction)
        train, heldout = _flat(_read(out, "train")), _flat(_read(out, "heldout"))
        assert sorted(train + heldout) == sorted(documents)
        assert train
        assert heldout
        assert len(heldout) == 1 or fraction == 0.5
    assert "it gets the document with the nearest hash" in capsys.readouterr().err


def test_one_document_to_train_on_where_all_would_be_held_out(tmp_path):
    low = [text for text in _documents(40) if hash_of_document(text.encode()) < 1 << 63][:6]
    out = _run(tmp_path, low, heldout_fraction=0.5)
    nearest = max(low, key=lambda text: hash_of_document(text.encode()))
    assert _flat(_read(out, "train")) == [nearest]
    assert len(_flat(_read(out, "heldout"))) == 5


def test_nothing_held_out(tmp_path):
    out = _run(tmp_path, _documents(3), heldout_fraction=0.0)
    assert [path.name for path in sorted(out.glob("*.txt"))] == ["train-00000.txt"]


def test_number_of_shards_from_their_size(tmp_path):
    documents = _documents(400)
    total = sum(map(len, documents))
    out = _run(tmp_path, documents, shard_megabytes=total / 4e6, heldout_fraction=0.0)
    assert len(_read(out, "train")) in (4, 5)  # the blank lines between documents count
    for share, numbers in ((0.25, (5, 2)), (0.5, (4, 4))):
        # 6.4 shards in all; by hand, 6.4 x 0.75 = 4.8 and a third of 5, 6.4 x 0.5 = 3.2 and 4.
        size = (total + len(documents) - 1) / 6.4e6
        out = _run(tmp_path, documents, f"{share}", shard_megabytes=size, heldout_fraction=share)
        assert tuple(len(_read(out, kind)) for kind in ("train", "heldout")) == numbers
    # More shards than documents are not made.
    out = _run(tmp_path, documents[:3], "small", shard_megabytes=1e-6)
    assert len(_flat(_read(out, "train"))) == len(_read(out, "train"))


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_other_line_ends_and_spaces_change_nothing(tmp_path, line_end):
    documents = _documents(40)
    out = _run(tmp_path, documents, num_shards=2)
    spaced = [f"  {text} \t\n".replace("\n", line_end) for text in documents]
    path = tmp_path / "spaced.txt"
    path.write_bytes(line_end.join(spaced).encode())
    other = run(Settings(str(path), str(tmp_path / "two"), num_shards=2))
    assert _read(out, "train") == _read(other, "train")
    assert _read(out, "heldout") == _read(other, "heldout")


def test_second_run_is_skipped_and_a_change_removes_old_shards(tmp_path, capsys):
    documents = _documents(100)
    _run(tmp_path, documents, num_shards=6)
    _run(tmp_path, documents, num_shards=6)
    assert "up to date, skipped" in capsys.readouterr().err
    out = _run(tmp_path, documents, num_shards=2)
    assert len(_read(out, "train")) == 2


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        (["One.\n"], {}, "not have two different documents to split"),
        (["One.\n"] * 5, {}, "not have two different documents to split"),
        (_documents(5), {"heldout_fraction": 0.6}, "--heldout_fraction=0.6 must be in"),
        (_documents(5), {"heldout_fraction": -0.1}, "--heldout_fraction=-0.1 must be in"),
        (_documents(5), {"num_shards": -1}, "--num_shards=-1 must not be negative"),
        (_documents(5), {"num_shards": 9}, "--num_shards=9: there are only 4 training documents"),
        (_documents(5), {"shard_megabytes": 0.0}, "--shard_megabytes=0 must be greater than 0"),
        (["\n \n"], {"heldout_fraction": 0.0}, "contains only white space"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, documents, options, message):
    with pytest.raises(UserError, match=message):
        _run(tmp_path, documents, **options)
    is_split_again = "gets the document" in capsys.readouterr().err
    assert is_split_again == ("only 4 training documents" in message)
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BUFFER_BYTES", 1 << 12)
    monkeypatch.setattr(digest, "BLOCK_BYTES", 1 << 14)
    peaks = []
    for run_number, count in enumerate((100, 1000, 4000)):  # the first one warms up
        documents = _documents(count)
        (tmp_path / "input.txt").write_text("\n".join(documents))
        del documents
        tracemalloc.start()
        run(Settings(str(tmp_path / "input.txt"), str(tmp_path / f"out{run_number}"), num_shards=9))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1] + 50_000
