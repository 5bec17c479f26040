"""The tables of flags in the documentation say what the parsers do."""

import re

import pytest
from absl import flags

from bert_tf.compat.nvidia_defaults import PRETRAINING, SQUAD, TAGGING
from bert_tf.tasks.classification.flags import define_classification_flags
from bert_tf.tasks.multiple_choice.flags import define_choice_flags
from bert_tf.tasks.pretraining.flags import define_distillation_flags, define_pretraining_flags
from bert_tf.tasks.question_answering.settings import define_squad_flags
from bert_tf.tasks.tagging.flags import define_tagging_flags
from bert_tf.tasks.vectors.settings import define_feature_flags
from tests.helpers.programs import ROOT
from tests.unit.cli.test_flags import defined_by

PAGE = (ROOT / "docs/howto/coming_from_other_scripts.md").read_text(encoding="utf-8")
VALUES = {"int": "3", "float": "3", "bool": "true"}
# By the words before each table: which of our commands takes its flags.
TABLES = [
    *("records", "pretraining", "squad", "classification", "features", "records"),
    *("pretraining", "squad", "tagging", "pretraining", "squad"),
    *("classification", "tagging", "choice", "distillation", "squad"),
]

# What the peers' parsers define, by their sources.
GOOGLE_PRETRAINING = """
    bert_config_file input_file output_dir init_checkpoint max_seq_length
    max_predictions_per_seq do_train do_eval train_batch_size eval_batch_size learning_rate
    num_train_steps num_warmup_steps save_checkpoints_steps iterations_per_loop max_eval_steps
    use_tpu tpu_name tpu_zone gcp_project master num_tpu_cores
"""
GOOGLE_SQUAD = """
    bert_config_file vocab_file output_dir train_file predict_file init_checkpoint do_lower_case
    max_seq_length doc_stride max_query_length do_train do_predict train_batch_size
    predict_batch_size learning_rate num_train_epochs warmup_proportion save_checkpoints_steps
    iterations_per_loop n_best_size max_answer_length use_tpu tpu_name tpu_zone gcp_project
    master num_tpu_cores verbose_logging version_2_with_negative null_score_diff_threshold
"""
GOOGLE_CLASSIFIER = """
    data_dir bert_config_file task_name vocab_file output_dir init_checkpoint do_lower_case
    max_seq_length do_train do_eval do_predict train_batch_size eval_batch_size
    predict_batch_size learning_rate num_train_epochs warmup_proportion save_checkpoints_steps
    iterations_per_loop use_tpu tpu_name tpu_zone gcp_project master num_tpu_cores
"""
GOOGLE_RECORDS = """
    input_file output_file vocab_file do_lower_case do_whole_word_mask max_seq_length
    max_predictions_per_seq random_seed dupe_factor masked_lm_prob short_seq_prob
"""
GOOGLE_FEATURES = """
    input_file output_file layers bert_config_file max_seq_length init_checkpoint vocab_file
    do_lower_case batch_size use_tpu master num_tpu_cores use_one_hot_embeddings
"""
ALBERT_RECORDS = """
    input_file output_file vocab_file spm_model_file do_lower_case do_whole_word_mask ngram
    favor_shorter_ngram max_seq_length max_predictions_per_seq random_seed dupe_factor
    masked_lm_prob short_seq_prob
"""
NVIDIA_PRETRAINING = """
    bert_config_file input_files_dir eval_files_dir output_dir dllog_path init_checkpoint
    optimizer_type max_seq_length max_predictions_per_seq do_train do_eval train_batch_size
    eval_batch_size learning_rate num_train_steps num_warmup_steps save_checkpoints_steps
    display_loss_steps iterations_per_loop max_eval_steps num_accumulation_steps
    allreduce_post_accumulation verbose_logging horovod report_loss manual_fp16 amp use_xla
    init_loss_scale use_fp16
"""
NVIDIA_SQUAD = """
    bert_config_file vocab_file output_dir dllog_path train_file predict_file eval_script
    init_checkpoint do_lower_case max_seq_length doc_stride max_query_length do_train do_predict
    train_batch_size predict_batch_size learning_rate use_trt horovod num_train_epochs
    warmup_proportion save_checkpoints_steps display_loss_steps iterations_per_loop
    num_accumulation_steps n_best_size max_answer_length verbose_logging version_2_with_negative
    null_score_diff_threshold amp use_xla num_eval_iterations export_triton triton_model_name
    triton_model_version triton_server_url triton_model_overwrite triton_max_batch_size
    triton_dyn_batching_delay triton_engine_count use_fp16
"""
NVIDIA_NER = """
    task_name data_dir output_dir bert_config_file vocab_file dllog_path init_checkpoint
    do_lower_case max_seq_length do_train do_eval do_predict train_batch_size eval_batch_size
    predict_batch_size learning_rate num_train_epochs warmup_proportion save_checkpoints_steps
    iterations_per_loop master horovod amp use_xla
"""


