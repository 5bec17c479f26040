"""Flags are turned into settings."""

import dataclasses

import pytest
from absl import flags as absl_flags

from bert_tf.cli.flags import as_typed
from bert_tf.model.config import BertConfig
from bert_tf.tasks.pretraining import flags as pretraining_flags
from bert_tf.tasks.question_answering import settings as squad_flags
from bert_tf.util.errors import UserError


@pytest.fixture
def parse(tmp_path):
    """Parses flags into settings, with the required ones given."""
    (tmp_path / "config.json").write_text("{}")
    for name in ("train-0.tfrecord", "train-0.tfrecord.offsets", "manifest.json"):
        (tmp_path / name).write_text("content")

    def parse(*given):
        values = absl_flags.FlagValues()
        pretraining_flags.define_pretraining_flags(values)
        values(
            [
                "run_pretraining.py",
                f"--bert_config_file={tmp_path / 'config.json'}",
                f"--output_dir={tmp_path / 'out'}",
                f"--input_file={tmp_path / '*'}",
                "--do_train",
                *given,
            ]
        )
        try:
            return pretraining_flags.pretraining_settings(values)
        except UserError as error:
            raise UserError(as_typed(str(error), values)) from error

    return parse


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], None),
        (["--use_xla"], True),
        (["--nouse_xla"], False),
        (["--use_xla=true"], True),
        (["--use_xla=False"], False),
        (["--use_xla=1"], True),
        (["--use_xla=0"], False),
        (["--use_xla=auto"], None),
    ],
)
def test_xla_on_off_or_auto(given, expected, parse):
    assert parse(*given).runtime.use_xla is expected


def test_other_values_for_xla_are_refused(parse):
    with pytest.raises(absl_flags.IllegalFlagValueError, match=r"--use_xla=maybe: .*or auto"):
        parse("--use_xla=maybe")


def test_xla_has_no_native_operations(parse):
    with pytest.raises(UserError, match=r"--native_ops: XLA compiles .* drop it or --use_xla"):
        parse("--use_xla", "--native_ops")


@pytest.mark.parametrize("flag", ["--fusion_threshold_mb=64", "--allreduce_autotune"])
def test_what_is_summed_together_is_not_for_the_timing_to_decide(parse, flag):
    name = flag.partition("=")[0]
    with pytest.raises(UserError, match=rf"{name} lets the timing decide .* --deterministic"):
        parse(flag, "--deterministic")
    parse(flag)
    parse("--fusion_threshold_mb=0", "--noallreduce_autotune", "--deterministic")


def test_google_names_and_defaults(parse):
    settings = parse()
    assert settings.data.max_seq_length == 128
    assert settings.data.masks.max_predictions_per_seq == 20
    assert settings.optimization.schedule.learning_rate == 5e-5
    assert settings.optimization.steps.num_train_steps == 100_000
    assert settings.optimization.steps.num_warmup_steps == 10_000
    assert settings.run.save_checkpoints_steps == 1000
    assert settings.optimization.optimizer == "adam"
    assert settings.next_sentence
    assert settings.masked_lm


def test_side_files_of_records_are_not_records(parse):
    [path] = parse(f"--input_file={parse().bert_config_file.parent}").data.train_files
    assert path.name == "train-0.tfrecord"


@pytest.mark.parametrize(
    ("given", "scaled"),
    [
        ([], None),
        (["--horovod"], None),
        (["--horovod", "--scale_steps_by_ranks=false"], False),
        (["--scale_steps_by_ranks"], True),
    ],
)
def test_unset_step_scaling_is_decided_by_the_run(parse, given, scaled):
    assert parse(*given).optimization.steps.scale_steps_by_ranks is scaled


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ([], False),
        (["--allreduce_post_accumulation=false"], True),
        (["--allreduce_every_micro_batch"], True),
    ],
)
def test_both_names_of_the_communication_frequency(parse, given, every):
    assert parse(*given).optimization.allreduce_every_micro_batch is every


