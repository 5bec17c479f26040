"""Settings of DeepSpeed's bing_bert as a flag file, and the ledger that it gives."""

import json

import pytest
from absl import flags

from bert_tf.cli.training_flags import runtime_settings
from bert_tf.compat.deepspeed import Conversion, convert, read_command
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_optimization
from bert_tf.util.errors import UserError
from tests.helpers.jobs import resolve_on
from tests.helpers.programs import run


def deepspeed(kind="Lamb", batch=65_536, micro=64, **more):
    """A configuration with the keys of deepspeed_bsz64k_lamb_config_seq128.json."""
    params = {"lr": 11e-3, "weight_decay": 0.01, "bias_correction": False}
    if "Lamb" in kind:
        params.update(max_coeff=0.3, min_coeff=0.01)
    return {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": micro,
        "steps_per_print": 1000,
        "prescale_gradients": False,
        "optimizer": {"type": kind, "params": params},
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": False,
        "fp16": {"enabled": True, "loss_scale": 0},
        **more,
    }


def bing_bert(warmup=0.06, rate=11e-3, total=7500):
    """A model file with the keys of bert_large_lamb.json."""
    training = {
        "num_epochs": 150,
        "warmup_proportion": warmup,
        "learning_rate": rate,
        "num_workers": 0,
        "async_worker": True,
        "decay_rate": 0.90,
        "decay_step": 250,
        "total_training_steps": total,
    }
    second = {**training, "learning_rate": 2e-3, "warmup_proportion": 0.02, "decay_step": 150}
    return {
        "name": "a_name",
        "bert_token_file": "bert-large-uncased",
        "bert_model_file": "bert-large-uncased",
        "bert_model_config": {
            "vocab_size_or_config_json_file": 119547,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "hidden_act": "gelu",
        },
        "data": {"flags": {"pretrain_dataset": True}, "mixed_seq_datasets": {"128": {"a": "b"}}},
        "mixed_seq_training": {"128": training, "512": second},
        "validation": {"path": "validation_set/"},
    }


FIRST = """deepspeed /x/deepspeed_train.py --cf /x/bert_large_lamb.json --max_seq_length 128
    --output_dir /x/out --deepspeed --deepspeed_transformer_kernel --print_steps 100 --lr_schedule
    EE --lr_offset 10e-4 --job_name lamb_64k_seq128 --deepspeed_config /x/ds.json
    --data_path_prefix /data/bert &> lamb_64k_seq128.log"""
SECOND = """--max_seq_length 512 --output_dir /x/out --print_steps 100 --deepspeed --job_name second
    --data_path_prefix /data/bert --validation_data_path_prefix /data/bert --rewarmup --lr_schedule
    EE --attention_dropout_checkpoint --lr_offset 0.0 --load_training_checkpoint
    /x/out/saved_models/lamb_64k_seq128 --load_checkpoint_id epoch150_step7000"""


def converted(command, config=None, model=None):
    settings = Conversion()
    settings.add(config or deepspeed())
    settings.add(model or bing_bert())
    options = read_command(command.split())
    for name in ("--deepspeed_config", "--config-file"):
        options.pop(name, None)
    settings.left.update(options)
    return convert(settings)


def parsed(file, tmp_path):
    path = tmp_path / "converted.flags"
    path.write_text(file.text(), encoding="utf-8")
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values(["program", f"--flagfile={path}"])
    return values


def plans(values, world_size):
    plan = resolve_on(pretraining_optimization(values), world_size)
    return plan.batch, plan.schedule


def test_the_first_phase(tmp_path):
    file = converted(FIRST)
    values = parsed(file, tmp_path)
    batch, schedule = plans(values, 64)
    assert (batch.micro_batch_size, batch.accumulation_steps) == (64, 16)
    assert batch.global_batch_size == 65_536
    assert (schedule.total_steps, schedule.warmup_steps) == (7_500, 450)
    assert (values.max_seq_length, values.hidden_size, values.precision) == (128, 1024, "fp16")
    assert values.output_dir == "/x/out/saved_models/lamb_64k_seq128"
    assert (values.min_trust_ratio, values.max_trust_ratio, values.clip_norm) == (0.01, 0.3, 1)
    # update_learning_rate of deepspeed_train.py: the rate, times its share, plus the offset.
    assert schedule.rate(450) == pytest.approx(11e-3 + 1e-3)
    assert schedule.rate(700) == pytest.approx(11e-3 * 0.9 + 1e-3)
    assert schedule.rate(224) == pytest.approx(12e-3 * 0.25), "the warm-up begins at 0 here"


