"""Command-line flags and what becomes of them. Defined by functions, so that importing is free.

Names and meanings are those of google-research/bert and NVIDIA's scripts wherever they have one.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from absl import flags, logging

from bert_tf.config.settings import (
    DataSettings,
    OptimizationSettings,
    PretrainingSettings,
    RunSettings,
    RuntimeSettings,
)
from bert_tf.errors import UserError
from bert_tf.files import expand_record_files, require_file

# Flags of scripts for other hardware: accepted, so that known command lines go on working.
_IGNORED = ("use_tpu", "tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores",
            "iterations_per_loop")  # fmt: skip

_COUNTS = ("eval_batch_size", "save_checkpoints_steps", "keep_checkpoint_max", "num_threads",
           "display_loss_steps", "max_eval_steps", "eval_every_steps")  # fmt: skip


class _Definer:
    """Defines flags in one set of flags, the program's own or a test's."""

    def __init__(self, values: flags.FlagValues) -> None:
        self.string = functools.partial(flags.DEFINE_string, flag_values=values)
        self.integer = functools.partial(flags.DEFINE_integer, flag_values=values)
        self.number = functools.partial(flags.DEFINE_float, flag_values=values)
        self.boolean = functools.partial(flags.DEFINE_bool, flag_values=values)
        self.choice = functools.partial(flags.DEFINE_enum, flag_values=values)


def define_pretraining_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_pretraining.py."""
    define = _Definer(values)
    _define_data_flags(define)
    _define_run_flags(define)
    _define_optimization_flags(define, optimizer="adam")
    _define_runtime_flags(define)


def _define_data_flags(define: _Definer) -> None:
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
    define.boolean("nsp", True, "Train the next-sentence head.")
    define.boolean("mlm", True, "Train the masked-word head.")


def _define_run_flags(define: _Definer) -> None:
    define.string("output_dir", None, "Where checkpoints, logs and results go.")
    define.string(
        "init_checkpoint",
        None,
        "Weights to start from, a checkpoint or its directory; steps count from 0.",
    )
    define.string(
        "allow_fresh",
        None,
        "Scopes that --init_checkpoint may lack, comma-separated, e.g. cls/seq_relationship.",
    )
    define.boolean("do_train", False, "Train.")
    define.boolean("do_eval", False, "Evaluate on the held-out records, at the end at least.")
    define.integer("eval_batch_size", 8, "Sequences in an evaluation batch of a rank.")
    define.integer(
        "max_eval_steps", None, "Evaluation batches of a rank; all held-out records if not given."
    )
    define.integer("save_checkpoints_steps", 1000, "Steps between checkpoints.")
    define.integer(
        "eval_every_steps",
        None,
        "Steps between evaluations while training (a multiple of --save_checkpoints_steps); only "
        "after training if not given.",
    )
    define.integer("keep_checkpoint_max", 5, "Checkpoints to keep beside the best one.")
    define.integer("display_loss_steps", 10, "Steps between progress lines.")
    define.integer("seed", 12345, "Seed of weights, data order, masking and dropout.")
    define.boolean("report_loss", True, "NVIDIA's name; progress lines always show the loss.")
    define.string("dllog_path", None, "NVIDIA's name; see log.jsonl in --output_dir.")
    define.boolean("use_tpu", False, "Ignored: there is no TPU support.")
    for name in ("tpu_name", "tpu_zone", "gcp_project", "master"):
        define.string(name, None, "Ignored: there is no TPU support.")
    define.integer("num_tpu_cores", 8, "Ignored: there is no TPU support.")
    define.integer("iterations_per_loop", 1000, "Ignored: there is no TPU support.")


