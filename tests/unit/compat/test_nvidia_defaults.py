"""Commands for NVIDIA's scripts get NVIDIA's defaults, and flag files set them for others."""

import pytest
from absl import flags as absl_flags

from bert_tf.compat import nvidia_defaults
from bert_tf.tasks.pretraining.flags import define_pretraining_flags
from bert_tf.tasks.question_answering.settings import define_squad_flags
from bert_tf.tasks.tagging.flags import define_tagging_flags
from bert_tf.update import schedules
from tests.helpers.programs import ROOT

PRETRAINING = (define_pretraining_flags, nvidia_defaults.PRETRAINING)
SQUAD = (define_squad_flags, nvidia_defaults.SQUAD)
TAGGING = (define_tagging_flags, nvidia_defaults.TAGGING)
FLAG_FILES = {
    "nvidia_compatible.flags": PRETRAINING,
    "nvidia_compatible_adam.flags": PRETRAINING,
    "nvidia_compatible_squad.flags": SQUAD,
}


def parsed(define, *given):
    values = absl_flags.FlagValues()
    # absl's flag, which programs define.
    absl_flags.DEFINE_string("flagfile", "", "", flag_values=values)
    define(values)
    values(["program", *given])
    return values


def adopted(script, *given):
    """The flags of a command after it got NVIDIA's defaults, those that changed, and the text."""
    define, peer = script
    values, before = parsed(define, *given), parsed(define, *given)
    text = nvidia_defaults.adopt(values, peer)
    assert max(map(len, text.splitlines()), default=0) <= 100
    changed = {flag for flag in values if values[flag].value != before[flag].value}
    rows = [line.split() for line in text.splitlines() if line.startswith("  --")]
    assert {row[0] for row in rows} == {f"--{flag}" for flag in changed}
    assert nvidia_defaults.adopt(values, peer) == "", "the second time there is nothing to change"
    return values, changed, text


@pytest.mark.parametrize("script", [PRETRAINING, SQUAD, TAGGING])
def test_other_commands_keep_our_defaults(script):
    """Even with flags that have NVIDIA's names, but are useful by themselves."""
    common = ["--horovod", "--amp", "--use_xla", "--do_train", "--dllog_path=log.json"]
    common += ["--num_accumulation_steps=2", "--allreduce_post_accumulation", "--verbose_logging"]
    _, changed, text = adopted(script, *common)
    assert (changed, text) == (set(), "")


def test_the_published_lamb_command_trains_with_lamb_as_there():
    given = ["--input_files_dir=a", "--allreduce_post_accumulation=True", "--amp", "--use_xla"]
    values, changed, text = adopted(PRETRAINING, *given, "--horovod", "--max_seq_length=128")
    assert text.startswith("This is a command for NVIDIA's scripts (--input_files_dir), so flags")
    assert "drops to (1 - warm-up / steps) ** 0.5" in text.replace("\n", " ")
    expected = {
        "optimizer_type": "lamb",
        "learning_rate_scaling": "linear",
        "scale_steps_by_ranks": False,
        "lr_schedule": "google",
        "lr_decay_power": 0.5,
        "loss_normalization": "micro_batch",
        "max_predictions_per_seq": 80,
        "max_eval_steps": 100,
        "init_loss_scale": 2**32,
        "fp16_compression": True,
        "display_loss_steps": 1,
    }
    assert changed == set(expected)
    assert {flag: values[flag].value for flag in expected} == expected


def test_given_flags_win():
    given = ["--input_files_dir=a", "--learning_rate_scaling=none", "--display_loss_steps=10"]
    given += ["--lr_schedule=constant", "--precision=bf16"]
    values, changed, _ = adopted(PRETRAINING, *given)
    assert values.precision == "bf16"
    assert values.learning_rate_scaling == "none"
    assert values.display_loss_steps == 10
    assert values.optimizer_type == "lamb"
    # What goes with other values of the given flags only, and would be refused with these.
    assert not changed & {"lr_decay_power", "init_loss_scale", "fp16_compression"}


def test_their_schedule_with_adam_has_no_drop():
    _, changed, text = adopted(PRETRAINING, "--input_files_dir=a", "--optimizer_type=adam")
    assert "drops" not in text
    assert not {"lr_schedule", "lr_decay_power", "optimizer_type"} & changed


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ([], {"amp", "precision", "init_loss_scale"}),
        (["--noamp"], {"init_loss_scale", "fp16_compression"}),
        (["--noamp", "--manual_fp16"], {"precision"}),
        (["--use_fp16"], {"precision"}),
        (["--noamp", "--precision_policy=policy.json"], {"precision"}),
        (["--global_batch_size=32"], {"train_batch_size"}),
        (["--shard_optimizer_state"], {"allreduce_post_accumulation"}),
    ],
)
def test_differences_without_effect_are_left_out(given, absent):
    values, changed, _ = adopted(SQUAD, "--eval_script=evaluate.py", *given)
    assert values.learning_rate == 5e-6
    assert not absent & changed


def test_labels_of_words():
    values, changed, _ = adopted(TAGGING, "--do_prepare", "--noamp", "--train_batch_size=8")
    assert (values.learning_rate, values.num_train_epochs) == (5e-6, 10.0)
    assert values.precision == "fp32"
    assert "learning_rate_scaling" in changed
    assert "train_batch_size" not in changed


def test_only_rank_0_prints(monkeypatch, capsys):
    for rank, prints in (("0", True), ("1", False)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        values = parsed(define_pretraining_flags, "--input_files_dir=a")
        nvidia_defaults.adopt_and_say(values, nvidia_defaults.PRETRAINING)
        assert values.optimizer_type == "lamb", "on every rank"
        assert bool(capsys.readouterr().out) == prints


@pytest.mark.parametrize("name", FLAG_FILES)
def test_a_flag_file_sets_the_same_for_other_commands(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    define, peer = FLAG_FILES[name]
    values = parsed(define, f"--flagfile=recipes/{name}")
    expected = {"amp": True, **{default.flag: default.value for default in peer.defaults}}
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
