"""The flags of run_pretraining.py and run_distillation.py, and the settings made from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags, optional_file, require
from bert_tf.cli.training_flags import (
    checked_runtime_settings,
    define_evaluation_flags,
    define_optimization_flags,
    define_run_flags,
    define_runtime_flags,
    optimization_settings,
    run_settings,
    schedule_settings,
    warn_of_ignored,
)
from bert_tf.config.declared import options_of
from bert_tf.config.masking import MaskingOptions
from bert_tf.config.schedules import most_warmup_steps
from bert_tf.config.settings import OptimizationSettings
from bert_tf.model.config import CONFIG_NAME, BertConfig
from bert_tf.tasks.pretraining.settings import DataSettings, Objective, PretrainingSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import note, warn
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files

if TYPE_CHECKING:
    from bert_tf.config.ramps import LengthRampSettings
    from bert_tf.tasks.distillation.settings import DistillationSettings

# The settings of the network; each has a flag.
_NETWORK_HELP = {
    "vocab_size": "Rows of the word embeddings, overriding the vocabulary's size",
    "hidden_size": "Width of the layers",
    "num_hidden_layers": "Number of layers",
    "num_attention_heads": "Attention heads per layer",
    "intermediate_size": "Width of each layer's feed-forward block",
    "hidden_act": "Activation in the feed-forward block: gelu_tanh, gelu_erf, gelu (the same as "
    "gelu_tanh), relu, tanh or linear",
    "hidden_dropout_prob": "Dropout rate of the embeddings and of each block's output",
    "attention_probs_dropout_prob": "Dropout rate of the attention probabilities",
    "max_position_embeddings": "Maximum sequence length",
    "type_vocab_size": "Number of segment types; 0 for a network that ignores segments",
    "initializer_range": "Standard deviation of the initial weights",
}

_FILES_HELP = {
    "bert_config_file": "JSON file of the model's architecture (default: the one stored with "
    "--init_checkpoint).",
    "vocab_file": "WordPiece vocabulary of the records, to be saved with the model (default: the "
    "one stored with the records or with --init_checkpoint).",
    "spm_model_file": "A SentencePiece model, instead of --vocab_file.",
}
_RECORDS_HELP = {
    "input_file": "Training records: files, globs or directories, comma-separated. With weights, "
    "as in own:0.8,general:0.2, each is that fraction of the sequences, and an epoch is one pass "
    "over the first.",
    "input_files_dir": "NVIDIA's name: directories of training records. Other flags then have the "
    "defaults of NVIDIA's scripts.",
    "eval_file": "Held-out records, in the form of --input_file (default: the training records).",
    "eval_files_dir": "NVIDIA's name: directories of held-out records; see --input_files_dir.",
}

_DEFAULT_WARMUP_PROPORTION = 0.1

_POSITION_EMBEDDINGS = r"^bert/embeddings/position_embeddings$"

NO_MODEL = (
    "no model was given; describe its architecture with --bert_config_file or with sizes such as "
    "--hidden_size, or give --init_checkpoint."
)


def define_pretraining_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_pretraining.py."""
    define = Definer(values)
    _define_model_flags(define)
    _define_data_flags(define)
    define_run_flags(define)
    _define_plan_flags(define)
    define_optimization_flags(
        define, num_train_steps={"default": 100_000}, num_warmup_steps={"default": 10_000}
    )
    _define_ramp_flags(define)
    define_runtime_flags(define)


def define_distillation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_distillation.py: those of pre-training plus the teacher's."""
    from bert_tf.tasks.distillation.settings import define_teacher_flags

    define = Definer(values)
    define_pretraining_flags(values)
    # DistilBERT has no next-sentence head.
    values.set_default("nsp", False)
    define_teacher_flags(define, label_flag="alpha_mlm")
    define.boolean("freeze_pos_embs", False, "Keep the student's position embeddings as they are.")


