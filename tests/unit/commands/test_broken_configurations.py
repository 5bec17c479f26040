"""A broken configuration is named before anything else that is given is read, by every script."""

import pytest
from absl import flags

from bert_tf.tasks.classification.flags import (
    classification_settings,
    define_classification_flags,
)
from bert_tf.tasks.classification.run import run as run_classifier
from bert_tf.tasks.pretraining.flags import (
    define_distillation_flags,
    define_pretraining_flags,
    distillation_settings,
    pretraining_settings,
)
from bert_tf.tasks.pretraining.run import run as run_pretraining
from bert_tf.tasks.question_answering.run import run as run_squad
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings
from bert_tf.tasks.replaced_tokens.objective import define_electra_flags, electra_settings
from bert_tf.tasks.scoring.run import run as run_evaluation
from bert_tf.tasks.scoring.settings import define_evaluation_flags, evaluation_settings
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings
from bert_tf.tasks.tagging.run import run as run_ner
from bert_tf.tasks.vectors.run import run as run_features
from bert_tf.tasks.vectors.settings import define_feature_flags, feature_settings
from bert_tf.util.errors import UserError

TRAIN = ["--do_train", "--output_dir=out", "--train_file=broken"]
RECORDS = ["--output_dir=out", "--input_file=broken"]
SCRIPTS = {
    "run_pretraining": (
        define_pretraining_flags, pretraining_settings, run_pretraining, ["--do_train", *RECORDS],
    ),
    "run_electra": (
        define_electra_flags, electra_settings, run_pretraining, ["--do_train", *RECORDS],
    ),
    "run_classifier": (
        define_classification_flags, classification_settings, run_classifier, [*TRAIN],
    ),
    "run_ner": (define_tagging_flags, tagging_settings, run_ner, [*TRAIN]),
    "run_squad": (define_squad_flags, squad_settings, run_squad, [*TRAIN]),
    "run_features": (
        define_feature_flags, feature_settings, run_features,
        ["--input_file=broken", "--output_file=out.npy"],
    ),
    "run_evaluation": (define_evaluation_flags, evaluation_settings, run_evaluation, [*RECORDS]),
}  # fmt: skip
OF_STUDENTS = {
    "run_distillation": (
        define_distillation_flags, distillation_settings, run_pretraining, ["--do_train", *RECORDS],
    ),
    **{name: SCRIPTS[name] for name in ("run_classifier", "run_ner", "run_squad")},
}  # fmt: skip


@pytest.fixture(name="refused")
def context_of_a_refusal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").write_bytes(b"\xff no file of any kind")
    for name in ("model", "sound"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}/bert_config.json").write_text("{")
        (tmp_path / f"{name}/bert_model.ckpt.index").write_text("")
    (tmp_path / "sound/bert_config.json").write_text('{"vocab_size": 40, "hidden_size": 12}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")

    def refused(script, *given):
        define, settings_of, run, always = script
        values = flags.FlagValues()
        define(values)
        values(["program", *always, *given])
        with pytest.raises(UserError, match=r"configuration: .*\.json is not valid JSON"):
            run(settings_of(values))

    return refused


@pytest.mark.parametrize("name", SCRIPTS)
def test_next_to_the_weights(refused, name):
    refused(SCRIPTS[name], "--init_checkpoint=model/bert_model.ckpt", "--vocab_file=vocab.txt")


@pytest.mark.parametrize("name", SCRIPTS)
def test_given_by_the_user(refused, name):
    refused(
        SCRIPTS[name],
        *("--init_checkpoint=sound/bert_model.ckpt", "--vocab_file=vocab.txt"),
        "--bert_config_file=model/bert_config.json",
    )


@pytest.mark.parametrize("name", OF_STUDENTS)
def test_the_teachers(refused, name):
    refused(
        OF_STUDENTS[name],
        "--teacher_checkpoint=model/bert_model.ckpt",
        *("--bert_config_file=sound/bert_config.json", "--vocab_file=vocab.txt"),
    )
