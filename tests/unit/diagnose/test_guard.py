"""How many updates in a row may be skipped, and what is known of the last one."""

from pathlib import Path

import pytest

from bert_tf.diagnose import nonfinite
from bert_tf.diagnose.guard import NonFiniteGuard
from bert_tf.util.errors import UserError
from tests.helpers.fake_update import fake_update, training
from tests.helpers.jobs import begun, job_of
from tests.helpers.settings import run_settings

update = pytest.fixture(fake_update)


@pytest.fixture(name="seen")
def explained_updates(update, monkeypatch):
    """The skipped updates that were explained, by their steps."""
    seen = []

    def explain(job, network, session, skipped):
        assert session.run(update.step) == skipped.step
        seen.append(skipped)
        return f"stopped after step {skipped.step}"

    monkeypatch.setattr(nonfinite, "explain", explain)
    return seen


def guard_of(update, limit):
    job = job_of(None, run=begun(settings=run_settings(Path("out"), max_skipped_updates=limit)))
    return NonFiniteGuard(update.outputs, job, None, {"sums": update.sums})


@pytest.mark.usefixtures("seen")
def test_the_first_skipped_update_ends_a_run_that_may_skip_none(update):
    with (
        pytest.raises(UserError, match="stopped after step 1"),
        training(guard_of(update, 1)) as session,
    ):
        update.run(session)
        update.run(session, finite=False)


def test_only_skipped_updates_in_a_row_end_a_run(update, seen):
    with training(guard_of(update, 3)) as session:
        for finite in (False, False, True, False, True, False, False):
            update.run(session, finite=finite)
        with pytest.raises(UserError, match="stopped after step 2"):
            update.run(session, (5.0, 6.0, 7.0), finite=False, scale=8.0)
    [skipped] = seen
    # The stand-in counts steps only.
    assert (skipped.step, skipped.data_position, skipped.in_a_row) == (2, 9, 3)
    assert (skipped.loss_scale, skipped.learning_rate) == (8.0, 0.25)
    assert skipped.features["sums"].tolist() == [5.0, 6.0, 7.0]