def test_both_names_of_the_micro_batch(parse):
    assert parse("--train_batch_size=7").optimization.batch.micro_batch_size == 7
    assert parse("--micro_batch_size=7").optimization.batch.micro_batch_size == 7
    both = parse("--micro_batch_size=7", "--train_batch_size=7")
    assert both.optimization.batch.micro_batch_size == 7


def test_no_clip(parse):
    for none in ("0", "inf", "1e39"):
        assert parse(f"--clip_norm={none}").optimization.clip_norm is None
    with pytest.raises(UserError, match=r"--clip_norm=-inf must not be negative"):
        parse("--clip_norm=-inf")
    assert parse().optimization.clip_norm == 1.0


def test_options_belong_to_their_optimizer(parse):
    betas = {"beta_1": 0.9, "beta_2": 0.999}
    assert parse().optimization.optimizer_options == {"bias_correction": False, **betas}
    corrected = parse("--adam_bias_correction").optimization
    assert corrected.optimizer_options == {"bias_correction": True, **betas}
    lamb = ["--optimizer_type=lamb"]
    unbounded = {
        "min_trust_ratio": None,
        "max_trust_ratio": None,
        "exclude_from_layer_adaptation": None,
        "prenormalize": False,
        **betas,
    }
    assert parse(*lamb).optimization.optimizer_options == unbounded
    bounded = parse(*lamb, "--min_trust_ratio=0.01", "--max_trust_ratio=0.3").optimization
    bounds = {"min_trust_ratio": 0.01, "max_trust_ratio": 0.3}
    assert bounded.optimizer_options == {**unbounded, **bounds}
    for text in ("", "LayerNorm,bias"):
        found = parse(*lamb, f"--exclude_from_layer_adaptation={text}").optimization
        excluded = {"exclude_from_layer_adaptation": text}
        assert found.optimizer_options == {**unbounded, **excluded}
    for optimizer in ("adam", "lamb"):
        given = [f"--optimizer_type={optimizer}", "--adam_beta1=0.8", "--adam_beta2=0.98"]
        found = parse(*given).optimization.optimizer_options
        assert (found["beta_1"], found["beta_2"]) == (0.8, 0.98)
    # A boolean that is off does not count as given.
    off = parse(*lamb, "--noadam_bias_correction")
    assert off.optimization == parse(*lamb).optimization


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "--lamb_prenormalize --optimizer_type=lans",
            "--lamb_prenormalize belongs to --optimizer_type=lamb, but the optimizer is LANS",
        ),
        (
            "--exclude_from_layer_adaptation=",
            "--exclude_from_layer_adaptation belongs to --optimizer_type=lamb or lans",
        ),
        (
            "--optimizer_type=lans --exclude_from_layer_adaptation=bias,(x",
            r"--exclude_from_layer_adaptation=bias,\(x: '\(x' is not a regular expression",
        ),
        (
            "--adam_bias_correction --optimizer_type=lamb",
            "--adam_bias_correction belongs to --optimizer_type=adam or muon, but the optimizer is "
            "LAMB",
        ),
        (
            "--max_trust_ratio=0.3",
            "--max_trust_ratio belongs to --optimizer_type=lamb or lans, but the optimizer is "
            "AdamW",
        ),
        ("--min_trust_ratio=0 ", "--min_trust_ratio belongs to --optimizer_type=lamb or lans"),
        ("--min_trust_ratio=-1 --optimizer_type=lamb", "--min_trust_ratio=-1 must not be negative"),
        ("--max_trust_ratio=0 --optimizer_type=lamb", "--max_trust_ratio=0 must be positive"),
        (
            "--min_trust_ratio=0.5 --max_trust_ratio=0.3 --optimizer_type=lamb",
            "--min_trust_ratio=0.5 is greater than --max_trust_ratio=0.3; give",
        ),
        ("--adam_beta1=-0.1", r"--adam_beta1=-0.1 must be in \[0, 0.999999\]\."),
        ("--adam_beta2=1 --optimizer_type=lamb", "--adam_beta2=1 must be in"),
    ],
)
def test_contradictory_options(parse, given, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        parse(*given.split())


def test_nvidias_names_for_precision(parse):
    assert parse("--manual_fp16").runtime.numerics.precision == "fp16"
    assert parse("--amp").runtime == parse("--amp", "--precision=fp32").runtime
    older = parse("--use_fp16").runtime
    assert older == parse("--amp", "--use_fp16").runtime
    assert older == parse("--amp").runtime
    for given in (["--nouse_fp16"], ["--noamp"], ["--noamp", "--use_fp16=false"]):
        assert not parse(*given).runtime.numerics.amp


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--use_fp16", "--noamp"], r"--amp and --use_fp16 are two names of one setting"),
        (["--use_fp16", "--precision=bf16"], r"--use_fp16 .* contradicts --precision=bf16; drop"),
        (["--amp", "--manual_fp16"], r"--amp .* contradicts --manual_fp16; drop one"),
    ],
)
def test_contradictions_name_the_given_flags(parse, given, sentence):
    with pytest.raises(UserError, match=sentence):
        parse(*given)


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"softmax": "bf16"}')
    return path


