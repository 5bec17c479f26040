"""Scores on disk survive a kill at any moment, and belong to one evaluation."""

import functools

import numpy as np
import pytest

from bert_tf.stages.kept_plan import settle_plan
from bert_tf.tasks.scoring.partial import DIRECTORY, PartialScores, finished_results
from bert_tf.tasks.scoring.work import Batch, CopyScores
from bert_tf.util.errors import UserError
from tests.helpers.kills import killed_at

BATCHES = [Batch("masked", 0, 2, 5), Batch("pseudo", 0, 3, 5), Batch("pseudo", 3, 4, 4)]
SCORES = {
    0: CopyScores(np.array([0.1, 0.2]), np.array([1, 2])),
    1: CopyScores(np.array([1.0, 2.0, 3.0]), np.array([1, 1, 1])),
    2: CopyScores(np.array([1 / 3]), np.array([1])),
}
RESULT = {"checkpoint": "model.ckpt-5", "step": 5}


def opened(directory, sha256="ab"):
    plan = {"--seed": 1}
    settle_plan(directory / DIRECTORY, plan, what="evaluation", results="scores", found=[])
    return PartialScores(directory, "model.ckpt-5", weights_sha256=sha256)


def all_equal(partial):
    for metric, numbers in (("masked", [0]), ("pseudo", [1, 2])):
        found = partial.of_metric(BATCHES, metric)
        for index in range(2):
            expected = np.concatenate([SCORES[number][index] for number in numbers])
            np.testing.assert_array_equal(found[index], expected)


def evaluate(directory):
    """As an evaluation does it; returns the batches that were not computed again."""
    partial = opened(directory)
    if partial.result() is not None:
        return set(SCORES)
    done = partial.load(BATCHES)
    for numbers in ((0, 1), (2,)):
        partial.add({n: SCORES[n] for n in numbers if n not in done})
    all_equal(partial)
    partial.finish(RESULT)
    return done


@pytest.mark.exhaustive
def test_a_kill_at_any_change_of_the_disk(tmp_path):
    kept = []
    while True:
        directory = tmp_path / str(len(kept))
        if not killed_at(len(kept), functools.partial(evaluate, directory)):
            break
        kept.append(len(evaluate(directory)))
        assert finished_results(directory) == [RESULT]
        assert not list(directory.rglob("scores-*")), "what the result is made of is gone"
    assert len(kept) > 8
    assert sorted(kept) == kept, "what is on disk stays there"
    assert set(kept) >= {0, 2, 3}


def test_a_damaged_file_is_computed_again(tmp_path, capsys):
    partial = opened(tmp_path)
    partial.add({0: SCORES[0]})
    partial.add({1: SCORES[1]})
    first, _ = sorted((tmp_path / "scores" / "model.ckpt-5").glob("scores-*.json"))
    first.write_text(first.read_text().replace("0.2", "0.3"))
    again = opened(tmp_path)
    assert again.load(BATCHES) == {1}
    assert f"{first} does not match its content_sha256" in capsys.readouterr().out
    again.add({0: SCORES[0]})
    assert opened(tmp_path).load(BATCHES) == {0, 1}


def test_a_damaged_result_is_computed_again(tmp_path, capsys):
    opened(tmp_path).finish(RESULT)
    path = tmp_path / "scores" / "model.ckpt-5" / "result.json"
    path.write_text(path.read_text().replace("-5", "-7"))
    assert opened(tmp_path).result() is None
    assert finished_results(tmp_path) == []
    assert f"{path} does not match" in capsys.readouterr().out


def test_scores_of_unknown_weights_are_dropped(tmp_path):
    opened(tmp_path).add({0: SCORES[0]})
    path = tmp_path / "scores" / "model.ckpt-5" / "weights.json"
    path.write_text(path.read_text().replace("ab", "aB"))
    assert opened(tmp_path).load(BATCHES) == set()


def test_a_damaged_plan_is_refused(tmp_path):
    opened(tmp_path)
    path = tmp_path / "scores" / "plan.json"
    path.write_text(path.read_text().replace("1", "3", 1))
    with pytest.raises(UserError, match=f"delete {path.parent} to start the evaluation again"):
        opened(tmp_path)


def test_scores_of_other_weights_are_dropped(tmp_path):
    opened(tmp_path).add({0: SCORES[0]})
    assert opened(tmp_path).load(BATCHES) == {0}
    assert opened(tmp_path, "cd").load(BATCHES) == set()


def test_results_are_ordered_by_step(tmp_path):
    settle_plan(tmp_path / DIRECTORY, {}, what="evaluation", results="scores", found=[])
    for step in (20, 5, 100):
        partial = PartialScores(tmp_path, f"model.ckpt-{step}", weights_sha256="ab")
        partial.finish({"checkpoint": f"model.ckpt-{step}", "step": step})
    assert [result["step"] for result in finished_results(tmp_path)] == [5, 20, 100]