def test_the_second_phase_begins_from_the_first(tmp_path):
    values = parsed(converted(SECOND, deepspeed(batch=32_768, micro=16)), tmp_path)
    batch, schedule = plans(values, 16)
    assert (batch.accumulation_steps, schedule.warmup_steps) == (128, 150)
    assert schedule.peak_rate == 2e-3
    assert values.init_checkpoint == "/x/out/saved_models/lamb_64k_seq128"
    assert (values.max_seq_length, values.max_predictions_per_seq) == (512, 80)


LINEAR = {"total_curriculum_step": 7000, "difficulty_step": 8}
DISCRETE = {"difficulty": [64, 96, 128], "max_step": [300, 700]}


def curriculum(kind, schedule, **more):
    return {
        "enabled": True, "curriculum_type": "seqlen", "min_difficulty": 64, "max_difficulty": 128,
        "schedule_type": kind, "schedule_config": schedule, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "schedule", "lengths"),
    [
        # DeepSpeed's next length is the linear one, rounded down to a multiple of 8.
        ("fixed_linear", LINEAR, {0: 64, 874: 64, 875: 72, 6999: 120, 7000: 128}),
        ("fixed_discrete", DISCRETE, {0: 64, 299: 64, 300: 96, 699: 96, 700: 128}),
    ],
)
def test_a_curriculum_of_lengths(tmp_path, kind, schedule, lengths):
    config = deepspeed(curriculum_learning=curriculum(kind, schedule))
    file = converted(FIRST, config)
    assert "curriculum" not in "".join(file.notes)
    batch, _ = plans(parsed(file, tmp_path), 64)
    assert {position: batch.length_at(position) for position in lengths} == lengths


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (curriculum("fixed_root", LINEAR), "curriculum_type seqlen with schedule_type fixed_root"),
        (curriculum("fixed_linear", LINEAR, max_difficulty=96), "max_difficulty 96 is not 128"),
        (curriculum("fixed_linear", LINEAR, min_difficulty=63), "does not grow from 63 to"),
        (curriculum("fixed_linear", {}), "64+None:None is not a ramp"),
        (curriculum("fixed_root", {}, enabled=False), None),
    ],
)
def test_other_curricula_are_listed(found, why):
    notes = [n for n in converted(FIRST, deepspeed(curriculum_learning=found)).notes if "curr" in n]
    assert len(notes) == (why is not None)
    assert all(why in note for note in notes)


def test_16k_as_published(tmp_path):
    model = bing_bert(warmup=0.02, rate=4e-3, total=187_000)
    words = "--max_seq_length=128 --max_steps 24430"
    file = converted(words, deepspeed(batch=16_384), model)
    values = parsed(file, tmp_path)
    batch, schedule = plans(values, 16)
    assert batch.accumulation_steps == 16
    assert schedule.warmup_steps == 3_740
    assert "warm-up 0.02 x 187000 = 3740 updates" in file.text()
    stops = values.stop_after_steps if "stop_after_steps" in values else values.num_train_steps
    assert stops == 24_430


def test_adam_with_layer_drop_and_zero(tmp_path):
    config = deepspeed(
        "Adam",
        batch=4_096,
        micro=16,
        gradient_predivide_factor=8,
        progressive_layer_drop={"enabled": True, "theta": 0.5, "gamma": 0.001},
        zero_optimization={"stage": 1, "overlap_comm": True},
    )
    config["optimizer"]["params"].update(betas=[0.8, 0.99], eps=1e-8)
    config["fp16"].update(initial_scale_power=16, hysteresis=2, min_loss_scale=1)
    words = "--max_seq_length 128 --progressive_layer_drop"
    file = converted(words, config, bing_bert(0.02, 1e-3, 200_000))
    values = parsed(file, tmp_path)
    batch, schedule = plans(values, 64)
    assert (batch.accumulation_steps, schedule.warmup_steps) == (4, 4_000)
    assert (values.optimizer_type, values.adam_beta1, values.adam_beta2) == ("adam", 0.8, 0.99)
    assert not values.adam_bias_correction
    assert values.init_loss_scale == 65_536
    noted = "\n".join(file.notes)
    for path in ("progressive_layer_drop.theta", "fp16.hysteresis", "optimizer.params.eps"):
        assert f"{path} = " in noted
    assert values.shard_optimizer_state
    assert "zero_optimization.stage" not in noted
    assert "zero_optimization.overlap_comm" in noted
    assert "there is no layer dropping" in noted