def test_a_policy_file_can_be_combined_with_any_precision(parse, policy_file):
    given = f"--precision_policy={policy_file}"
    for flags in ([], ["--precision=fp16"], ["--manual_fp16"]):
        runtime = parse(given, *flags).runtime
        assert runtime.numerics.policy_changes == {"softmax": "bfloat16"}
        assert runtime.numerics.precision == parse(*flags).runtime.numerics.precision
    assert parse().runtime.numerics.policy_changes == {}
    assert parse(given).run.command.values["precision_policy"] == str(policy_file)


def test_a_policy_file_cannot_be_combined_with_the_rewrite(parse, policy_file):
    with pytest.raises(UserError, match=r"--amp .* contradicts --precision_policy; drop one"):
        parse("--amp", f"--precision_policy={policy_file}")


def test_a_missing_precision_policy(parse):
    with pytest.raises(UserError, match=r"--precision_policy: nowhere\.json does not exist"):
        parse("--precision_policy=nowhere.json")


def test_flags_of_other_hardware_are_ignored_with_a_warning(parse, capsys, monkeypatch):
    given = ["--use_tpu", "--tpu_name=some", "--iterations_per_loop=5", "--horovod"]
    assert parse(*given).runtime.library == "horovod"
    said = capsys.readouterr().out.splitlines()
    for name in ("use_tpu", "tpu_name", "iterations_per_loop"):
        assert f"warning: --{name} has no effect here and is ignored." in said
    for off in ("--nouse_tpu", "--use_tpu=False"):
        parse(off)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    parse(*given)
    assert not capsys.readouterr().out, "only rank 0 prints"


def test_no_held_out_records(parse, capsys):
    parse("--do_eval")
    assert "warning: no held-out records were given (--eval_file)" in capsys.readouterr().out
    directory = parse().bert_config_file.parent
    parse("--do_eval", "--input_file=", f"--input_files_dir={directory}")
    assert "given (--eval_files_dir)" in capsys.readouterr().out
    with pytest.raises(UserError, match="training records; give --input_files_dir"):
        parse("--input_file=", f"--eval_files_dir={directory}")
    with pytest.raises(UserError, match="held-out records; give --eval_file"):
        parse("--input_file=", "--nodo_train", "--do_eval")


def test_where_a_run_resumes(parse):
    start = parse("--resume_from=other", "--reset_step").run.start
    assert (start.resume_from, start.reset_step, start.init_checkpoint) == ("other", True, None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--layer_summary_steps=-1"], "--layer_summary_steps=-1 must not be negative"),
    ],
)
def test_what_a_run_does_when_training_fails(parse, given, sentence):
    with pytest.raises(UserError, match=sentence):
        parse(*given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--reset_step"], "--reset_step needs --resume_from"),
        (["--resume_from=a", "--init_checkpoint=b"], "--resume_from=a and --init_checkpoint=b"),
        (["--resume_from=a", "--nodo_train", "--do_eval"], "add --do_train"),
    ],
)
def test_contradictions_about_where_a_run_starts(parse, given, sentence):
    with pytest.raises(UserError, match=sentence):
        parse(*given)