def _define_optimization_flags(define: _Definer, *, optimizer: str) -> None:
    """Defines batch, schedule and optimizer flags, which all training scripts share."""
    define.integer(
        "train_batch_size",
        None,
        "Micro batch: sequences of one rank in one forward and backward pass "
        "(32 if neither this nor --global_batch_size is given). "
        "Global batch = micro batch x --num_accumulation_steps x ranks.",
    )
    define.integer("micro_batch_size", None, "The same as --train_batch_size.")
    define.integer("num_accumulation_steps", None, "Micro batches in an update (1).")
    define.integer("global_batch_size", None, "Sequences in an update, over all ranks.")
    define.integer("num_train_steps", 100_000, "Optimizer updates, on one rank.")
    define.integer("num_warmup_steps", 10_000, "Updates of warm-up, on one rank.")
    define.boolean(
        "scale_steps_by_ranks",
        None,
        "Divide --num_train_steps and --num_warmup_steps by the number of ranks (default: on with "
        "--horovod).",
    )
    define.number("learning_rate", 5e-5, "Peak learning rate.")
    define.choice(
        "learning_rate_scaling",
        "none",
        ["none", "linear", "sqrt"],
        "Multiply the learning rate by nothing, the number of ranks or its square root.",
    )
    define.choice(
        "lr_schedule",
        "polynomial",
        ["polynomial", "google"],
        "polynomial: warm-up, then decay from there; google: google-research/bert's overlaid form.",
    )
    define.number("lr_decay_power", 1.0, "Power of the polynomial decay; 1 is linear.")
    define.number("end_learning_rate", 0.0, "Learning rate after the last step.")
    define.choice("optimizer_type", optimizer, ["adam", "lamb"], "Optimizer.")
    define.boolean(
        "adam_bias_correction", False, "Adam with bias correction (google-research/bert: without)."
    )
    define.number("weight_decay", 0.01, "Decoupled weight decay.")
    define.number("clip_norm", 1.0, "Largest global norm of the gradient; 0 is no limit.")
    define.choice(
        "loss_normalization",
        "global_batch",
        ["global_batch", "micro_batch"],
        "What the loss is divided by; micro_batch is google-research/bert's.",
    )
    define.boolean(
        "allreduce_post_accumulation", True, "NVIDIA's name: communicate once an update."
    )
    define.boolean(
        "allreduce_every_micro_batch", False, "Communicate after each micro batch, to compare."
    )


def _define_runtime_flags(define: _Definer) -> None:
    """Defines flags for precision, compiler, ranks and threads, which all scripts share."""
    define.boolean("horovod", False, "Train on all ranks that mpirun or horovodrun started.")
    define.choice(
        "precision",
        "auto",
        ["auto", "fp32", "bf16", "fp16"],
        "Type of dense and attention products; auto takes what the hardware is fast at.",
    )
    define.boolean("manual_fp16", False, "NVIDIA's name of --precision=fp16.")
    define.boolean("amp", False, "TensorFlow's graph rewrite instead of --precision.")
    define.boolean("use_xla", False, "Compile clusters of the graph with XLA.")
    define.number("init_loss_scale", 2.0**16, "First loss scale, with fp16.")
    define.boolean("allow_slow_fp16", False, "Train in fp16 on a CPU all the same.")
    define.integer("num_threads", None, "Threads of a rank; its share of the cores (auto).")
    define.boolean("deterministic", False, "The same bits in every run, at some cost in speed.")
    define.boolean("verbose", False, "Show TensorFlow's own messages.")
    define.boolean("verbose_logging", False, "NVIDIA's name of --verbose.")