def parser_of(kind):
    if kind == "records":
        return defined_by("data_prep.create_pretraining_data")
    values = flags.FlagValues()
    {
        "pretraining": define_pretraining_flags,
        "distillation": define_distillation_flags,
        "squad": define_squad_flags,
        "classification": define_classification_flags,
        "tagging": define_tagging_flags,
        "choice": define_choice_flags,
        "features": define_feature_flags,
    }[kind](values)
    return values


def tables():
    """(heading of the section, kind of parser, rows) of each table of flags, a row its cells."""
    kinds = iter(TABLES)
    for section in PAGE.split("\n## ")[1:]:
        for table in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
            if "| accepted |" not in table.splitlines()[0]:
                continue
            rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
            cells = [[cell.strip() for cell in row] for row in rows]
            yield section.splitlines()[0], next(kinds), cells


def names_in(cell):
    return re.findall(r"`--(\w+)`", cell)


@pytest.mark.parametrize(("peer", "kind", "rows"), tables())
def test_flags_are_accepted_as_the_table_says(peer, kind, rows):
    values = parser_of(kind)
    for what, accepted, *explained in rows:
        for name in names_in(what):
            assert accepted in ("yes", "ignored", "no")
            assert (name in values) == (accepted != "no"), (peer, name)
            if accepted == "ignored":
                assert values[name].help.startswith("Ignored: ")
            if name in values:
                choices = getattr(values[name].parser, "enum_values", None)
                value = choices[0] if choices else VALUES.get(values[name].flag_type(), "text")
                values(["program", f"--{name}={value}"])
                assert values[name].present
        for cell in explained:
            for name in re.findall(r"`--(\w+)", cell):
                everywhere = [parser_of(k) for k in set(TABLES)]
                assert any(name in found for found in everywhere), (peer, name)


@pytest.mark.parametrize(
    ("peer", "defined", "kind"),
    [
        ("google", GOOGLE_RECORDS, "records"),
        ("google", GOOGLE_PRETRAINING, "pretraining"),
        ("google", GOOGLE_SQUAD, "squad"),
        ("google", GOOGLE_CLASSIFIER, "classification"),
        ("google", GOOGLE_FEATURES, "features"),
        ("google", ALBERT_RECORDS, "records"),
        ("NVIDIA", NVIDIA_PRETRAINING, "pretraining"),
        ("NVIDIA", NVIDIA_SQUAD, "squad"),
        ("NVIDIA", NVIDIA_NER, "tagging"),
    ],
)
def test_the_tables_have_every_flag_of_the_peer_and_all_are_accepted(peer, defined, kind):
    sections = ("google",) if peer == "google" else ("google", "NVIDIA")
    listed = {
        name
        for heading, _, rows in tables()
        if heading.startswith(sections)
        for row in rows
        for name in names_in(row[0])
    }
    assert set(defined.split()) <= listed
    assert set(defined.split()) <= set(parser_of(kind))


@pytest.mark.parametrize("script", [PRETRAINING, SQUAD, TAGGING])
def test_the_table_names_what_a_command_of_nvidias_is_told(script):
    section = PAGE.split("\n## NVIDIA")[1].split("\n## ")[0]
    text = section + PAGE.split("\n## google")[1].split("\n## ")[0]
    for default in script.defaults:
        assert f"`--{default.flag}" in text
    for name in ("compatible", "compatible_adam", "compatible_squad"):
        assert f"nvidia_{name}.flags" in section
        assert (ROOT / f"recipes/nvidia_{name}.flags").is_file()


def test_links_lead_somewhere_and_others_lead_here():
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs/howto" / target).exists()
    index = (ROOT / "docs/howto/index.md").read_text(encoding="utf-8")
    assert "coming_from_other_scripts" in index
