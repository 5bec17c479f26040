"""The flags of run_distillation.py, and those by which fine-tunings learn from a teacher."""

import pytest
from absl import flags as absl_flags

from bert_tf.model.bert import bert_specs
from bert_tf.tasks.classification import flags as classification_flags
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.pretraining import flags as pretraining_flags
from bert_tf.tasks.question_answering import settings as squad_flags
from bert_tf.tasks.tagging import flags as tagging_flags
from bert_tf.util.errors import UserError
from tests.helpers.tiny_pretraining import CONFIG


@pytest.fixture(name="parse")
def parser(tmp_path):
    """Parses the flags of run_distillation.py, with the required ones given."""
    (tmp_path / "train.tfrecord").write_text("content")

    def parse(*given):
        values = absl_flags.FlagValues()
        pretraining_flags.define_distillation_flags(values)
        usual = [
            "--teacher_checkpoint=teacher",
            f"--output_dir={tmp_path / 'out'}",
            f"--input_file={tmp_path / 'train.tfrecord'}",
            "--do_train",
        ]
        values(["run_distillation.py", *usual, *given])
        return pretraining_flags.distillation_settings(values)

    return parse


def test_the_defaults_are_those_of_the_published_run(parse):
    settings = parse()
    assert settings.distillation == DistillationSettings("teacher")
    assert settings.masked_lm
    assert not settings.next_sentence, "DistilBERT has no such head"
    assert settings.network == {}, "it follows from the teacher's"
    assert settings.optimization.rate_factors == ()


def test_every_flag_has_its_field(parse, tmp_path):
    config = tmp_path / "teacher.json"
    config.write_text("{}")
    given = {
        "alpha_ce": 0.5,
        "alpha_cos": 0.25,
        "alpha_hidden": 3.0,
        "alpha_attention": 4.0,
        "temperature": 1.5,
        "restrict_ce_to_mask": True,
        "min_target_probability": 0.01,
        "top_k_targets": 7,
        "teacher_checkpoint": "elsewhere",
    }
    flags = [f"--{name}={value}" for name, value in given.items()]
    settings = parse(
        *flags, "--alpha_mlm=0.75", "--student_layers=0, 2,11", f"--teacher_config_file={config}"
    )
    assert settings.distillation == DistillationSettings(
        **given, alpha_label=0.75, student_layers=(0, 2, 11), teacher_config_file=config
    )


def test_no_layers_of_the_teacher(parse):
    assert parse("--student_layers=none").distillation.student_layers == ()


def test_position_embeddings_that_stay_as_they_are(parse):
    optimization = parse("--freeze_pos_embs").optimization
    frozen = [
        spec.name
        for spec in bert_specs(CONFIG, pooler=True)
        if optimization.rate_factor(spec.name) != 1
    ]
    assert frozen == ["bert/embeddings/position_embeddings"]
    assert optimization.rate_factor(frozen[0]) == 0