@pytest.mark.parametrize(("stage", "shares"), [(0, False), (2, True), (3, True)])
def test_stages_of_zero_beyond_the_first(tmp_path, stage, shares):
    config = deepspeed(zero_optimization={"stage": stage})
    file = converted("--max_seq_length 128", config, bing_bert())
    assert parsed(file, tmp_path).shard_optimizer_state == shares
    notes = [note for note in file.notes if note.startswith("zero_optimization.stage")]
    assert len(notes) == shares
    for note in notes:
        assert f"stage = {stage}: the optimizer's state is divided among ranks" in note
        assert note.endswith("gradients and weights are not")


@pytest.mark.parametrize(
    ("fp16", "expected"),
    [
        ({"loss_scale": 0, "initial_scale_power": 8}, (None, 256, 1_000)),
        ({"loss_scale": 0, "loss_scale_window": 500}, (None, 2**16, 500)),
        ({"loss_scale": 128, "initial_scale_power": 8, "min_loss_scale": 2}, (128, 2**16, 1_000)),
    ],
)
def test_a_static_loss_scale_has_no_window(tmp_path, fp16, expected):
    config = deepspeed()
    config["fp16"].update(fp16)
    values = parsed(converted("--max_seq_length 128", config, bing_bert()), tmp_path)
    assert (values.loss_scale, values.init_loss_scale, values.loss_scale_window) == expected
    runtime_settings(values)


def test_unknown_keys_are_listed_by_their_path():
    config = deepspeed(new={"inside": {"key": 1}})
    config["optimizer"]["params"]["other"] = 2
    model = bing_bert()
    model["mixed_seq_training"]["128"]["third"] = 3
    file = converted("--max_seq_length 128 --fourth 4", config, model)
    unknown = {note.split(" = ")[0] for note in file.notes if note.endswith(": unknown")}
    assert unknown == {"new.inside.key", "optimizer.params.other", "training.third", "--fourth"}
    assert all(f"# Not converted: {note}." in file.text() for note in file.notes)


def test_a_line_end_in_a_value_makes_no_flag(tmp_path):
    file = converted("--max_seq_length 128", deepspeed(new="a\n--seed=7"))
    assert "new = a --seed=7: unknown" in file.text()
    assert parsed(file, tmp_path).seed == 42


def test_betas_are_two_numbers():
    config = deepspeed()
    config["optimizer"]["params"]["betas"] = 0.9
    with pytest.raises(UserError, match=r"optimizer\.params\.betas 0\.9 are not two numbers"):
        converted("--max_seq_length 128", config)


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        ("--max_seq_length=128", deepspeed("OneBitAdam"), r"optimizer\.type OneBitAdam is not"),
        ("--max_seq_length=128", deepspeed("ZeroOneAdam"), r"optimizer\.type ZeroOneAdam"),
        ("--max_seq_length=128 --lr_schedule=EP", None, r"--lr_schedule EP is not"),
        ("--max_seq_length=64", None, r"no training settings for --max_seq_length=64"),
        ("--max_seq_length=128", deepspeed(micro=60), r"65536 is not a multiple of"),
        ("--max_seq_length=many", None, r"--max_seq_length: 'many' is not a number"),
        ("word", None, r"word belongs to no option"),
    ],
)
def test_what_cannot_be_converted(words, config, message):
    with pytest.raises(UserError, match=message):
        converted(words, config)


def test_the_command(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(deepspeed()))
    (tmp_path / "model.json").write_text(json.dumps(bing_bert()))
    output = tmp_path / "phase1.flags"
    command = ["-m", "bert_tf.commands.from_deepspeed", f"--output={output}", "--"]
    words = FIRST.replace("/x/ds.json", str(tmp_path / "ds.json"))
    words = words.replace("/x/bert_large_lamb.json", str(tmp_path / "model.json"))
    done = run(*command, *words.split())
    assert "not converted: steps_per_print = 1000" in done.stderr
    assert "--global_batch_size=65536" in output.read_text()