@flag_group("Model")
def _define_model_flags(define: Definer) -> None:
    for name, help_text in _FILES_HELP.items():
        define.string(name, None, help_text)
    define.per_host(*_FILES_HELP)
    define.boolean(
        "do_lower_case",
        None,
        "Whether the records' text was lower-cased (default: as their manifest or the model "
        "states).",
    )
    define.boolean(
        "strip_accents", None, "Whether it lost its accents (default: as --do_lower_case)."
    )
    default = "(default: the configuration file's, or BERT-base's without one)"
    kinds = {"int": define.integer, "float": define.number, "str": define.string}
    for field in dataclasses.fields(BertConfig):
        kinds[str(field.type)](field.name, None, f"{_NETWORK_HELP[field.name]} {default}.")


@flag_group("Run")
def _define_plan_flags(define: Definer) -> None:
    define.string(
        "phases",
        None,
        "Flag files, comma-separated: train in phases, one after another, each in a directory "
        "phase_N of --output_dir. A file's flags override the command's. Each phase starts from "
        "the previous one's weights or, with --resume_from=previous in its file, also from its "
        "optimizer state.",
    )
    define.per_host("phases")


@flag_group("Batch, schedule and optimizer")
def _define_ramp_flags(define: Definer) -> None:
    define.string(
        "length_ramp",
        None,
        "Truncate records at first: 64:0,96:2000,128:4000 grows to --max_seq_length, as does "
        "64+8:4000; updates are counted for one rank.",
    )


@flag_group("Records")
def _define_data_flags(define: Definer) -> None:
    for name, help_text in _RECORDS_HELP.items():
        define.string(name, None, help_text)
    define.per_host(*_RECORDS_HELP)
    define.settings(DataSettings)
    _define_mask_flags(define)
    define_evaluation_flags(define)
    define.settings(PretrainingSettings)


@flag_group("Masks, for records masked at training time")
def _define_mask_flags(define: Definer) -> None:
    most = options_of(MaskingOptions)["max_predictions_per_seq"].help_text
    help_text = f"{most[:-1]}; must match records that store masks."
    define.settings(MaskingOptions, max_predictions_per_seq={"help_text": help_text})


def pretraining_settings(
    values: flags.FlagValues,
    *,
    distillation: DistillationSettings | None = None,
    objective: Objective | None = None,
    rate_factors: tuple[tuple[str, float], ...] = (),
) -> PretrainingSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags.

    With a teacher, the architecture may be derived from the teacher's. ``objective`` and
    ``rate_factors`` are as in the settings.
    """
    warn_of_ignored(values)
    is_nvidias = values["input_files_dir"].present or values["eval_files_dir"].present
    if is_nvidias and distillation is None:  # NVIDIA has no script for distillation
        from bert_tf.compat.nvidia_defaults import PRETRAINING, adopt_and_say

        adopt_and_say(values, PRETRAINING)
    require(values, "output_dir")
    network = {f.name: values[f.name].value for f in dataclasses.fields(BertConfig)}
    network = {name: value for name, value in network.items() if value is not None}
    if not (values.bert_config_file or network or distillation or _starts_from_weights(values)):
        raise UserError(NO_MODEL)
    run = run_settings(values, does=["do_train", "do_eval"])
    data = _data_settings(values)
    optimization = pretraining_optimization(values, rate_factors=rate_factors)
    settings = from_flags(
        PretrainingSettings,
        values,
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        network=network,
        run=run,
        data=data,
        optimization=optimization,
        runtime=checked_runtime_settings(values, optimization),
        distillation=distillation,
        objective=objective,
    )
    if values.do_train:
        optimization.check_lengths()
        _say_shorter_warmup(values, optimization)
    return settings


def distillation_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns the parsed flags of run_distillation.py into settings; raises UserError."""
    from bert_tf.tasks.distillation.settings import DistillationSettings

    require(values, "teacher_checkpoint")
    if not values.mlm:
        raise UserError("--mlm=false leaves no words to compare with the teacher's; drop it.")
    distillation = from_flags(DistillationSettings, values)
    rate_factors: tuple[tuple[str, float], ...] = ()
    if values.freeze_pos_embs:
        rate_factors = ((_POSITION_EMBEDDINGS, 0.0),)
        if distillation.student_layers == ():
            raise UserError(
                "--freeze_pos_embs would keep the random values that --student_layers=none starts "
                "from; drop one of them."
            )
    return pretraining_settings(values, distillation=distillation, rate_factors=rate_factors)


