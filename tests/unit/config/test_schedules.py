"""What a schedule may be given, by flags and from Python."""

import pytest
from absl import flags as absl_flags

from bert_tf.cli import training_flags as flags
from bert_tf.cli.settings_flags import Definer
from bert_tf.config.schedules import ScheduleSettings
from bert_tf.update.schedules import SCHEDULES, schedule_options
from bert_tf.util.errors import UserError
from tests.helpers.settings import optimization_settings

EXPONENTIAL = ["--lr_schedule=exponential", "--lr_decay_rate=0.9", "--lr_decay_steps=250"]
WSD = ["--lr_schedule=warmup_stable_decay"]


def parsed(*given):
    values = absl_flags.FlagValues()
    flags.define_optimization_flags(
        Definer(values), num_train_steps={"default": 100}, num_warmup_steps={"default": 10}
    )
    values(["program", "--learning_rate=1e-3", *given])
    return flags.optimization_settings(values).schedule


def test_flags_arrive_and_defaults_are_those_of_the_settings():
    found = parsed()
    assert found.options == {n: o.default for n, o in schedule_options().items()}
    assert found.all_options() == ScheduleSettings().all_options()
    assert (found.name, found.rewarm_at_step, found.num_rewarm_steps) == (
        "polynomial",
        None,
        None,
    )
    found = parsed(*EXPONENTIAL, "--lr_warmup_power=2")
    assert found.all_options() == {"decay_rate": 0.9, "decay_steps": 250, "warmup_power": 2.0}
    found = parsed(*WSD, "--lr_decay_share=0.2", "--lr_decay_form=1-sqrt")
    assert found.all_options() == {"decay_share": 0.2, "decay_form": "1-sqrt", "warmup_power": 1.0}
    found = parsed("--lr_schedule=one_cycle", "--lr_cycle_start=0.04")
    assert found.all_options()["cycle_start"] == 0.04
    found = parsed("--rewarm_at_step=50", "--num_rewarm_steps=5")
    assert (found.rewarm_at_step, found.num_rewarm_steps) == (50, 5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ["--lr_schedule=cosine", "--lr_decay_power=0.5"],
            r"^--lr_decay_power=0.5 belongs to --lr_schedule=polynomial or google, but the "
            r"schedule is cosine; leave it out or set it to 1\.$",
        ),
        (
            ["--lr_decay_rate=0.9"],
            r"^--lr_decay_rate=0.9 belongs to --lr_schedule=exponential, but the schedule is "
            r"polynomial; leave it out\.$",
        ),
        (["--lr_decay_form=cosine"], r"--lr_decay_form=cosine belongs to .*or set it to linear"),
        (["--lr_schedule=google", "--lr_cycle_start=0.2"], r"belongs to --lr_schedule=one_cycle,"),
        (EXPONENTIAL[:2], r"exponential needs --lr_decay_rate and --lr_decay_steps; give both"),
        ([*EXPONENTIAL, "--lr_decay_rate=1.1"], r"--lr_decay_rate=1.1 must be in \(0, 1\]"),
        ([*EXPONENTIAL, "--lr_decay_rate=0"], r"--lr_decay_rate=0 must be in \(0, 1\]"),
        ([*EXPONENTIAL, "--lr_decay_steps=0"], r"--lr_decay_steps=0 must be at least 1"),
        (["--lr_decay_power=0"], r"--lr_decay_power=0 must be greater than 0"),
        (["--lr_warmup_power=-1"], r"--lr_warmup_power=-1 must be greater than 0"),
        ([*WSD, "--lr_decay_share=1.5"], r"--lr_decay_share=1.5 must be in \[0, 1\]"),
        (["--lr_schedule=one_cycle", "--lr_cycle_start=-1"], r"must be in \[0, 1\]"),
        (["--end_learning_rate=-1e-5"], r"--end_learning_rate=-1e-05 must not be negative"),
        (["--end_learning_rate=0.01"], r"0.01 is greater than --learning_rate=0.001, the peak"),
        (
            ["--lr_schedule=constant", "--end_learning_rate=1e-5"],
            r"is never reached with --lr_schedule=constant; leave one of them out",
        ),
        (
            ["--lr_schedule=one_cycle", "--end_learning_rate=2e-4"],
            r"greater than the rate at which the cycle starts and ends, --lr_cycle_start=0.1 times",
        ),
        (["--rewarm_at_step=50"], r"--rewarm_at_step and --num_rewarm_steps need each other"),
        (["--num_rewarm_steps=5"], r"need each other; give both"),
        (["--rewarm_at_step=0", "--num_rewarm_steps=5"], r"--rewarm_at_step=0 must be at least 1"),
        (["--rewarm_at_step=9", "--num_rewarm_steps=0"], r"--num_rewarm_steps=0 must be at least"),
        *(
            (
                [f"--lr_schedule={name}", "--rewarm_at_step=50", "--num_rewarm_steps=5"],
                rf"^--rewarm_at_step=50 cannot be combined with --lr_schedule={name}; drop it, or "
                r"choose polynomial, cosine, warmup_stable_decay or exponential\.$",
            )
            for name in ("google", "constant", "one_cycle")
        ),
    ],
)
def test_values_that_no_length_makes_valid(given, sentence):
    with pytest.raises(UserError, match=sentence):
        parsed(*given)


