"""The one sentence for what happened to some of the ranks."""

import pytest

from bert_tf.ranks.failures import (
    ABSENT,
    CRASH,
    CUT_OFF,
    ENDED,
    SILENT,
    STATUS,
    USER_ERROR,
    Failure,
    describe_failures,
    failure_of,
    name_ranks,
)
from bert_tf.util.errors import UserError

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}


def described(failures):
    return describe_failures(failures, hosts=HOSTS, timeout_seconds=300.0, advice="start again")


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([2], "rank 2 on host b"),
        ([3, 2], "ranks 2, 3 on host b"),
        ([4, 1, 2, 3], "rank 1 on host a and ranks 2, 3 on host b and rank 4 on host c"),
    ],
)
def test_ranks_are_named_by_host(ranks, name):
    assert name_ranks(ranks, HOSTS) == name


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (UserError("--x is bad; give y."), Failure(USER_ERROR, "--x is bad; give y.")),
        (KeyError("x"), Failure(CRASH, "KeyError: 'x'")),
        (RuntimeError("one\ntwo"), Failure(CRASH, "RuntimeError: one")),
        (
            RuntimeError("Horovod has been shut down. This was caused by\nmore"),
            Failure(CUT_OFF, "Horovod has been shut down. This was caused by"),
        ),
        (
            ValueError("HorovodInternalError: broken pipe"),
            Failure(CUT_OFF, "HorovodInternalError: broken pipe"),
        ),
    ],
)
def test_what_an_exception_means(error, failure):
    assert failure_of(error) == failure


@pytest.mark.parametrize(
    ("failures", "sentence", "status"),
    [
        (
            {2: Failure(ENDED)},
            "the process of rank 2 on host b ended without a message: it was killed, or crashed; "
            "start again.",
            3,
        ),
        (
            {2: Failure(SILENT), 3: Failure(SILENT)},
            "no sign of life from ranks 2, 3 on host b for 300 seconds (--rank_timeout): it was "
            "stopped, or the host or its network failed; start again.",
            3,
        ),
        (
            {3: Failure(CRASH, "KeyError: 'x'")},
            "rank 3 on host b failed with KeyError: 'x'; the stack trace is above; start again.",
            1,
        ),
        ({2: Failure(USER_ERROR, "--x is bad.")}, "rank 2 on host b: --x is bad.", 2),
        ({0: Failure(USER_ERROR, "--x is bad.")}, "rank 0 on host a: --x is bad.", 2),
    ],
)
def test_a_sentence_for_each_kind(failures, sentence, status):
    assert described(failures) == (sentence, status)


def test_a_mistake_of_all_ranks_is_nobodys_own():
    mistake = Failure(USER_ERROR, "--x is bad.")
    assert described({2: mistake, 0: mistake}) == ("--x is bad.", 2)
    assert described({2: mistake, 3: mistake})[0] == "ranks 2, 3 on host b: --x is bad."


def test_of_two_mistakes_the_first_is_said():
    first, second = Failure(USER_ERROR, "first"), Failure(USER_ERROR, "second")
    assert described({3: first, 0: second})[0] == "rank 3 on host b: first"


def test_a_cause_is_said_before_what_it_causes():
    """Horovod's complaint on the ranks that waited, however early, is no cause."""
    cut_off = {0: Failure(CUT_OFF, "shut down"), 1: Failure(CUT_OFF, "shut down")}
    for kind in (USER_ERROR, CRASH, ENDED, SILENT, ABSENT):
        sentence, status = described({**cut_off, 4: Failure(kind, "text")})
        assert "rank 4 on host c" in sentence
        assert "rank 1" not in sentence
        assert status == STATUS[kind]


def test_where_horovod_gave_up_on_all_its_words_are_said():
    found, _ = described({0: Failure(CUT_OFF, "its words"), 2: Failure(CUT_OFF, "its words")})
    assert found == (
        "Horovod gave up on rank 0 on host a and rank 2 on host b (its words); start again."
    )
