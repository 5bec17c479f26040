"""The flags that the fine-tuning scripts share, and the settings made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

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
)
from bert_tf.config.settings import (
    DistillationSettings,
    FinetuningSettings,
    OptimizationSettings,
    RunSettings,
)
from bert_tf.tasks.distillation.flags import TEACHER_FILES, define_teacher_flags
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

_Settings = TypeVar("_Settings", bound=FinetuningSettings)

# Those of Hugging Face's run_squad_w_distillation.py; it compares no hidden states.
_TEACHER_DEFAULTS = DistillationSettings("", alpha_ce=0.5, alpha_label=0.5, alpha_cos=0.0)


def define_finetuning_flags(
    define: Definer,
    define_task_flags: Callable[[Definer], None],
    *,
    examples: str,
    label_flag: str,
) -> None:
    """Defines the flags of a fine-tuning script.

    ``define_task_flags`` defines those of its task; ``examples`` is the word for a record's
    contents in help texts, ``label_flag`` as for ``define_teacher_flags``.
    """
    define_model_flags(define)
    define_task_flags(define)
    _define_length_flags(define, examples)
    define_teacher_flags(define, _TEACHER_DEFAULTS, label_flag=label_flag)
    define_run_flags(define)
    define_optimization_flags(define, optimizer="adam", num_train_steps=None, num_warmup_steps=None)
    define_runtime_flags(define)


@flag_group("Model")
def define_model_flags(define: Definer) -> None:
    """Defines the network and its vocabulary, for weights that are not stored with them."""
    default = " (default: the one stored with --init_checkpoint)."
    define.string("bert_config_file", None, f"JSON file of the model's architecture{default}")
    define.string("vocab_file", None, f"WordPiece vocabulary{default}")
    define.string("spm_model_file", None, f"SentencePiece model{default}")
    define.boolean("do_lower_case", None, "Lower-case the text (default: as suits the vocabulary).")


@flag_group("Fine-tuning")
def _define_length_flags(define: Definer, examples: str) -> None:
    """Defines training length, batches, seeds and the directory of the records."""
    define.number(
        "num_train_epochs", 3.0, f"Passes over the training {examples}, on all ranks together."
    )
    define.number("warmup_proportion", 0.1, "Share of the steps used for warm-up.")
    define.boolean(
        "length_buckets",
        True,
        "Batch sequences of similar length; off keeps random order and pads to --max_seq_length.",
    )
    define.string(
        "seeds",
        None,
        "Repeat the run with these seeds, comma-separated, and report mean and spread.",
    )
    define.string(
        "features_dir", None, f"Directory of the {examples}' records (output_dir/features)."
    )
    define.integer("num_workers", 0, "Processes that write records; 0 means one per core.")


def define_directory_flags(
    define: Definer, *, files: str, predictions: str, max_seq_length: str
) -> None:
    """Defines what is done with the files of a directory, and the length of sequences.

    The arguments are words of help texts: the files, what is written, and the length's own text.
    """
    define.string("data_dir", None, f"Directory of {files}.")
    define.boolean("do_eval", False, "Evaluate on the development set.")
    define.boolean("do_predict", False, f"Predict the test set and write {predictions}.")
    define.string("eval_file", None, "File to evaluate instead of the one in --data_dir.")
    define.string("predict_file", None, "File to predict instead of the one in --data_dir.")
    define.integer(
        "eval_batch_size",
        RunSettings.eval_batch_size,
        "Sequences per evaluation batch and rank.",
    )
    define.integer("predict_batch_size", 8, "Sequences per prediction batch and rank.")
    define.integer("max_seq_length", 128, max_seq_length)


def directory_settings(
    kind: type[_Settings], values: flags.FlagValues, **task_settings: Any
) -> _Settings:
    """As :func:`finetuning_settings`, for the flags of :func:`define_directory_flags`.

    Raises UserError also for a directory that is missing but needed.
    """
    at_least_one(values, "predict_batch_size")
    run = finetuning_run_settings(
        values,
        do_eval="do_eval",
        eval_batch_size="eval_batch_size",
        file_flags=("data_dir", "eval_file", "predict_file"),
        does=("do_predict",),
    )
    evaluates = values.do_eval and not values.eval_file
    if values.do_train or evaluates or (values.do_predict and not values.predict_file):
        require(values, "data_dir")
    data_dir = Path(values.data_dir) if values.data_dir else None
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(
            f"--data_dir={data_dir} is not a directory; give the directory of the task's files."
        )
    return finetuning_settings(
        kind,
        values,
        run,
        data_dir=data_dir,
        eval_file=optional_file(values, "eval_file"),
        predict_file=optional_file(values, "predict_file"),
        **task_settings,
    )


def finetuning_run_settings(
    values: flags.FlagValues,
    *,
    do_eval: str,
    eval_batch_size: str,
    file_flags: Iterable[str],
    does: Iterable[str] = (),
) -> RunSettings:
    """As :func:`run_settings`; the paths of ``file_flags`` may differ between hosts."""
    return run_settings(
        values,
        do_eval=do_eval,
        eval_batch_size=eval_batch_size,
        max_eval_steps=None,
        host_flags=(*file_flags, "features_dir", "num_workers", *TEACHER_FILES),
        does=does,
    )


def finetuning_settings(
    kind: type[_Settings], values: flags.FlagValues, run: RunSettings, **task_settings: Any
) -> _Settings:
    """The settings of a run: ``task_settings``, and the values of the flags with their names.

    Raises UserError for invalid flags.
    """
    at_least_one(values, "max_seq_length")
    if values.seeds and values.dllog_path:
        raise UserError("--seeds makes several runs, but --dllog_path is a single file; drop one.")
    optimization = finetuning_optimization(values)
    if values.do_train:
        check_known_lengths(optimization)
    made = {
        **task_settings,
        "bert_config_file": optional_file(values, "bert_config_file"),
        "tokenizer_files": TokenizerFiles.from_flags(values),
        "seeds": _seeds(values.seeds),
        "features_dir": Path(values.features_dir or run.output_dir / "features"),
        "run": run,
        "optimization": optimization,
        "runtime": checked_runtime_settings(values, optimization),
    }
    same_names = {field.name for field in dataclasses.fields(kind)} - made.keys()
    return kind(**made, **{name: values[name].value for name in same_names})


def finetuning_optimization(values: flags.FlagValues) -> OptimizationSettings:
    """Batch, schedule, optimizer and length; raises UserError for invalid flags."""
    epochs, proportion = values.num_train_epochs, values.warmup_proportion
    if not 0 <= proportion <= 1:
        raise UserError(f"--warmup_proportion={proportion} must be in [0, 1].")
    if epochs <= 0:
        raise UserError(f"--num_train_epochs={epochs} must be greater than 0.")
    return dataclasses.replace(
        optimization_settings(values), num_train_epochs=epochs, warmup_proportion=proportion
    )


def _seeds(text: str | None) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--seeds={text} must be comma-separated whole numbers.") from None
    if len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds={text} names a seed twice; give each run a different one.")
    return seeds
