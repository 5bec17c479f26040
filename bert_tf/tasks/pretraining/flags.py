"""The flags of run_pretraining.py and the settings made from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import (
    Definer,
    at_least_one,
    check_known_lengths,
    checked_runtime_settings,
    define_optimization_flags,
    define_run_flags,
    define_runtime_flags,
    optimization_settings,
    optional_file,
    require,
    run_settings,
    warn_of_ignored,
)
from bert_tf.compat.nvidia_defaults import PRETRAINING, adopt_and_say
from bert_tf.config.ramps import RampSettings, parse_length_ramp, parse_ramp
from bert_tf.config.schedules import most_warmup_steps
from bert_tf.config.settings import (
    DataSettings,
    OptimizationSettings,
    PretrainingSettings,
    RunSettings,
)
from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import note, warn
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files

# The network's settings, each of which has a flag.
_NETWORK_HELP = {
    "vocab_size": "Rows of the word embeddings, overriding the vocabulary's size",
    "hidden_size": "Width of the layers",
    "num_hidden_layers": "Number of layers",
    "num_attention_heads": "Attention heads per layer",
    "intermediate_size": "Width of each layer's feed-forward block",
    "hidden_act": "Activation of that block: gelu_tanh, gelu_erf, gelu (the same as gelu_tanh), "
    "relu, tanh or linear",
    "hidden_dropout_prob": "Dropout rate of the embeddings and of each block's output",
    "attention_probs_dropout_prob": "Dropout rate of the attention probabilities",
    "max_position_embeddings": "Maximum sequence length",
    "type_vocab_size": "Number of segment types; 0 for a network that ignores segments",
    "initializer_range": "Standard deviation of initial weights",
}

_DEFAULT_WARMUP_PROPORTION = 0.1

# Paths of files may differ between hosts.
_FILES = (
    "input_file", "input_files_dir", "eval_file", "eval_files_dir", "phases",
    "local_cache_dir", "local_cache_gb", "before_training",
)  # fmt: skip

NO_MODEL = (
    "no model was given; describe its architecture with --bert_config_file or with sizes such as "
    "--hidden_size, or give --init_checkpoint."
)


def define_pretraining_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_pretraining.py."""
    define = Definer(values)
    _define_model_flags(define)
    _define_data_flags(define)
    _define_host_flags(define)
    define_run_flags(define)
    _define_plan_flags(define)
    define_optimization_flags(
        define, optimizer="adam", num_train_steps=100_000, num_warmup_steps=10_000
    )
    _define_length_flags(define)
    _define_ramp_flags(define)
    define_runtime_flags(define)


@flag_group("Model")
def _define_model_flags(define: Definer) -> None:
    define.string(
        "bert_config_file",
        None,
        "JSON file of the model's architecture (default: the one stored with --init_checkpoint).",
    )
    define.string(
        "vocab_file",
        None,
        "WordPiece vocabulary of the records, to be saved with the model (default: the one stored "
        "with the records or with --init_checkpoint).",
    )
    define.string("spm_model_file", None, "A SentencePiece model, instead of --vocab_file.")
    define.boolean(
        "do_lower_case",
        None,
        "Whether the records' text was lower-cased (default: as stated by their manifest or the "
        "model).",
    )
    default = "(default: the configuration file's, or BERT-base's without one)"
    kinds = {"int": define.integer, "float": define.number, "str": define.string}
    for field in dataclasses.fields(BertConfig):
        kinds[field.type](field.name, None, f"{_NETWORK_HELP[field.name]} {default}.")


@flag_group("Run")
def _define_plan_flags(define: Definer) -> None:
    define.string(
        "phases",
        None,
        "Flag files, comma-separated: train in phases, one after another, each in a directory "
        "phase_N of --output_dir. The flags of a file override the command's. A phase starts from "
        "the weights of the one before, or with --resume_from=previous in its file also from the "
        "optimizer's state.",
    )


@flag_group("Batch, schedule and optimizer")
def _define_length_flags(define: Definer) -> None:
    define.number(
        "num_train_epochs",
        None,
        "Passes over the training records, on all ranks together, instead of --num_train_steps.",
    )
    define.number(
        "warmup_proportion",
        None,
        "Share of the steps used for warm-up, instead of --num_warmup_steps (0.1 with "
        "--num_train_epochs, and for runs that the default of --num_warmup_steps does not fit).",
    )


@flag_group("Batch, schedule and optimizer")
def _define_ramp_flags(define: Definer) -> None:
    define.string(
        "batch_ramp",
        None,
        "Let the global batch grow: 64:0,128:2000,256:5000 is 64 sequences at first, 128 from "
        "update 2000 and 256, the full global batch, from update 5000 on; 64+64:6000 is 64 more "
        "each time until update 6000, and 64+64:900000seq the same over 900000 sequences. Updates "
        "are those of one rank; the micro batch stays the same.",
    )
    define.string(
        "length_ramp",
        None,
        "Cut records to fewer positions at first: 64:0,96:2000,128:4000 grows up to "
        "--max_seq_length, as does 64+8:4000; updates are those of one rank.",
    )


