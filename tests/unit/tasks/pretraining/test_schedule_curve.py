"""A run's log has the rates of the curve that was drawn before it, in its second phase too."""

import dataclasses
import json

import pytest

from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.schedule_curve import planned_curve
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import pretraining_settings


@pytest.mark.slow
def test_a_run_and_its_second_phase_follow_their_curve(tmp_path, capfd):
    settings = pretraining_settings(tmp_path)
    first = with_values(
        settings.optimization,
        schedule="cosine",
        num_train_steps=6,
        num_warmup_steps=2,
        end_learning_rate=1e-4,
        scale_steps_by_ranks=False,
    )
    both = with_values(first, num_train_steps=11, rewarm_at_step=6, num_rewarm_steps=2)
    for optimization in (first, both):
        pretraining.run(dataclasses.replace(settings, optimization=optimization))
    said = capfd.readouterr().out
    assert "learning rate jumps" not in said
    assert "steps.train_steps 6 -> 11" in said
    assert "learning_rate.rewarm_at_step None -> 6" in said
    log = (settings.run.output_dir / "log.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, log) if "learning_rate" in line]
    curve = planned_curve(both, num_ranks=1, scaled=False, num_records=None).points()
    assert [line["step"] for line in lines] == [point.update for point in curve]
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([point.learning_rate for point in curve], rel=1e-5)
    # From the end of the first phase up to the peak again.
    peak = first.schedule.learning_rate
    assert rates[6:9] == pytest.approx([(1e-4 + peak) / 2, peak, peak], rel=1e-5)
