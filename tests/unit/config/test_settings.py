"""Values that are wrong by themselves: refused with the settings, before anything is loaded."""

import math

import pytest

from bert_tf.config.schedules import ScheduleSettings
from bert_tf.config.settings import BatchSettings, RunSettings, StepSettings
from bert_tf.util.errors import UserError


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (ScheduleSettings, {"learning_rate": -0.1}, "--learning_rate=-0.1 must be greater than 0."),
        (ScheduleSettings, {"learning_rate": 0.0}, "--learning_rate=0 must be greater than 0."),
        (ScheduleSettings, {"learning_rate": math.inf}, "--learning_rate=inf must be finite."),
        (ScheduleSettings, {"learning_rate": math.nan}, "--learning_rate=nan must be a number."),
        (StepSettings, {"num_train_epochs": math.inf}, "--num_train_epochs=inf must be finite."),
        (StepSettings, {"num_train_steps": -10}, "--num_train_steps=-10 must be at least 1."),
        (StepSettings, {"num_train_steps": 0}, "--num_train_steps=0 must be at least 1."),
        (StepSettings, {"num_warmup_steps": -1}, "--num_warmup_steps=-1 must not be negative."),
        (StepSettings, {"stop_after_steps": 0}, "--stop_after_steps=0 must be at least 1."),
        (BatchSettings, {"micro_batch_size": -3}, "--train_batch_size=-3 must be at least 1."),
        (
            BatchSettings,
            {"accumulation_steps": 0},
            "--num_accumulation_steps=0 must be at least 1.",
        ),
        (BatchSettings, {"global_batch_size": -4}, "--global_batch_size=-4 must be at least 1."),
    ],
)
def test_values_out_of_bounds(kind, values, sentence):
    with pytest.raises(UserError) as error:
        kind(**values)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", ["a file", "a file/run/model"])
def test_an_output_directory_that_is_a_file(tmp_path, name):
    file = tmp_path / "a file"
    file.touch()
    with pytest.raises(UserError) as error:
        RunSettings(output_dir=tmp_path / name)
    assert str(error.value) == (
        f"--output_dir={tmp_path / name}: {file} is a file; choose another directory."
    )
