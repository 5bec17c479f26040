"""Pieces on disk survive a kill at any change of the disk."""

import functools

import numpy as np
import pytest

from bert_tf.tasks.vectors.forms import Array, JsonLines
from bert_tf.tasks.vectors.pieces import Pieces
from bert_tf.tasks.vectors.sequences import TokenSequence
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.kills import killed_at

CALL = "ab"
SEQUENCES = [TokenSequence(np.array([2, 5 + n, 3], np.int32), 3, is_cut=n == 1) for n in range(3)]
VECTORS = [np.full((3, 1, 4), n, np.float32) for n in range(3)]


def form_in(directory):
    return Array(directory / "v.npy", "float32", (4,), tokens=True)


def make(directory, computed):
    """As a run makes its output of three pieces, of one text each."""
    work, output = directory / "work", directory / "v.npy"
    if output.exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    form, pieces = form_in(directory), Pieces(work, 3)
    journal = pieces.journal(CALL)
    for piece in pieces.missing(journal):
        computed.append(piece)
        values = VECTORS[piece][:, 0]
        pieces.write(piece, form.encode(piece, [SEQUENCES[piece]], [values]), cut_texts=piece)
    pieces.join(form, journal).replace(output)


@pytest.mark.exhaustive
def test_a_kill_at_any_change_of_the_disk(tmp_path):
    expected = np.concatenate(VECTORS)[:, 0]
    again = []
    while True:
        directory = tmp_path / str(len(again))
        if not killed_at(len(again), functools.partial(make, directory, [])):
            break
        computed = []
        make(directory, computed)
        again.append(len(computed))
        np.testing.assert_array_equal(np.load(directory / "v.npy", mmap_mode="r"), expected)
        tokens = np.load(directory / "v.tokens.npy", mmap_mode="r")
        assert tokens["text"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert tokens["id"].tolist() == [2, 5, 3, 2, 6, 3, 2, 7, 3]
    assert len(again) > 20
    assert sorted(again, reverse=True) == again, "what is on disk stays there"
    assert set(again) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["content", "tokens", "json"])
def test_a_damaged_piece_is_computed_again(tmp_path, kind):
    pieces = Pieces(tmp_path, 3)
    form = form_in(tmp_path)
    for piece in range(3):
        pieces.write(piece, form.encode(0, SEQUENCES[:1], [VECTORS[0][:, 0]]), cut_texts=0)
    assert pieces.missing(pieces.journal(CALL)) == []
    path = pieces.path(1, kind)
    path.write_bytes(
        path.read_bytes().replace(b"\x00", b"\x01").replace(b'"rows": 3', b'"rows": 4')
    )
    assert pieces.missing(pieces.journal(CALL)) == [1]


def test_a_full_disk(tmp_path):
    encoded = form_in(tmp_path).encode(0, SEQUENCES[:1], [VECTORS[0][:, 0]])
    with no_room(), pytest.raises(UserError, match=r"cannot write .*piece-000000.*free space"):
        Pieces(tmp_path, 1).write(0, encoded, cut_texts=0)


def test_numbers_beyond_half_precision(tmp_path):
    form = Array(tmp_path / "v.npy", "float16", (4,), tokens=False)
    with pytest.raises(UserError, match="--output_dtype=float16 cannot hold a component of 7e"):
        form.encode(0, SEQUENCES[:1], [np.full(4, 70000, np.float32)])


def test_lines_need_no_header():
    assert JsonLines((-1,), None).headers(5) == (b"", b"")
