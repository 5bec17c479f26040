"""Whether a job computes with native operations, and why not."""

import pytest

from bert_tf.native import library
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning import arithmetic
from bert_tf.tuning.arithmetic import reason_against_native_ops
from bert_tf.util.errors import UserError

MISSING = "the native operations are not built"


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: object())
    monkeypatch.setattr(arithmetic, "native_operations", lambda: object())


@pytest.fixture
def not_built(monkeypatch):
    def fail():
        raise library.MissingLibrary(MISSING)

    monkeypatch.setattr(arithmetic, "native_operations", fail)


@pytest.mark.usefixtures("built")
def test_both_libraries_are_needed(monkeypatch):
    def fail():
        raise library.MissingLibrary(MISSING)

    monkeypatch.setattr(library, "load", fail)
    assert choose() == MISSING


class WithAnother(SingleProcess):
    """Rank 0 of two; the other one has the given problem."""

    def __init__(self, problem):
        super().__init__(1)
        self._problem = problem

    def gather(self, value):
        return [value, ("host-b", self._problem)]


def choose(wanted=None, *, has_gpu=False, ranks=None):
    return reason_against_native_ops(wanted, has_gpu=has_gpu, ranks=ranks or SingleProcess(1))


@pytest.mark.usefixtures("built")
def test_native_if_it_is_built():
    for wanted in (None, True):
        assert choose(wanted, ranks=WithAnother(None)) is None


@pytest.mark.usefixtures("built")
def test_tensorflows_if_requested():
    assert choose(False) == "--native_ops=false"


@pytest.mark.usefixtures("not_built")
def test_tensorflows_if_nothing_is_built():
    assert choose() == MISSING
    with pytest.raises(UserError, match=f"^--native_ops: {MISSING}; drop the flag"):
        choose(True)


@pytest.mark.usefixtures("built")
def test_tensorflows_on_gpus():
    assert "runs on GPUs" in choose(has_gpu=True)
    with pytest.raises(UserError, match=r"--native_ops: .* GPUs"):
        choose(True, has_gpu=True)


@pytest.mark.usefixtures("built")
def test_all_ranks_use_one_form():
    assert choose(ranks=WithAnother(MISSING)) == f"rank 1 on host host-b: {MISSING}"
    with pytest.raises(UserError, match="--native_ops: rank 1 on host host-b"):
        choose(True, ranks=WithAnother(MISSING))
