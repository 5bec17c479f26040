"""What networks make of files: computed in parts, and resumed."""

import types

import numpy as np
import pytest

from bert_tf.ranks.ranks import SingleProcess
from bert_tf.train.inference import Inference


class KilledError(Exception):
    pass


class Squares:
    """Killed before the part of this number."""

    name, unit, sizes = "squares", "numbers", (2, 2, 1)

    def __init__(self, killed_at=None):
        self.killed_at, self.computed = killed_at, []

    def results(self, parts):
        for part in parts:
            if part == self.killed_at:
                raise KilledError
            self.computed.append(part)
            yield {"squares": np.arange(part, part + self.sizes[part]) ** 2}
        self.computed.append("closed")

    def resumed(self, missing):
        return f"{len(missing)} left"


@pytest.fixture
def said():
    return []


@pytest.fixture
def inference(said):
    run = types.SimpleNamespace(ranks=SingleProcess(1), keeps_files=True, message=said.append)
    return Inference(run, None, "", (), None)


@pytest.mark.parametrize("through_chief", [False, True])
def test_a_killed_computation_resumes_with_the_parts_that_are_missing(
    tmp_path, inference, said, capsys, through_chief
):
    identity = {"--seed": 1}
    with pytest.raises(KilledError):
        inference.compute(Squares(killed_at=2), tmp_path, identity, through_chief=through_chief)
    work = Squares()
    parts = inference.compute(work, tmp_path, identity, through_chief=through_chief)
    assert work.computed == [2, "closed"]
    assert said == ["1 left"]
    assert [part["squares"].tolist() for part in parts.read_all()] == [[0, 1], [1, 4], [4]]
    assert "squares: done, 1 numbers in" in capsys.readouterr().err
    other = Squares()
    inference.compute(other, tmp_path, {"--seed": 2}, through_chief=through_chief)
    assert other.computed == [0, 1, 2, "closed"], "parts of another computation are none"
