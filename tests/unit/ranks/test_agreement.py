"""Ranks that were given different things are told apart in one sentence, on every rank."""

import json
import shutil
import socket
from pathlib import Path

import pytest

import bert_tf
from bert_tf.ranks.agreement import (
    check_same_on_all_ranks,
    code_digest,
)
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.util.errors import UserError


class FakeRanks(SingleProcess):
    """Rank 0 asks; the others, each a host and its facts, have answered already."""

    def __init__(self, *others):
        super().__init__()
        self._others = others

    def gather(self, value):
        self.sent = value
        # What travels is what JSON and pickle leave as it is.
        return [("host-a", value[1]), *json.loads(json.dumps(self._others))]


def sentence(expected, *others):
    with pytest.raises(UserError) as error:
        check_same_on_all_ranks(FakeRanks(*others), expected)
    return str(error.value)


SAME = {"data": "d1", "--seed": "3"}


def test_the_same_facts_everywhere():
    check_same_on_all_ranks(
        FakeRanks(("host-a", SAME), ("host-b", {"--seed": "3", "data": "d1"})), SAME
    )


def test_alone_nothing_can_differ():
    check_same_on_all_ranks(SingleProcess(), {"data": "d1", "--seed": 3})


def test_a_rank_says_where_it_is_and_its_facts_as_text():
    ranks = FakeRanks()
    check_same_on_all_ranks(ranks, {"--seed": 3, "--horovod": True, "data": None})
    assert ranks.sent == (
        socket.gethostname(),
        {"--seed": "3", "--horovod": "True", "data": "None"},
    )


def test_all_that_differs_of_a_rank_is_one_sentence():
    assert sentence(SAME, ("host-a", SAME), ("host-b", {"data": "d2", "--seed": "4"})) == (
        "rank 2 on host host-b differs from rank 0 in data (d2 instead of d1), --seed (4 instead "
        "of 3); give every rank the same."
    )


def test_a_fact_that_only_one_side_has_differs():
    assert "in data (None instead of d1);" in sentence(SAME, ("b", {"--seed": "3"}))
    assert "in new (x instead of None);" in sentence(SAME, ("b", {**SAME, "new": "x"}))


def test_ranks_with_the_same_difference_are_named_together():
    other, third = {**SAME, "data": "d2"}, {**SAME, "data": "d3"}
    assert sentence(SAME, ("a", SAME), ("b", other), ("b", other), ("c", third), ("d", other)) == (
        "ranks 2, 3 on host b and rank 5 on host d differ from rank 0 in data (d2 instead of d1); "
        "rank 4 on host c differs from rank 0 in data (d3 instead of d1); give every rank the same."
    )


def test_of_many_differences_the_first_are_shown():
    many = {f"f{i}": "0" for i in range(7)}
    found = sentence(many, ("b", dict.fromkeys(many, "1")))
    assert "f3 (1 instead of 0) and 3 more; give" in found
    assert "f4" not in found


@pytest.fixture
def copy(tmp_path):
    """A copy of some of the package."""
    source = Path(bert_tf.__file__).parent
    shutil.copytree(source / "config", tmp_path / "code" / "config")
    shutil.copy(source / "util" / "errors.py", tmp_path / "code")
    return tmp_path / "code"


def test_the_hash_of_the_code_follows_content_and_names_alone(copy, tmp_path):
    before = code_digest(copy)
    (copy / "notes.txt").write_text("no code")
    shutil.copytree(copy, tmp_path / "elsewhere")
    assert code_digest(copy) == code_digest(tmp_path / "elsewhere") == before

    (copy / "errors.py").rename(copy / "mistakes.py")
    renamed = code_digest(copy)
    (copy / "config" / "settings.py").write_text("# one comment more\n")
    changed = code_digest(copy)
    (copy / "update_ops.cc").write_text("")
    assert len({before, renamed, changed, code_digest(copy)}) == 4
