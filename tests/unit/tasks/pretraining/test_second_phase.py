"""A run's log has the rates of its schedule, in its second phase too."""

import dataclasses
import json

import numpy as np
import pytest

from bert_tf.tasks.pretraining import run as pretraining
from tests.helpers.jobs import resolve_on
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import pretraining_settings


@pytest.mark.slow
def test_a_run_and_its_second_phase_follow_their_schedule(tmp_path, capfd):
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
    assert [line["step"] for line in lines] == list(range(1, 12))
    rates = [line["learning_rate"] for line in lines]
    expected = resolve_on(both, 1).schedule.rate(np.arange(11))
    assert rates == pytest.approx(expected.tolist(), rel=1e-5)
    # From the end of the first phase up to the peak again.
    peak = first.schedule.learning_rate
    assert rates[6:9] == pytest.approx([(1e-4 + peak) / 2, peak, peak], rel=1e-5)
