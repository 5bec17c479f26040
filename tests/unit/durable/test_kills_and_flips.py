"""What durable/ keeps survives a kill at any change of the disk, and no flipped bit passes."""

import contextlib
import functools
import shutil

import numpy as np
import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.durable.resumable import ArrayParts, resumable_map
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.durable.stage import Built, run_stage
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.kills import killed_at
from tests.helpers.thread_ranks import run_ranks

IDENTITY = {"--seed": 1}
COUNT = 4


def squared(item):
    return {"squares": np.full(item + 1, item**2), "text": np.frombuffer(b"a\0" * item, np.uint8)}


def compute(computed, items):
    for item in items:
        computed.append(item)
        yield squared(item)
    computed.append("end")


def make_parts(directory, computed, ranks=None, *, identity=IDENTITY, through_chief=False):
    ranks = ranks or SingleProcess()
    parts = ArrayParts(directory / "parts", COUNT, identity)
    missing = ranks.broadcast(parts.missing() if ranks.is_chief else None)
    how = {"through_chief": through_chief}
    resumable_map(missing, functools.partial(compute, computed), parts, ranks, **how)
    return parts


def make_sealed(directory, computed):
    path = directory / "a.json"
    if not path.exists():
        computed.append("a")
        write_sealed_json(path, {"a": [1, 2]}, durable=True)


def make_stage(directory, computed):
    """A stage that copies a file."""

    def build(target):
        computed.append("b")
        (target / "b.txt").write_bytes(source.read_bytes().upper())
        return Built({"b.txt": 3}, {"lines": 3})

    source = directory.parent / "source.txt"
    run_stage("b", directory / "stage", parameters=IDENTITY, inputs=[source], build=build,
              made_by={})  # fmt: skip


def of_parts(directory):
    parts = ArrayParts(directory / "parts", COUNT, IDENTITY)
    return [{name: array.tolist() for name, array in part.items()} for part in parts.read_all()]


def of_sealed(directory):
    advice = "delete it"
    return read_sealed_json(directory / "a.json", what="a", advice=advice)


def of_stage(directory):
    names = sorted(path.name for path in (directory / "stage").iterdir())
    return names, read_manifest(directory / "stage"), (directory / "stage/b.txt").read_bytes()


MADE = {
    "parts": (make_parts, of_parts),
    "sealed": (make_sealed, of_sealed),
    "stage": (make_stage, of_stage),
}


@pytest.fixture(name="source", autouse=True)
def lines_to_copy(tmp_path):
    (tmp_path / "source.txt").write_text("one\ntwo\nthree\n")


@pytest.mark.parametrize("kind", MADE)
def test_a_kill_at_any_change_of_the_disk(tmp_path, kind, capsys):
    make, result = MADE[kind]
    (tmp_path / "whole").mkdir()
    make(tmp_path / "whole", [])
    again = []
    while True:
        directory = tmp_path / str(len(again))
        directory.mkdir()
        if not killed_at(len(again), functools.partial(make, directory, [])):
            break
        computed = []
        make(directory, computed)
        assert result(directory) == result(tmp_path / "whole")
        again.append(len(computed))
    assert sorted(again, reverse=True) == again, "what is on disk stays there"
    assert len(set(again)) >= {"parts": COUNT, "sealed": 2, "stage": 2}[kind]


@pytest.mark.parametrize("kind", MADE)
def test_a_flipped_bit_never_passes(tmp_path, kind, capsys):
    """It is refused in a sentence, or what it is in is made again."""
    make, result = MADE[kind]
    (tmp_path / "whole").mkdir()
    make(tmp_path / "whole", [])
    expected = result(tmp_path / "whole")
    paths = sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file())
    rng = np.random.default_rng(0)
    for number in range(60):
        shutil.rmtree(tmp_path / "flipped", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
        path = tmp_path / "flipped" / paths[number % len(paths)].relative_to(tmp_path / "whole")
        content = bytearray(path.read_bytes())
        bit = int(rng.integers(8 * len(content)))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            make(tmp_path / "flipped", [])
            assert result(tmp_path / "flipped") == expected or path.name == "b.txt"


def test_a_part_is_computed_once_and_the_computation_ends(tmp_path):
    computed = []
    parts = make_parts(tmp_path, computed)
    assert computed == [0, 1, 2, 3, "end"]
    make_parts(tmp_path, computed)
    assert len(computed) == 5, "nothing is missing"
    parts.path(2).write_bytes(parts.path(2).read_bytes()[:-1])
    make_parts(tmp_path, computed)
    assert computed[5:] == [2, "end"]


def test_parts_of_another_computation_are_missing(tmp_path):
    make_parts(tmp_path, [])
    assert ArrayParts(tmp_path / "parts", COUNT, {"--seed": 2}).missing() == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"part-000001\.npz is missing or damaged; start again"):
        ArrayParts(tmp_path / "parts", COUNT, {"--seed": 2}).read(1)


@pytest.mark.parametrize("through_chief", [False, True])
def test_ranks_divide_the_parts(tmp_path, through_chief):
    """Three ranks, four parts; through rank 0, the others need not see its disk."""
    computed = [[], [], []]

    def make(ranks):
        place = tmp_path / (str(ranks.rank) if through_chief else "")
        make_parts(place, computed[ranks.rank], ranks, through_chief=through_chief)

    assert run_ranks(3, make) == [None] * 3
    assert computed == [[0, 3, "end"], [1, "end"], [2, "end"]]
    assert of_parts(tmp_path / ("0" if through_chief else "")) == [
        {name: array.tolist() for name, array in squared(item).items()} for item in range(COUNT)
    ]
    assert not through_chief or not (tmp_path / "1").exists()


def test_a_full_disk(tmp_path):
    (tmp_path / "parts").mkdir()
    with no_room(), pytest.raises(UserError, match=r"cannot write .*part-000000.*free space"):
        make_parts(tmp_path, [])