def pretraining_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns parsed flags into settings; raises UserError for what cannot be meant."""
    _warn_of_ignored(values)
    _require(values, "bert_config_file", "output_dir")
    if not values.nsp and not values.mlm:
        raise UserError("--nsp=false --mlm=false leaves nothing to learn; keep one of them on.")
    config_file = require_file(values.bert_config_file, flag="bert_config_file")
    return PretrainingSettings(
        bert_config_file=config_file,
        next_sentence=values.nsp,
        masked_lm=values.mlm,
        run=run_settings(values),
        data=_data_settings(values),
        optimization=optimization_settings(values),
        runtime=runtime_settings(values),
    )


def run_settings(values: flags.FlagValues) -> RunSettings:
    """What to do, where to write and how often, from parsed flags."""
    if not values.do_train and not values.do_eval:
        raise UserError("nothing to do: give --do_train, --do_eval or both.")
    for name in _COUNTS:
        _at_least_one(values, name)
    every = values.eval_every_steps
    if every is not None and (not values.do_eval or not values.do_train):
        raise UserError("--eval_every_steps needs --do_train and --do_eval; give them or drop it.")
    if every is not None and every % values.save_checkpoints_steps:
        raise UserError(
            f"--eval_every_steps={every} is no multiple of --save_checkpoints_steps="
            f"{values.save_checkpoints_steps}: what is evaluated is a checkpoint; change one."
        )
    fresh = values.allow_fresh or ""
    same_names = {field.name for field in dataclasses.fields(RunSettings)} - {
        "output_dir",
        "allowed_fresh",
        "flags",
    }
    return RunSettings(
        output_dir=Path(values.output_dir),
        allowed_fresh=tuple(filter(None, fresh.split(","))),
        flags=_flags_of_this_project(values),
        **{name: values[name].value for name in same_names},
    )


def _data_settings(values: flags.FlagValues) -> DataSettings:
    train = _files(values, "input_file", "input_files_dir")
    held_out = _files(values, "eval_file", "eval_files_dir")
    if values.do_train and not train:
        raise UserError("--do_train needs training records; give --input_file.")
    if values.do_eval and not held_out:
        if not train:
            raise UserError("--do_eval needs held-out records; give --eval_file.")
        logging.warning("no --eval_file was given: evaluating on the training records.")
        held_out = train
    if not 0 < values.masked_lm_prob < 1:
        raise UserError(f"--masked_lm_prob={values.masked_lm_prob} must lie between 0 and 1.")
    for name in ("max_seq_length", "max_predictions_per_seq"):
        _at_least_one(values, name)
    return DataSettings(
        train_files=tuple(train),
        eval_files=tuple(held_out),
        max_seq_length=values.max_seq_length,
        max_predictions_per_seq=values.max_predictions_per_seq,
        masked_lm_prob=values.masked_lm_prob,
        whole_word=values.do_whole_word_mask,
    )


def optimization_settings(values: flags.FlagValues) -> OptimizationSettings:
    """Batch, schedule and optimizer settings from parsed flags."""
    micro = _same(values, "train_batch_size", "micro_batch_size")
    if values.clip_norm < 0:
        raise UserError(f"--clip_norm={values.clip_norm} must not be negative; 0 is no limit.")
    if values.weight_decay < 0:
        raise UserError(f"--weight_decay={values.weight_decay} must not be negative.")
    if values.adam_bias_correction and values.optimizer_type == "lamb":
        raise UserError("--adam_bias_correction goes with --optimizer_type=adam: LAMB has its own.")
    scale_steps = values.scale_steps_by_ranks
    return OptimizationSettings(
        micro_batch_size=micro,
        accumulation_steps=values.num_accumulation_steps,
        global_batch_size=values.global_batch_size,
        num_train_steps=values.num_train_steps,
        num_warmup_steps=values.num_warmup_steps,
        learning_rate=values.learning_rate,
        end_learning_rate=values.end_learning_rate,
        decay_power=values.lr_decay_power,
        schedule=values.lr_schedule,
        scale_steps_by_ranks=values.horovod if scale_steps is None else scale_steps,
        learning_rate_scaling=values.learning_rate_scaling,
        optimizer=values.optimizer_type,
        bias_correction=values.adam_bias_correction,
        weight_decay=values.weight_decay,
        clip_norm=values.clip_norm or None,
        loss_normalization=values.loss_normalization,
        allreduce_every_micro_batch=values.allreduce_every_micro_batch
        or not values.allreduce_post_accumulation,
    )


def runtime_settings(values: flags.FlagValues) -> RuntimeSettings:
    """Precision, compiler, ranks and threads from parsed flags."""
    precision = values.precision
    if values.manual_fp16:
        if precision not in ("auto", "fp16"):
            raise UserError(f"--manual_fp16 contradicts --precision={precision}; drop one.")
        precision = "fp16"
    if values.amp:
        if precision not in ("auto", "fp32"):
            raise UserError(
                f"--amp rewrites a float32 graph and contradicts --precision={precision}; drop one."
            )
        precision = "fp32"
    if not 1 <= values.init_loss_scale <= 2.0**32:
        raise UserError(f"--init_loss_scale={values.init_loss_scale} must lie in [1, 2**32].")
    return RuntimeSettings(
        horovod=values.horovod,
        precision=precision,
        amp=values.amp,
        use_xla=values.use_xla,
        initial_loss_scale=values.init_loss_scale,
        allow_slow_fp16=values.allow_slow_fp16,
        num_threads=values.num_threads,
        deterministic=values.deterministic,
        verbose=values.verbose or values.verbose_logging,
    )


def _files(values: flags.FlagValues, *names: str) -> list[Path]:
    given = [name for name in names if values[name].value]
    if len(given) > 1:
        raise UserError(f"--{given[0]} and --{given[1]} are two names for one thing; give one.")
    if not given:
        return []
    return expand_record_files(values[given[0]].value, flag=given[0])


def _same(values: flags.FlagValues, first: str, second: str) -> int | None:
    a, b = values[first].value, values[second].value
    if a is not None and b is not None and a != b:
        raise UserError(f"--{first}={a} and --{second}={b} are two names for one thing; give one.")
    return b if a is None else a


def _require(values: flags.FlagValues, *names: str) -> None:
    for name in names:
        if not values[name].value:
            raise UserError(f"--{name} is required.")


def _at_least_one(values: flags.FlagValues, name: str) -> None:
    value = values[name].value
    if value is not None and value < 1:
        raise UserError(f"--{name}={value} must be at least 1.")


def _warn_of_ignored(values: flags.FlagValues) -> None:
    for name in _IGNORED:
        if values[name].present:
            logging.warning("--%s has no effect here and is ignored.", name)


def _flags_of_this_project(values: flags.FlagValues) -> dict[str, object]:
    """Every flag that this module defined, with its value, for run.json."""
    own = values.flags_by_module_dict().get(__name__, [])
    return {flag.name: flag.value for flag in own}