def test_exactly_our_flags_are_recorded(parse):
    recorded = parse("--learning_rate=0.25").run.command.values
    assert recorded["learning_rate"] == 0.25
    assert recorded["output_dir"].endswith("out")
    assert "flagfile" not in recorded
    assert "verbosity" not in recorded


def test_flags_that_ranks_compare(parse):
    """All except host flags: data may be anywhere on a host, by either name."""
    compared = parse("--num_threads=4", "--seed=3").run.command.compared()
    assert compared["--seed"] == 3
    of_a_host = {"--output_dir", "--init_checkpoint", "--input_file", "--input_files_dir"}
    of_a_host |= {"--resume_from", "--eval_file", "--eval_files_dir", "--num_threads", "--verbose"}
    assert not of_a_host & compared.keys()


@pytest.mark.parametrize("script", ["pretraining", "squad"])
def test_every_host_flag_exists(script, tmp_path):
    """A misspelt flag would be compared, and stop every job on several hosts."""
    module = {"pretraining": pretraining_flags, "squad": squad_flags}[script]
    values = absl_flags.FlagValues()
    getattr(module, f"define_{script}_flags")(values)
    (tmp_path / "data").write_text("content")
    given = {
        "pretraining": [f"--input_file={tmp_path / 'data'}", "--hidden_size=4"],
        "squad": [f"--train_file={tmp_path / 'data'}"],
    }
    values(["program", f"--output_dir={tmp_path}", "--do_train", *given[script]])
    settings = getattr(module, f"{script}_settings")(values)
    assert settings.run.command.per_host <= set(values)


@pytest.mark.parametrize(("given", "seconds"), [([], 300), (["--rank_timeout=0"], 0),
                                                (["--rank_timeout=5"], 5)])  # fmt: skip
def test_rank_timeout(parse, given, seconds):
    assert parse(*given).runtime.rank_timeout_seconds == seconds


@pytest.mark.parametrize("value", ["4.9", "-1"])
def test_invalid_rank_timeouts(parse, value):
    with pytest.raises(UserError, match=r"--rank_timeout=.* must be 0, for no limit, or at least"):
        parse(f"--rank_timeout={value}")


@pytest.mark.parametrize(
    ("given", "groups", "rows"),
    [
        ([], None, None),
        (["--embedding_gradient_rows"], None, True),
        (["--noembedding_gradient_rows"], None, False),
        (["--num_allreduce_groups=0", "--embedding_gradient_rows"], 0, True),
        (["--num_allreduce_groups=2"], 2, None),
        (["--adasum", "--num_allreduce_groups=0"], 0, None),
    ],
)
def test_unset_communication_is_decided_by_the_run(parse, given, groups, rows):
    communication = parse(*given).runtime.communication
    assert (communication.groups, communication.embedding_rows) == (groups, rows)


@pytest.mark.parametrize(
    "given",
    [
        ["--adasum", "--num_allreduce_groups=1"],
        ["--adasum", "--embedding_gradient_rows"],
        ["--num_allreduce_groups=1", "--embedding_gradient_rows"],
    ],
)
def test_communication_flags_that_exclude_each_other(parse, given):
    with pytest.raises(UserError, match=r"--adasum .*; drop (it|one)"):
        parse(*given)


def test_shared_state(parse):
    assert not parse().optimization.shard_optimizer_state
    assert parse("--shard_optimizer_state").optimization.shard_optimizer_state
    with pytest.raises(UserError, match=r"--shard_optimizer_state .* --adasum, .*; drop one"):
        parse("--shard_optimizer_state", "--adasum")


def test_epochs_instead_of_steps(parse):
    found = parse("--num_train_epochs=2.5").optimization.steps
    assert (found.num_train_epochs, found.warmup_proportion) == (2.5, 0.1)
    assert found.num_train_steps is None
    assert found.num_warmup_steps is None
    found = parse("--num_train_epochs=3", "--num_warmup_steps=7").optimization.steps
    assert (found.num_warmup_steps, found.warmup_proportion) == (7, None)
    found = parse("--num_train_steps=50", "--warmup_proportion=0.2").optimization.steps
    assert (found.num_train_epochs, found.warmup_proportion) == (None, 0.2)
    assert found.num_train_steps == 50
    assert found.num_warmup_steps is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--num_train_epochs=1", "--num_train_steps=100000"], "--num_train_epochs and --num_tra"),
        (["--warmup_proportion=0", "--num_warmup_steps=10000"], "--warmup_proportion and --num_w"),
        (["--num_train_epochs=0"], "--num_train_epochs=0 must be greater than 0"),
        (["--warmup_proportion=1.5"], r"--warmup_proportion=1.5 must be in \[0, 1\]"),
    ],
)
def test_invalid_lengths(parse, given, named):
    with pytest.raises(UserError, match=named):
        parse(*given)


