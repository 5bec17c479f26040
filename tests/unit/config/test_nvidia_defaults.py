"""Commands for NVIDIA's scripts show the differences in defaults; flag files remove them."""

import pytest
from absl import flags as absl_flags

from bert_tf.config import nvidia_defaults
from bert_tf.config.pretraining_flags import define_pretraining_flags
from bert_tf.config.squad_flags import define_squad_flags
from bert_tf.update import schedules
from tests.support import ROOT

PRETRAINING = (define_pretraining_flags, nvidia_defaults.show_pretraining_default_differences)
SQUAD = (define_squad_flags, nvidia_defaults.show_squad_default_differences)
FLAG_FILES = {
    "nvidia_compatible.flags": (PRETRAINING, nvidia_defaults.PRETRAINING),
    "nvidia_compatible_adam.flags": (PRETRAINING, nvidia_defaults.PRETRAINING),
    "nvidia_compatible_squad.flags": (SQUAD, nvidia_defaults.SQUAD),
}


def parsed(define, *given):
    values = absl_flags.FlagValues()
    # absl's flag, which programs define.
    absl_flags.DEFINE_string("flagfile", "", "", flag_values=values)
    define(values)
    values(["program", *given])
    return values


@pytest.fixture
def said(capsys):
    """The message shown to a command, and NVIDIA's defaults in it by flag."""

    def said(script, *given):
        define, say = script
        say(parsed(define, *given))
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines()), default=0) <= 100
        rows = [line.split("  ") for line in text.splitlines() if line.startswith("  --")]
        return text, {row[1]: row[-1].strip() for row in rows}

    return said


def test_other_commands_show_nothing(said):
    common = ["--horovod", "--amp", "--use_xla", "--num_accumulation_steps=2", "--do_train"]
    assert said(PRETRAINING, *common)[0] == ""
    assert said(SQUAD, *common, "--verbose_logging", "--use_tpu")[0] == ""


def test_the_lamb_command_shows_the_defaults_it_leaves_out(said):
    given = ["--input_files_dir=a", "--allreduce_post_accumulation=True", "--amp", "--use_xla"]
    text, theirs = said(PRETRAINING, *given, "--horovod", "--max_seq_length=128")
    assert text.startswith(
        "This seems to be a command for NVIDIA's scripts (--input_files_dir, --a"
    )
    assert "--flagfile=recipes/nvidia_compatible.flags before the other flags" in text
    assert "drops to (1 - warm-up / steps) ** 0.5" in text.replace("\n", " ")
    assert theirs == {
        "--optimizer_type": "lamb",
        "--learning_rate_scaling": "linear",
        "--scale_steps_by_ranks": "false",
        "--lr_schedule": "google",
        "--lr_decay_power": "0.5",
        "--loss_normalization": "micro_batch",
        "--max_predictions_per_seq": "80",
        "--max_eval_steps": "100",
        "--init_loss_scale": "4294967296",
        "--fp16_compression": "true",
        "--display_loss_steps": "1",
    }


def test_their_schedule_with_adam_has_no_drop(said):
    text, theirs = said(PRETRAINING, "--input_files_dir=a", "--optimizer_type=adam")
    assert "nvidia_compatible_adam.flags" in text
    assert "drops" not in text
    assert not {"--lr_schedule", "--lr_decay_power", "--optimizer_type"} & set(theirs)


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        (["--noamp"], {"--amp", "--init_loss_scale", "--fp16_compression"}),
        (["--noamp", "--manual_fp16"], {"--amp", "--precision"}),
        (["--use_fp16"], {"--amp", "--precision"}),
        (["--global_batch_size=32"], {"--train_batch_size", "--precision"}),
    ],
)
def test_differences_without_effect_are_left_out(said, given, absent):
    text, theirs = said(SQUAD, "--eval_script=evaluate.py", *given)
    assert "nvidia_compatible_squad.flags" in text
    assert theirs["--learning_rate"] == "5e-06"
    assert not absent & set(theirs)


def test_only_rank_0_prints(said, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert said(PRETRAINING, "--input_files_dir=a")[0] == ""


@pytest.mark.parametrize("more", [[], ["--noamp", "--nouse_xla"], ["--optimizer_type=lamb"]])
@pytest.mark.parametrize("name", FLAG_FILES)
def test_a_flag_file_sets_all_defaults(name, more, said, monkeypatch):
    monkeypatch.chdir(ROOT)
    if "adam" in name:
        more = [flag for flag in more if "lamb" not in flag]
    script, defaults = FLAG_FILES[name]
    given = [f"--flagfile=recipes/{name}", "--allreduce_post_accumulation=True", *more]
    assert said(script, *given)[0] == ""
    values = parsed(script[0], f"--flagfile=recipes/{name}")
    expected = {default.flag: default.value for default in defaults}
    if "adam" in name:
        expected.update(optimizer_type="adam", lr_schedule="polynomial", lr_decay_power=1)
    assert {flag: values[flag].value for flag in expected} == expected
    changed = {flag for flag in values if values[flag].present}
    assert changed == set(expected)
    assert max(map(len, (ROOT / "recipes" / name).read_text().splitlines())) <= 100


def test_flags_after_a_flag_file_take_precedence(monkeypatch):
    monkeypatch.chdir(ROOT)
    given = ["--flagfile=recipes/nvidia_compatible.flags", "--noamp", "--max_seq_length=128"]
    values = parsed(define_pretraining_flags, *given)
    assert (values.amp, values.max_seq_length, values.optimizer_type) == (False, 128, "lamb")


def test_the_drop_named_in_the_recipes():
    for steps, warmup, drop in ((7038, 2000, 0.846), (1564, 200, 0.934)):
        rates = schedules.google(
            [warmup - 1, warmup],
            peak_rate=1.0,
            total_steps=steps,
            warmup_steps=warmup,
            decay_power=0.5,
        )
        assert rates[0] > 0.99
        assert round(float(rates[1]), 3) == drop
    text = (ROOT / "recipes/nvidia_compatible.flags").read_text()
    assert "0.846" in text
    assert "0.934" in text
