"""The flags of run_evaluation.py and the settings made from them."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, command_line, from_flags, optional_file, require
from bert_tf.cli.training_flags import define_computing_flags
from bert_tf.config.declared import options_of
from bert_tf.config.masking import MaskingOptions
from bert_tf.config.settings import RunSettings, RuntimeSettings, StartSettings
from bert_tf.finetune.flags import define_model_flags
from bert_tf.tasks.scoring.settings import METRICS, ScoringSettings, TextSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files


def define_evaluation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_evaluation.py."""
    define = Definer(values)
    _define_evaluation_flags(define)
    _define_text_flags(define)
    define_model_flags(define)
    define_computing_flags(define)


@flag_group("Evaluation")
def _define_evaluation_flags(define: Definer) -> None:
    model = (
        "The model to evaluate: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's, or its directory."
    )
    directory = "Directory for results, and for scores until all are there."
    define.settings(
        StartSettings,
        without=["resume_from", "reset_step", "allowed_fresh"],
        init_checkpoint={"help_text": model},
    )
    define.settings(
        RunSettings,
        without=[
            "do_train", "dry_run", "save_checkpoints_steps", "keep_checkpoint_max",
        ],
        output_dir={"help_text": directory},
        seed={"help_text": "Seed of the masks and of --sample."},
    )  # fmt: skip
    define.settings(ScoringSettings, metrics={"default": ",".join(METRICS)})
    fraction = "Fraction of a sequence's tokens, without [CLS] and [SEP], that a draw chooses."
    define.settings(
        MaskingOptions,
        without=options_of(MaskingOptions).keys() - {"masked_lm_prob"},
        masked_lm_prob={"help_text": fraction},
    )


@flag_group("Texts")
def _define_text_flags(define: Definer) -> None:
    define.string(
        "input_file",
        None,
        "Texts: UTF-8 text files, tables (with --text_column) or pre-training records "
        "(*.tfrecord); files, globs and directories, comma-separated.",
    )
    define.per_host("input_file")
    define.settings(TextSettings)


def evaluation_settings(values: flags.FlagValues) -> ScoringSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    require(values, "output_dir", "init_checkpoint", "input_file")
    files = tuple(expand_record_files(values.input_file, flag="input_file"))
    return from_flags(
        ScoringSettings,
        values,
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        input_files=files,
        has_records=_has_records(values, files),
        run=from_flags(
            RunSettings,
            values,
            do_eval=True,
            # For measuring what is fastest, in the shape of a full batch.
            eval_batch_size=max(1, values.batch_tokens // max(1, values.max_seq_length)),
            command=command_line(values),
        ),
        runtime=from_flags(RuntimeSettings, values),
    )


def _has_records(values: flags.FlagValues, files: tuple[Path, ...]) -> bool:
    records = [path for path in files if ".tfrecord" in path.name]
    if not records:
        return False
    if len(records) < len(files):
        other = next(path for path in files if path not in records)
        raise UserError(
            f"--input_file: {records[0]} holds records and {other} does not; give one kind."
        )
    for name in ("text_column", "wikitext"):
        if values[name].value:
            raise UserError(f"--{name} is for texts, but {records[0]} holds records; drop one.")
    return True