REFUSED = {
    "no teacher": (["--teacher_checkpoint="], "--teacher_checkpoint is required."),
    "no words": (["--mlm=false"], "--mlm=false leaves no words to compare .*; drop it."),
    "negative alpha": (["--alpha_ce=-1"], "--alpha_ce=-1 must not be negative."),
    "negative weight of labels": (
        ["--alpha_mlm=-2"],
        "--alpha_mlm=-2 must not be negative.",
    ),
    "no temperature": (["--temperature=0"], "--temperature=0 must be greater than 0"),
    "certain targets only": (
        ["--min_target_probability=1"],
        r"--min_target_probability=1 must be in \[0, 1\).",
    ),
    "negative probability": (
        ["--min_target_probability=-0.1"],
        r"--min_target_probability=-0.1 must be in \[0, 1\).",
    ),
    "no targets": (["--top_k_targets=0"], "--top_k_targets=0 must be at least 1."),
    "no layers": (["--student_layers=0,two"], "--student_layers=0,two must be .*, or none."),
    "half a list": (["--student_layers=0,"], "--student_layers=0, must be comma-separated"),
    "position embeddings that stay random": (
        ["--freeze_pos_embs", "--student_layers=none"],
        "--freeze_pos_embs would keep the random values that --student_layers=none starts from",
    ),
    "no configuration": (
        ["--teacher_config_file=nowhere.json"],
        "--teacher_config_file: nowhere.json does not exist",
    ),
}


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(parse, given, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        parse(*given)
    assert str(error.value).endswith(".")


FINETUNINGS = {
    "squad": (
        squad_flags.define_squad_flags,
        squad_flags.squad_settings,
        "alpha_squad",
        ["--train_file={file}", "--vocab_file={file}"],
    ),
    "classifier": (
        classification_flags.define_classification_flags,
        classification_flags.classification_settings,
        "alpha_label",
        ["--data_dir={directory}", "--task_name=SST-2", "--vocab_file={file}"],
    ),
    "ner": (
        tagging_flags.define_tagging_flags,
        tagging_flags.tagging_settings,
        "alpha_label",
        ["--data_dir={directory}", "--vocab_file={file}"],
    ),
}


@pytest.fixture(name="finetuning", params=FINETUNINGS)
def parser_of_a_finetuning(request, tmp_path):
    """The name of the weight of labels, and a parser."""
    define, settings_of, label, usual = FINETUNINGS[request.param]
    for name in ("file", "train.tsv"):
        (tmp_path / name).write_text("content")

    def parse(*given):
        values = absl_flags.FlagValues()
        define(values)
        paths = {"file": tmp_path / "file", "directory": tmp_path}
        flags = [flag.format(**paths) for flag in usual]
        values(["run", *flags, f"--output_dir={tmp_path / 'out'}", "--do_train", *given])
        return settings_of(values)

    return label, parse


def test_without_a_teacher_a_finetuning_is_what_it_was(finetuning, capsys):
    label, parse = finetuning
    assert parse().distillation is None
    assert "no effect" not in capsys.readouterr().out
    for flag in (f"{label}=1", "alpha_ce=1", "temperature=3", "student_layers=0"):
        assert parse(f"--{flag}").distillation is None
        said = capsys.readouterr().out
        name = flag.partition("=")[0]
        assert f"warning: --{name} has no effect without --teacher_checkpoint." in said


def test_a_finetuning_weighs_teacher_and_labels_alike(finetuning):
    """As run_squad_w_distillation.py; it compares no hidden states."""
    label, parse = finetuning
    found = parse("--teacher_checkpoint=teacher").distillation
    assert found == DistillationSettings("teacher", alpha_ce=0.5, alpha_label=0.5, alpha_cos=0.0)
    found = parse("--teacher_checkpoint=teacher", f"--{label}=0.25").distillation
    assert found.alpha_label == 0.25
    with pytest.raises(UserError, match=f"--{label}=-1 must not be negative"):
        parse("--teacher_checkpoint=teacher", f"--{label}=-1")


def test_cached_targets_are_those_of_whole_records(parse):
    given = ["--cache_teacher=x", "--restrict_ce_to_mask", "--alpha_cos=0", "--top_k_targets=3"]
    assert parse(*given, "--batch_ramp=8:0,32:9").optimization.batch.ramp is not None
    with pytest.raises(
        UserError, match=r"^--length_ramp truncates records, but --cache_teacher keeps"
    ):
        parse(*given, "--length_ramp=64:0,128:9")


@pytest.mark.parametrize("ramp", ["--batch_ramp=8:0,32:9", "--length_ramp=64:0,128:9"])
def test_batches_of_similar_length_have_one_size_and_whole_records(parse, ramp):
    assert not parse().data.length_buckets
    cached = ["--cache_teacher=x", "--restrict_ce_to_mask", "--alpha_cos=0", "--top_k_targets=3"]
    assert parse("--length_buckets", *cached).data.length_buckets
    name = ramp.partition("=")[0]
    with pytest.raises(UserError, match=rf"^--length_buckets .* combined with {name}, drop one"):
        parse("--length_buckets", ramp)
