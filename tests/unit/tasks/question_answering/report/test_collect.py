"""The report's entries on the training."""

import pytest

from bert_tf.tasks.question_answering.report.collect import seconds_of_training


def test_the_time_of_training_is_that_of_its_updates():
    log = [
        {"step": 10, "sequences_per_second": 4.0},
        {"step": 15},  # no rate: the next one is for these steps too
        {"step": 30, "sequences_per_second": 8.0},
    ]
    assert seconds_of_training(log, 8) == pytest.approx(10 * 8 / 4 + 20 * 8 / 8)
    assert seconds_of_training([], 8) == 0
    assert seconds_of_training([{"step": 3, "loss": 1.0}], 8) == 0
