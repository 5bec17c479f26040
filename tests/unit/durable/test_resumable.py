"""Starts with another plan than the directory's are refused."""

import pytest

from bert_tf.durable.resumable import earlier_identity, settle_identity
from bert_tf.util.errors import UserError

NAMES = {"what": "evaluation", "results": "scores"}
PLAN = {"--seed": 1, "--sample": 0.1, "sha256 of the texts": 64 * "a"}


def test_the_plan_of_an_earlier_start(tmp_path):
    directory = tmp_path / "scores"
    assert earlier_identity(directory, what="evaluation") is None
    for _ in range(2):
        settle_identity(directory, PLAN, **NAMES, found=[directory / "a"])
    assert earlier_identity(directory, what="evaluation") == PLAN


def test_another_plan_is_refused(tmp_path):
    settle_identity(tmp_path, PLAN, **NAMES, found=[])
    changed = {**PLAN, "--seed": 2, "sha256 of the texts": 64 * "b"}
    with pytest.raises(
        UserError, match=r"another evaluation \(--seed 1, not 2, sha256 of the te"
    ) as e:
        settle_identity(tmp_path, changed, **NAMES, found=[tmp_path / "a"])
    assert "aaaa" not in str(e.value)
    assert earlier_identity(tmp_path, what="evaluation") == PLAN


def test_another_plan_takes_the_place_of_one_without_results(tmp_path):
    for plan in (PLAN, {**PLAN, "--seed": 2}):
        settle_identity(tmp_path, plan, **NAMES, found=[])
        assert earlier_identity(tmp_path, what="evaluation") == plan