@flag_group("Records")
def _define_data_flags(define: Definer) -> None:
    define.string(
        "input_file", None, "Training records: files, globs or directories, comma-separated."
    )
    define.string(
        "input_files_dir",
        None,
        "NVIDIA's name: directories of training records. Other flags then have the defaults of "
        "NVIDIA's scripts.",
    )
    define.string(
        "eval_file",
        None,
        "Held-out records, in the form of --input_file (default: the training records).",
    )
    define.string(
        "eval_files_dir",
        None,
        "NVIDIA's name: directories of held-out records; see --input_files_dir.",
    )
    define.integer("max_seq_length", 128, "Tokens per sequence; must match the records.")
    define.integer(
        "max_predictions_per_seq",
        20,
        "Maximum number of masked tokens per sequence; must match records that store masks.",
    )
    define.number(
        "masked_lm_prob", 0.15, "Share of tokens to mask, for records masked at training time."
    )
    define.number(
        "final_masked_lm_prob",
        None,
        "Share of tokens to mask in the last update; it goes there from --masked_lm_prob in a "
        "straight line (Ankner et al. 2024). For records masked at training time.",
    )
    define.boolean(
        "do_whole_word_mask", False, "Mask whole words, for records masked at training time."
    )
    define.integer(
        "ngram",
        DataSettings.ngram,
        "Mask up to this many consecutive words together, or tokens without --do_whole_word_mask; "
        "for records masked at training time.",
    )
    define.boolean(
        "favor_shorter_ngram",
        DataSettings.favor_shorter_ngram,
        "Masked n-grams have shares of 1/n; false: the longest have the largest share.",
    )
    define.boolean(
        "length_buckets",
        DataSettings.length_buckets,
        "Batch records of similar length and cut the padding behind the longest. Lengths are "
        "counted once, and kept in FILE.lengths.",
    )
    define.boolean(
        "do_eval", False, "Evaluate on the held-out records, at least once, after training."
    )
    define.integer(
        "eval_batch_size",
        RunSettings.eval_batch_size,
        "Sequences per evaluation batch and rank.",
    )
    define.integer(
        "max_eval_steps",
        None,
        "Evaluation batches per rank, N times as many with N ranks (default: all held-out "
        "records).",
    )
    define.boolean(
        "nsp", True, "Train the next-sentence head, on next sentences or the sentence order."
    )
    define.boolean("mlm", True, "Train the masked-LM head.")


@flag_group("Records")
def _define_host_flags(define: Definer) -> None:
    define.string(
        "local_cache_dir",
        None,
        "Directory on each host's own disk, to which the records are copied before training; "
        "copies of earlier runs that fit are used again.",
    )
    define.number(
        "local_cache_gb",
        None,
        "Most that --local_cache_dir may hold, in GB (default: what the disk has).",
    )
    define.string(
        "before_training",
        None,
        "Shell command to run once on each host before the records are opened, for example to "
        "mount or fetch them; if it fails, all ranks end.",
    )


