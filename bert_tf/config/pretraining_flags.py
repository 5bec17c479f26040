"""The flags of run_pretraining.py and what becomes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.config.bert_config import CONFIG_NAME, BertConfig
from bert_tf.config.flags import (
    Definer,
    at_least_one,
    define_optimization_flags,
    define_run_flags,
    define_runtime_flags,
    optimization_settings,
    optional_file,
    require,
    run_settings,
    runtime_settings,
    warn_of_ignored,
)
from bert_tf.config.nvidia_defaults import say_other_pretraining_defaults
from bert_tf.config.settings import DataSettings, PretrainingSettings
from bert_tf.console import warn
from bert_tf.errors import UserError
from bert_tf.files import expand_record_files
from bert_tf.text.tokenizer_files import TokenizerFiles

# A network's settings, each a flag of its own.
_NETWORK_HELP = {
    "vocab_size": "Rows of the word embeddings (by default the vocabulary's size)",
    "hidden_size": "Width of the layers",
    "num_hidden_layers": "Layers",
    "num_attention_heads": "Attention heads of a layer",
    "intermediate_size": "Width of the feed-forward part of a layer",
    "hidden_act": "Activation there: gelu_tanh, gelu_erf, gelu (gelu_tanh), relu, tanh or linear",
    "hidden_dropout_prob": "Dropout rate of embeddings and of what a layer adds",
    "attention_probs_dropout_prob": "Dropout rate of attention probabilities",
    "max_position_embeddings": "Most positions of a sequence",
    "type_vocab_size": "Segments of a sequence",
    "initializer_range": "Standard deviation of initial weights",
}

_DEFAULT_WARMUP_PROPORTION = 0.1

# Where files lie may differ from host to host.
_FILES = ("input_file", "input_files_dir", "eval_file", "eval_files_dir")

NO_MODEL = (
    "no model was given: name its architecture by --bert_config_file or by sizes such as "
    "--hidden_size, or give --init_checkpoint."
)


def define_pretraining_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_pretraining.py."""
    define = Definer(values)
    _define_model_flags(define)
    _define_data_flags(define)
    define_run_flags(define)
    define_optimization_flags(
        define, optimizer="adam", num_train_steps=100_000, num_warmup_steps=10_000
    )
    _define_length_flags(define)
    define_runtime_flags(define)


@flag_group("Model")
def _define_model_flags(define: Definer) -> None:
    define.string(
        "bert_config_file",
        None,
        "JSON file of the model's architecture; what stands beside --init_checkpoint if not given.",
    )
    define.string(
        "vocab_file",
        None,
        "WordPiece vocabulary of the records, for the model's directory; what lies with the "
        "records or beside --init_checkpoint if not given.",
    )
    define.string("spm_model_file", None, "Instead of --vocab_file: a SentencePiece model.")
    define.boolean(
        "do_lower_case",
        None,
        "Whether the records' text was lower-cased; as their manifest or the model says if not "
        "given.",
    )
    instead = "instead of the configuration file's, or of BERT-base's where there is none"
    kinds = {"int": define.integer, "float": define.number, "str": define.string}
    for field in dataclasses.fields(BertConfig):
        kinds[field.type](field.name, None, f"{_NETWORK_HELP[field.name]}, {instead}.")


@flag_group("Batch, schedule and optimizer")
def _define_length_flags(define: Definer) -> None:
    define.number(
        "num_train_epochs",
        None,
        "Instead of --num_train_steps: passes over the training records, on all ranks together.",
    )
    define.number(
        "warmup_proportion",
        None,
        "Instead of --num_warmup_steps: share of the steps with a rising learning rate "
        "(0.1 with --num_train_epochs).",
    )


@flag_group("Records")
def _define_data_flags(define: Definer) -> None:
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
    require(values, "output_dir")
    network = {f.name: values[f.name].value for f in dataclasses.fields(BertConfig)}
    network = {name: value for name, value in network.items() if value is not None}
    if not (values.bert_config_file or network or _starts_from_weights(values)):
        raise UserError(NO_MODEL)
    if not values.nsp and not values.mlm:
        raise UserError("--nsp=false --mlm=false leaves nothing to learn; keep one of them on.")
    epochs, proportion = _length(values)
    optimization = optimization_settings(values)
    if epochs is not None:
        optimization = dataclasses.replace(optimization, num_train_steps=None)
    if proportion is not None:
        optimization = dataclasses.replace(optimization, num_warmup_steps=None)
    return PretrainingSettings(
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        network=network,
        num_train_epochs=epochs,
        warmup_proportion=proportion,
        next_sentence=values.nsp,
        masked_lm=values.mlm,
        run=run_settings(
            values,
            do_eval="do_eval",
            eval_batch_size="eval_batch_size",
            max_eval_steps="max_eval_steps",
            host_flags=_FILES,
        ),
        data=_data_settings(values),
        optimization=optimization,
        runtime=runtime_settings(values),
    )


def _starts_from_weights(values: flags.FlagValues) -> bool:
    if values.horovod:
        return True  # rank 0 alone needs to see the files, and says what is missing
    return bool(values.init_checkpoint) or (Path(values.output_dir) / CONFIG_NAME).is_file()


def _length(values: flags.FlagValues) -> tuple[float | None, float | None]:
    """Epochs and the share of the warm-up; None for what is given in steps."""
    epochs, proportion = values.num_train_epochs, values.warmup_proportion
    for name, in_steps in (
        ("num_train_epochs", "num_train_steps"),
        ("warmup_proportion", "num_warmup_steps"),
    ):
        if values[name].value is not None and values[in_steps].present:
            raise UserError(f"--{name} and --{in_steps} are two measures of one thing; give one.")
    if epochs is not None and epochs <= 0:
        raise UserError(f"--num_train_epochs={epochs} must be more than 0.")
    if proportion is not None and not 0 <= proportion <= 1:
        raise UserError(f"--warmup_proportion={proportion} must lie in [0, 1].")
    if epochs is not None and proportion is None and not values["num_warmup_steps"].present:
        proportion = _DEFAULT_WARMUP_PROPORTION
    return epochs, proportion


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
