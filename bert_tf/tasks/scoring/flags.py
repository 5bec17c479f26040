"""The flags of run_evaluation.py and the settings made from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import (
    HOST_FLAGS,
    Definer,
    at_least_one,
    computing_settings,
    define_computing_flags,
    optional_file,
    recorded_flags,
    require,
)
from bert_tf.config.settings import LINE, METRICS, TEXT_UNITS, EvaluationSettings, RunSettings
from bert_tf.tasks.finetuning.flags import define_model_flags
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files

_COUNTS = ("max_seq_length", "num_draws", "batch_tokens")


def define_evaluation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_evaluation.py."""
    define = Definer(values)
    _define_evaluation_flags(define)
    _define_text_flags(define)
    define_model_flags(define)
    define_computing_flags(
        define,
        native_ops="Use the compiled operations between a layer's matrix products (default: on "
        "CPUs, if they are built and faster).",
    )


@flag_group("Evaluation")
def _define_evaluation_flags(define: Definer) -> None:
    define.string(
        "init_checkpoint",
        None,
        "The model to evaluate: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's, or its directory.",
    )
    define.boolean(
        "all_checkpoints",
        False,
        "Evaluate every checkpoint in the directory --init_checkpoint, not only the latest.",
    )
    define.string("output_dir", None, "Directory for results, and for scores until all are there.")
    define.string(
        "metrics",
        ",".join(METRICS),
        "What to compute, comma-separated: masked (masked perplexity), pseudo (pseudo-perplexity).",
    )
    define.integer("num_draws", 5, "Draws of masks for the masked perplexity.")
    define.number(
        "masked_lm_prob",
        0.15,
        "Fraction of a sequence's tokens, without [CLS] and [SEP], that a draw chooses.",
    )
    define.integer("seed", RunSettings.seed, "Seed of the masks and of --sample.")
    define.integer("batch_tokens", 2048, "Tokens in a batch, per rank.")


@flag_group("Texts")
def _define_text_flags(define: Definer) -> None:
    define.string(
        "input_file",
        None,
        "Texts: UTF-8 text files, tables (with --text_column) or pre-training records "
        "(*.tfrecord); files, globs and directories, comma-separated.",
    )
    define.choice(
        "text_unit",
        LINE,
        list(TEXT_UNITS),
        "What a text is in a text file: a line, or the lines between blank ones.",
    )
    define.string(
        "text_column",
        None,
        "Column of the texts in a table: its name, or its number from 1 if there is no header. "
        "Commas separate the columns of *.csv, tabs those of other files.",
    )
    define.boolean(
        "wikitext",
        False,
        "Undo WikiText's markers: ' @-@ ' becomes '-', and '<unk>' an unknown token.",
    )
    define.boolean(
        "score_unknown", True, "Score [UNK] tokens too; otherwise they are only context."
    )
    define.number("sample", 1.0, "Fraction of the texts to score, chosen at random by --seed.")
    define.integer(
        "max_seq_length",
        128,
        "Maximum tokens of a sequence; longer texts are cut into several. Records are taken as "
        "they are.",
    )


def evaluation_settings(values: flags.FlagValues) -> EvaluationSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    require(values, "output_dir", "init_checkpoint", "input_file")
    for name in (*_COUNTS, "num_threads"):
        at_least_one(values, name)
    if values.max_seq_length < 3:
        raise UserError(
            f"--max_seq_length={values.max_seq_length} must be at least 3: [CLS], a token, [SEP]."
        )
    for name in ("sample", "masked_lm_prob"):
        if not 0 < values[name].value <= 1:
            raise UserError(f"--{name}={values[name].value:g} must be above 0 and at most 1.")
    files = tuple(expand_record_files(values.input_file, flag="input_file"))
    run = RunSettings(
        output_dir=Path(values.output_dir),
        init_checkpoint=values.init_checkpoint,
        do_eval=True,
        # For the measurement of what is fastest, in the shape of a full batch.
        eval_batch_size=max(1, values.batch_tokens // values.max_seq_length),
        seed=values.seed,
        **recorded_flags(values),
        host_flags=HOST_FLAGS | {"input_file"},
    )
    made = {
        "bert_config_file": optional_file(values, "bert_config_file"),
        "tokenizer_files": TokenizerFiles.from_flags(values),
        "input_files": files,
        "has_records": _has_records(values, files),
        "metrics": _metrics(values.metrics),
        "run": run,
        "runtime": computing_settings(values),
    }
    same_names = {field.name for field in dataclasses.fields(EvaluationSettings)} - made.keys()
    return EvaluationSettings(**made, **{name: values[name].value for name in same_names})


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


def _metrics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METRICS:
            raise UserError(f"--metrics={text}: {name!r} is none of {', '.join(METRICS)}.")
    return tuple(name for name in METRICS if name in names)