def test_every_schedule_has_valid_defaults_but_one():
    for name in SCHEDULES:
        if name == "exponential":
            continue
        settings = optimization_settings(
            schedule=name, num_train_steps=100, num_warmup_steps=10, learning_rate=1.0
        )
        settings.check_lengths()


def test_names_from_python():
    with pytest.raises(UserError, match=r"^--lr_schedule=linear is not one of polynomial, google"):
        ScheduleSettings(name="linear")
    with pytest.raises(UserError, match=r"^no learning rate schedule has an option power; drop"):
        ScheduleSettings(options={"power": 2.0})
    with pytest.raises(UserError, match=r"^--lr_decay_form=sqrt is not one of linear, cosine, 1-"):
        optimization_settings(schedule="warmup_stable_decay", decay_form="sqrt")


@pytest.mark.parametrize(
    ("schedule", "changes", "sentence"),
    [
        ("warmup_stable_decay", {"decay_share": 0.9}, None),
        ("warmup_stable_decay", {"decay_share": 0.55, "num_warmup_steps": 45}, None),
        (
            "warmup_stable_decay",
            {"decay_share": 0.91},
            r"^--lr_decay_share=0.91 of --num_train_steps=100 and a warm-up of 10 steps overlap; "
            r"lower one of them\.$",
        ),
        (
            "polynomial",
            {"num_warmup_steps": 101},
            r"^--num_warmup_steps=101 is more than --num_train_steps=100, so the learning rate",
        ),
        ("one_cycle", {"num_warmup_steps": 50}, None),
        ("one_cycle", {"num_warmup_steps": 51}, r"must be from 1 to half of --num_train_steps=100"),
        ("one_cycle", {"num_warmup_steps": 0}, r"rises in 0 warm-up steps"),
        ("cosine", {"rewarm_at_step": 10, "num_rewarm_steps": 90}, None),
        (
            "cosine",
            {"rewarm_at_step": 9, "num_rewarm_steps": 5},
            r"--num_warmup_steps=10 is more than the 9 steps before --rewarm_at_step; lower it",
        ),
        (
            "cosine",
            {"rewarm_at_step": 40, "num_rewarm_steps": 61},
            r"--num_rewarm_steps=61 is more than the 60 steps after --rewarm_at_step=40; lower it",
        ),
        (
            "cosine",
            {"rewarm_at_step": 100, "num_rewarm_steps": 1},
            r"--rewarm_at_step=100 is not before the end, --num_train_steps=100; raise",
        ),
        (
            "warmup_stable_decay",
            {"rewarm_at_step": 15, "num_rewarm_steps": 1, "decay_share": 0.5},
            r"of --rewarm_at_step=15 and a warm-up of 10 steps overlap",
        ),
        (
            "warmup_stable_decay",
            {"rewarm_at_step": 50, "num_rewarm_steps": 30, "decay_share": 0.5},
            r"of the 50 steps after it and a warm-up of 30 steps overlap",
        ),
    ],
)
def test_parts_fit_into_the_training(schedule, changes, sentence):
    given = {"num_train_steps": 100, "num_warmup_steps": 10, **changes}
    settings = optimization_settings(schedule=schedule, learning_rate=1.0, **given)
    if sentence is None:
        settings.check_lengths()
        return
    with pytest.raises(UserError, match=sentence):
        settings.check_lengths()