def pretraining_settings(
    values: flags.FlagValues, *, has_teacher: bool = False
) -> PretrainingSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags.

    The architecture of a run that ``has_teacher`` may follow from the teacher's.
    """
    warn_of_ignored(values)
    if not has_teacher:  # NVIDIA has no script for distillation
        adopt_and_say(values, PRETRAINING)
    require(values, "output_dir")
    network = {f.name: values[f.name].value for f in dataclasses.fields(BertConfig)}
    network = {name: value for name, value in network.items() if value is not None}
    is_known = values.bert_config_file or network or has_teacher or _starts_from_weights(values)
    if not is_known:
        raise UserError(NO_MODEL)
    if not values.nsp and not values.mlm:
        raise UserError("--nsp=false --mlm=false leaves nothing to train; turn one of them on.")
    optimization = pretraining_optimization(values)
    settings = PretrainingSettings(
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        network=network,
        before_training=values.before_training or None,
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
        runtime=checked_runtime_settings(values, optimization),
    )
    if values.do_train:
        check_known_lengths(optimization)
        _say_shorter_warmup(values, optimization)
    return settings


def pretraining_optimization(values: flags.FlagValues) -> OptimizationSettings:
    """Batch, schedule, optimizer and length; raises UserError for invalid flags."""
    epochs, proportion = _length(values)
    given = optimization_settings(values)
    is_free = proportion is None and not values["num_warmup_steps"].present
    if is_free and (epochs or given.num_warmup_steps > most_warmup_steps(given)):
        proportion = _DEFAULT_WARMUP_PROPORTION
    return dataclasses.replace(
        given,
        num_train_steps=given.num_train_steps if epochs is None else None,
        num_warmup_steps=given.num_warmup_steps if proportion is None else None,
        num_train_epochs=epochs,
        warmup_proportion=proportion,
        **_ramps(values),
    )


def _say_shorter_warmup(values: flags.FlagValues, optimization: OptimizationSettings) -> None:
    proportion = optimization.warmup_proportion
    is_default = not (values["num_warmup_steps"].present or values["warmup_proportion"].present)
    if is_default and proportion is not None and optimization.num_train_steps is not None:
        note(
            f"the warm-up is {proportion:.0%} of the {optimization.num_train_steps:,} steps, since "
            f"the default of {values.num_warmup_steps:,} does not fit"
        )


def _ramps(values: flags.FlagValues) -> dict[str, RampSettings | None]:
    batch, length = values.batch_ramp, values.length_ramp
    return {
        "batch_ramp": parse_ramp(batch, flag="batch_ramp") if batch else None,
        "length_ramp": parse_length_ramp(
            length, flag="length_ramp", max_seq_length=values.max_seq_length
        )
        if length
        else None,
    }


def _starts_from_weights(values: flags.FlagValues) -> bool:
    if values.horovod:
        return True  # only rank 0 needs to see the files, and reports what is missing
    given = values.init_checkpoint or values.resume_from
    return bool(given) or (Path(values.output_dir) / CONFIG_NAME).is_file()


def _length(values: flags.FlagValues) -> tuple[float | None, float | None]:
    """Epochs and warm-up proportion; None for a length that is given in steps."""
    epochs, proportion = values.num_train_epochs, values.warmup_proportion
    for name, in_steps in (
        ("num_train_epochs", "num_train_steps"),
        ("warmup_proportion", "num_warmup_steps"),
    ):
        if values[name].value is not None and values[in_steps].present:
            raise UserError(f"--{name} and --{in_steps} set the same length; give one.")
    if epochs is not None and epochs <= 0:
        raise UserError(f"--num_train_epochs={epochs} must be greater than 0.")
    if proportion is not None and not 0 <= proportion <= 1:
        raise UserError(f"--warmup_proportion={proportion} must be in [0, 1].")
    return epochs, proportion


def _data_settings(values: flags.FlagValues) -> DataSettings:
    train_flag = _used_name(values, "input_file", "input_files_dir")
    eval_flag = _used_name(values, "eval_file", "eval_files_dir")
    train, held_out = values[train_flag].value, values[eval_flag].value
    # Of a flag's two names, suggest the one in the style of the flags that were given.
    missing = "input_files_dir" if eval_flag == "eval_files_dir" else "input_file"
    if values.do_train and not train:
        raise UserError(f"--do_train needs training records; give --{missing}.")
    missing = "eval_files_dir" if train_flag == "input_files_dir" else "eval_file"
    if values.do_eval and not held_out:
        if not train:
            raise UserError(f"--do_eval needs held-out records; give --{missing}.")
        warn(f"no held-out records were given (--{missing}): evaluating on the training records.")
        eval_flag = train_flag
    for name in ("masked_lm_prob", "final_masked_lm_prob"):
        share = values[name].value
        if share is not None and not 0 < share < 1:
            raise UserError(f"--{name}={share} must be between 0 and 1.")
    for name in ("max_seq_length", "max_predictions_per_seq", "ngram"):
        at_least_one(values, name)
    cache, most = values.local_cache_dir, values.local_cache_gb
    if most is not None and (most <= 0 or not cache):
        raise UserError(
            f"--local_cache_gb={most:g} must be greater than 0, and needs --local_cache_dir."
        )
    for name in ("batch_ramp", "length_ramp"):
        if values.length_buckets and values[name].value:
            raise UserError(
                f"--length_buckets makes batches of one size, of whole records; it cannot be "
                f"combined with --{name}, drop one of them."
            )
    return DataSettings(
        train_files=_files(values, train_flag),
        eval_files=_files(values, eval_flag),
        local_cache_dir=Path(cache) if cache else None,
        local_cache_gb=most,
        train_patterns=values[train_flag].value or "",
        eval_patterns=values[eval_flag].value or "",
        max_seq_length=values.max_seq_length,
        max_predictions_per_seq=values.max_predictions_per_seq,
        masked_lm_prob=values.masked_lm_prob,
        final_masked_lm_prob=values.final_masked_lm_prob,
        whole_word=values.do_whole_word_mask,
        ngram=values.ngram,
        favor_shorter_ngram=values.favor_shorter_ngram,
        length_buckets=values.length_buckets,
    )


def _used_name(values: flags.FlagValues, name: str, other_name: str) -> str:
    """Which of two names of a setting was used; the first one if neither was."""
    if values[name].value and values[other_name].value:
        raise UserError(f"--{name} and --{other_name} are two names of one setting; give one.")
    return other_name if values[other_name].value else name


def _files(values: flags.FlagValues, name: str) -> tuple[Path, ...]:
    """The record files of a flag; none yet if a command makes them."""
    patterns = values[name].value
    if not patterns or values.before_training:
        return ()
    return tuple(expand_record_files(patterns, flag=name))
