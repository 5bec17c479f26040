"""What differs between two starts, from their ledgers alone. The whole is in test_checks."""

import pytest

from bert_tf.model.config import BertConfig
from bert_tf.model_directory.run_record import RunRecord
from bert_tf.train.ledger import changed_settings, learning_rate_jump
from bert_tf.util.errors import UserError

MODEL = BertConfig(vocab_size=5).with_explicit_gelu().to_dict()


def ledger(*, steps=100, warmup=20, offset=0, peak=1e-3, **more):
    return {
        "steps": {"train_steps": steps, "warmup_steps": warmup, "schedule_offset": offset},
        "learning_rate": {
            "peak": peak,
            "end": 0.0,
            "schedule": "polynomial",
            "decay_power": 1.0,
        },
        **more,
    }


def record(entries):
    return RunRecord("run.json", {"ledger": entries, "model": MODEL})


def test_values_are_named_as_a_reader_needs_them():
    before = {
        "data": {"sha256": "a" * 64, "seed": 1, "types": ["x", "y"]},
        "ranks": {"hosts": ["h"]},
    }
    now = {
        "data": {"sha256": "b" * 64, "seed": 1, "types": ("x", "y"), "new": 3},
        "ranks": {"hosts": ["other"]},
        "consumption": {"epochs": 2},
    }
    model = {**MODEL, "hidden_dropout_prob": 1 / 3}
    assert changed_settings(record(before), now, model) == {
        "data.sha256": f"{'a' * 12} -> {'b' * 12}",
        "model.hidden_dropout_prob": "0.1 -> 0.333333",
    }


def test_fractions_of_sources_that_come_or_go_are_a_change():
    plain = {"data": {"sha256": "a" * 64}}
    weighted = {
        "data": {"sha256": "a" * 64, "mixture": "0.8 from 9 records, 0.2 from 7 records"},
        "source_1": {"fraction": 0.8, "sequences": 80},
    }
    more = {**weighted, "source_1": {"fraction": 0.8, "sequences": 160}}
    shown = weighted["data"]["mixture"]
    assert changed_settings(record(plain), weighted, MODEL) == {"data.mixture": f"None -> {shown}"}
    assert changed_settings(record(weighted), plain, MODEL) == {"data.mixture": f"{shown} -> None"}
    assert not changed_settings(record(weighted), more, MODEL)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        # Twice the ranks: half of the steps, rounded up, and half of those done.
        ({"steps": 51, "warmup": 11, "offset": -25}, None),
        ({"peak": 2e-3}, "the learning rate jumps at step 50: 0.000625 -> 0.00125"),
        ({"steps": 200}, "the learning rate jumps at step 50: 0.000625 -> 0.000833"),
        ({"offset": -50}, "the learning rate jumps at step 50: 0.000625 -> 5e-05"),
    ],
)
def test_a_jump_is_more_than_a_step(changes, expected):
    found = learning_rate_jump(record(ledger()), ledger(**changes), step=50)
    assert found == expected


def with_schedule(name, **options):
    found = ledger()
    found["learning_rate"] = {"peak": 1e-3, "end": 0.0, "schedule": name, **options}
    return found


def test_schedules_are_compared_with_all_their_options():
    cosine = with_schedule("cosine", warmup_power=1.0, rewarm_at_step=None)
    half = r"the learning rate jumps at step 40: 0.00075 -> 0.000854"
    assert learning_rate_jump(record(ledger()), cosine, step=40) == half
    assert learning_rate_jump(record(cosine), cosine, step=40) is None
    stable = with_schedule(
        "warmup_stable_decay",
        decay_share=0.5,
        decay_form="linear",
        warmup_power=1.0,
        rewarm_at_step=None,
    )
    other = with_schedule("warmup_stable_decay", **{**stable["learning_rate"], "decay_share": 0.8})
    assert learning_rate_jump(record(stable), stable, step=60) is None
    assert "0.0008 -> 0.0005" in learning_rate_jump(record(stable), other, step=60)


def test_going_on_with_a_second_phase_at_the_end_of_the_first_is_no_jump():
    before = ledger()
    after = ledger(steps=150)
    after["learning_rate"].update(rewarm_at_step=100, rewarm_steps=10)
    assert learning_rate_jump(record(before), after, step=99) is None
    # Without, the rate is suddenly a third of its peak.
    assert "0 -> 0.000385" in learning_rate_jump(record(before), ledger(steps=150), step=100)
    jump = learning_rate_jump(record(ledger(steps=150)), after, step=105)
    assert jump == "the learning rate jumps at step 105: 0.000346 -> 0.0006"


def test_a_schedule_of_another_age_is_not_compared():
    before = ledger()
    before["learning_rate"]["schedule"] = "step_wise"
    assert learning_rate_jump(record(before), ledger(peak=2e-3), step=50) is None
    before = with_schedule("warmup_stable_decay", decay_form="in two steps")
    assert learning_rate_jump(record(before), ledger(peak=2e-3), step=50) is None


def test_a_record_without_its_schedule_is_damaged():
    before = ledger()
    del before["steps"]["warmup_steps"]
    with pytest.raises(UserError, match=r"no usable steps.warmup_steps; restore the file or"):
        learning_rate_jump(record(before), ledger(), step=50)
    before = with_schedule("exponential", decay_steps=10)
    with pytest.raises(UserError, match=r"no usable learning_rate.decay_rate"):
        learning_rate_jump(record(before), ledger(), step=50)