def pretraining_optimization(values: flags.FlagValues, **made: Any) -> OptimizationSettings:
    """The settings of batch, schedule, optimizer and length; raises UserError for invalid flags.

    ``made`` is as in ``from_flags``.
    """
    for name, in_steps in (
        ("num_train_epochs", "num_train_steps"),
        ("warmup_proportion", "num_warmup_steps"),
    ):
        if values[name].value is not None and values[in_steps].present:
            raise UserError(f"--{name} and --{in_steps} set the same length; give one.")
    made["length_ramp"] = _length_ramp(values)
    if values.num_train_epochs is not None:
        made["num_train_steps"] = None
    proportion = _warmup_proportion(values)
    if proportion is not None:
        made.update(warmup_proportion=proportion, num_warmup_steps=None)
    return optimization_settings(values, **made)


def _warmup_proportion(values: flags.FlagValues) -> float | None:
    """The warm-up as a fraction of the steps: with epochs, or if the default is too long."""
    proportion = values.warmup_proportion
    if proportion is not None or values["num_warmup_steps"].present:
        return proportion
    if values.num_train_epochs is None:
        most = most_warmup_steps(schedule_settings(values), values.num_train_steps)
        if values.num_warmup_steps <= most:
            return None
    return _DEFAULT_WARMUP_PROPORTION


def _say_shorter_warmup(values: flags.FlagValues, optimization: OptimizationSettings) -> None:
    proportion = optimization.steps.warmup_proportion
    is_default = not (values["num_warmup_steps"].present or values["warmup_proportion"].present)
    num_train_steps = optimization.steps.num_train_steps
    if is_default and proportion is not None and num_train_steps is not None:
        note(
            f"the warm-up is {proportion:.0%} of the {num_train_steps:,} steps, since "
            f"the default of {values.num_warmup_steps:,} does not fit"
        )


def _length_ramp(values: flags.FlagValues) -> LengthRampSettings | None:
    if not values.length_ramp:
        return None
    from bert_tf.config.ramps import parse_length_ramp

    return parse_length_ramp(
        values.length_ramp, flag="length_ramp", max_seq_length=values.max_seq_length
    )


def _starts_from_weights(values: flags.FlagValues) -> bool:
    if values.horovod:
        return True  # rank 0 alone needs access to the files, and reports what is missing
    given = values.init_checkpoint or values.resume_from
    return bool(given) or (Path(values.output_dir) / CONFIG_NAME).is_file()


def _data_settings(values: flags.FlagValues) -> DataSettings:
    train_flag = _used_name(values, "input_file", "input_files_dir")
    eval_flag = _used_name(values, "eval_file", "eval_files_dir")
    train, held_out = values[train_flag].value, values[eval_flag].value
    # Suggest the spelling, ours or NVIDIA's, in which other flags were given.
    missing = "input_files_dir" if eval_flag == "eval_files_dir" else "input_file"
    if values.do_train and not train:
        raise UserError(f"--do_train needs training records; give --{missing}.")
    missing = "eval_files_dir" if train_flag == "input_files_dir" else "eval_file"
    if values.do_eval and not held_out:
        if not train:
            raise UserError(f"--do_eval needs held-out records; give --{missing}.")
        warn(f"no held-out records were given (--{missing}): evaluating on the training records.")
        eval_flag = train_flag
    return from_flags(
        DataSettings,
        values,
        train_files=_files(values, train_flag),
        eval_files=_files(values, eval_flag),
        train_patterns=values[train_flag].value or "",
        eval_patterns=values[eval_flag].value or "",
    )


def _used_name(values: flags.FlagValues, name: str, other_name: str) -> str:
    """Which of the two names of a setting was used; the first if neither was."""
    if values[name].value and values[other_name].value:
        raise UserError(f"--{name} and --{other_name} are two names of one setting; give one.")
    return other_name if values[other_name].value else name


def _files(values: flags.FlagValues, name: str) -> tuple[Path, ...]:
    """The record files that a flag names; none yet if --before_training makes them."""
    patterns = values[name].value
    if not patterns or values.before_training:
        return ()
    if ":" in patterns and name == "input_file":
        from bert_tf.input.mixture import files_of_sources

        return tuple(files_of_sources(patterns, flag=name))
    return tuple(expand_record_files(patterns, flag=name))