def test_each_network_setting_has_a_flag(parse):
    assert parse().network == {}
    given = {
        "vocab_size": 50,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.25,
        "max_position_embeddings": 32,
        "type_vocab_size": 3,
        "initializer_range": 0.5,
    }
    assert given.keys() == {field.name for field in dataclasses.fields(BertConfig)}
    network = parse(*(f"--{name}={value}" for name, value in given.items())).network
    assert network == given


def test_a_model_needs_a_file_or_sizes_or_weights(parse, tmp_path):
    none = "--bert_config_file="
    with pytest.raises(UserError, match="no model was given; describe its architecture"):
        parse(none)
    assert parse(none, "--hidden_size=8").bert_config_file is None
    assert parse(none, "--init_checkpoint=published").bert_config_file is None
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bert_config.json").write_text("{}")
    assert parse(none).bert_config_file is None


def test_records_that_a_command_makes_need_not_exist_yet(parse, tmp_path):
    settings = parse("--before_training=mount x", f"--input_file={tmp_path}/later/*")
    assert settings.before_training == "mount x"
    assert settings.data.train_files == ()
    assert settings.data.train_patterns == f"{tmp_path}/later/*"
    with pytest.raises(UserError, match=r"no file matches '.*/later/\*'"):
        parse(f"--input_file={tmp_path}/later/*")


@pytest.mark.parametrize(
    "given", [["--local_cache_gb=5"], ["--local_cache_gb=0", "--local_cache_dir=/tmp/cache"]]
)
def test_a_limit_without_a_cache_and_a_cache_without_room(parse, given):
    with pytest.raises(
        UserError, match=r"--local_cache_gb=(0 must be greater than 0|5 needs --local_cache_dir)"
    ):
        parse(*given)


@pytest.mark.parametrize(
    ("given", "steps", "proportion"),
    [
        ([], 10_000, None),
        (["--num_train_steps=10000"], 10_000, None),
        (["--num_train_steps=10"], None, 0.1),
        (["--lr_schedule=one_cycle", "--num_train_steps=19999"], None, 0.1),
        (["--lr_schedule=warmup_stable_decay", "--num_train_steps=11000"], None, 0.1),
        (["--rewarm_at_step=9000", "--num_rewarm_steps=5"], None, 0.1),
        (["--num_train_steps=10", "--warmup_proportion=0.5"], None, 0.5),
        (["--num_train_steps=10", "--num_warmup_steps=3"], 3, None),
    ],
)
def test_a_default_warm_up_fits_the_run(parse, capsys, given, steps, proportion):
    optimization = parse(*given).optimization
    assert optimization.steps.num_warmup_steps == steps
    assert optimization.steps.warmup_proportion == proportion
    said = "since the default of 10,000 does not fit" in capsys.readouterr().out
    assert said == (proportion == 0.1)


def test_a_warm_up_that_was_given_is_refused_before_anything_is_opened(parse):
    with pytest.raises(UserError, match=r"^--num_warmup_steps=10000 is more than --num_train_st"):
        parse("--num_train_steps=10", "--num_warmup_steps=10000")
    # It does not matter to an evaluation.
    parse("--num_train_steps=10", "--num_warmup_steps=10000", "--nodo_train", "--do_eval")


def test_a_run_knows_which_flags_nobody_gave(parse):
    command = parse("--max_seq_length=128", "--nonsp").run.command
    assert not command.defaulted & {"max_seq_length", "nsp", "do_train", "input_file"}
    assert {"max_predictions_per_seq", "num_warmup_steps"} <= command.defaulted
