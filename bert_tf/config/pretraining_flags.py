"""The flags of run_pretraining.py and what becomes of them."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.config.flags import (
    Definer,
    at_least_one,
    define_optimization_flags,
    define_run_flags,
    define_runtime_flags,
    optimization_settings,
    require,
    run_settings,
    runtime_settings,
    warn_of_ignored,
)
from bert_tf.config.nvidia_defaults import say_other_pretraining_defaults
from bert_tf.config.settings import DataSettings, PretrainingSettings
from bert_tf.console import warn
from bert_tf.errors import UserError
from bert_tf.files import expand_record_files, require_file


def define_pretraining_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_pretraining.py."""
    define = Definer(values)
    _define_data_flags(define)
    define_run_flags(define)
    define_optimization_flags(
        define, optimizer="adam", num_train_steps=100_000, num_warmup_steps=10_000
    )
    define_runtime_flags(define)


@flag_group("Model and records")
def _define_data_flags(define: Definer) -> None:
    define.string("bert_config_file", None, "JSON file of the model's architecture.")
    define.string(
        "input_file", None, "Training records: files, globs or directories, comma-separated."
    )
    define.string("input_files_dir", None, "NVIDIA's name: directories of training records.")
    define.string(
        "eval_file", None, "Held-out records, as --input_file; the training records if not given."
    )
    define.string("eval_files_dir", None, "NVIDIA's name: directories of held-out records.")
    define.integer("max_seq_length", 128, "Tokens in a sequence; must equal the records'.")
    define.integer(
        "max_predictions_per_seq",
        20,
        "Most masked words in a sequence; must equal the records' where they store masks.",
    )
    define.number(
        "masked_lm_prob", 0.15, "Share of masked tokens, for records masked at training time."
    )
    define.boolean(
        "do_whole_word_mask", False, "Mask whole words, for records masked at training time."
    )
    define.boolean("do_eval", False, "Evaluate on the held-out records, at the end at least.")
    define.integer("eval_batch_size", 8, "Sequences in an evaluation batch of a rank.")
    define.integer(
        "max_eval_steps",
        None,
        "Evaluation batches of a rank, N times as many with N ranks; all held-out records if not "
        "given.",
    )
    define.boolean("nsp", True, "Train the next-sentence head.")
    define.boolean("mlm", True, "Train the masked-word head.")


def pretraining_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns parsed flags into settings; raises UserError for what cannot be meant."""
    warn_of_ignored(values)
    say_other_pretraining_defaults(values)
    require(values, "bert_config_file", "output_dir")
    if not values.nsp and not values.mlm:
        raise UserError("--nsp=false --mlm=false leaves nothing to learn; keep one of them on.")
    config_file = require_file(values.bert_config_file, flag="bert_config_file")
    return PretrainingSettings(
        bert_config_file=config_file,
        next_sentence=values.nsp,
        masked_lm=values.mlm,
        run=run_settings(
            values,
            do_eval="do_eval",
            eval_batch_size="eval_batch_size",
            max_eval_steps="max_eval_steps",
        ),
        data=_data_settings(values),
        optimization=optimization_settings(values),
        runtime=runtime_settings(values),
    )


def _data_settings(values: flags.FlagValues) -> DataSettings:
    train_flag = _given(values, "input_file", "input_files_dir")
    eval_flag = _given(values, "eval_file", "eval_files_dir")
    train, held_out = _files(values, train_flag), _files(values, eval_flag)
    # Of two names the one that goes with what was given.
    theirs = "input_files_dir" if eval_flag == "eval_files_dir" else "input_file"
    if values.do_train and not train:
        raise UserError(f"--do_train needs training records; give --{theirs}.")
    theirs = "eval_files_dir" if train_flag == "input_files_dir" else "eval_file"
    if values.do_eval and not held_out:
        if not train:
            raise UserError(f"--do_eval needs held-out records; give --{theirs}.")
        warn(f"no held-out records were given (--{theirs}): evaluating on the training records.")
        held_out, eval_flag = train, train_flag
    if not 0 < values.masked_lm_prob < 1:
        raise UserError(f"--masked_lm_prob={values.masked_lm_prob} must lie between 0 and 1.")
    for name in ("max_seq_length", "max_predictions_per_seq"):
        at_least_one(values, name)
    return DataSettings(
        train_files=tuple(train),
        eval_files=tuple(held_out),
        train_patterns=values[train_flag].value or "",
        eval_patterns=values[eval_flag].value or "",
        max_seq_length=values.max_seq_length,
        max_predictions_per_seq=values.max_predictions_per_seq,
        masked_lm_prob=values.masked_lm_prob,
        whole_word=values.do_whole_word_mask,
    )


def _given(values: flags.FlagValues, name: str, other_name: str) -> str:
    """Which of two names for one flag was used; the first one where neither was."""
    if values[name].value and values[other_name].value:
        raise UserError(f"--{name} and --{other_name} are two names for one thing; give one.")
    return other_name if values[other_name].value else name


def _files(values: flags.FlagValues, name: str) -> list[Path]:
    patterns = values[name].value
    return expand_record_files(patterns, flag=name) if patterns else []
