"""The settings of an evaluation of perplexities, and their flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, require
from bert_tf.cli.training_flags import define_computing_flags
from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, options_of, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.finetune.flags import define_model_flags
from bert_tf.inference.settings import (
    InferenceSettings,
    define_inference_flags,
    inference_settings,
)
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files
from bert_tf.util.options import Interval

# The metrics to compute, and the units of a text file that can be a text.
METRICS = MASKED, PSEUDO = "masked", "pseudo"
TEXT_UNITS = LINE, DOCUMENT = "line", "document"


def _metrics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METRICS:
            raise UserError(f"--metrics={text}: {name!r} is none of {', '.join(METRICS)}.")
    return tuple(name for name in METRICS if name in names)


@dataclasses.dataclass(frozen=True)
class TextSettings(Settings):
    """How texts are read from files, and which of their tokens are scored."""

    text_unit: str = setting(
        LINE,
        "What counts as a text in a text file: a line, or the lines between blank ones.",
        choices=TEXT_UNITS,
    )
    text_column: str | None = setting(
        None,
        "Column of the texts in a table: its name, or its number from 1 if there is no header. "
        "Commas separate the columns of *.csv, tabs those of other files.",
        kind=str,
    )
    wikitext: bool = setting(
        False,
        "Undo WikiText's markers: ' @-@ ' becomes '-', and '<unk>' an unknown token.",
    )
    sample: float = setting(
        1.0,
        "Fraction of the texts to score, chosen at random by --seed.",
        bounds=Interval(0, 1, open_low=True),
    )
    score_unknown: bool = setting(True, "Score [UNK] tokens too; otherwise they are only context.")


@dataclasses.dataclass(frozen=True)
class ScoringSettings(InferenceSettings):
    """The settings of an evaluation of a masked language model's perplexity.

    Of ``masks`` only the fraction of masked tokens has a flag.
    """

    input_files: tuple[Path, ...]
    texts: TextSettings = group(TextSettings)
    max_seq_length: int = setting(
        128,
        "Maximum tokens of a sequence; longer texts are split. Records are used as they are.",
        bounds=Interval(3),
        advice="[CLS], a token, [SEP]",
    )
    all_checkpoints: bool = setting(
        False, "Evaluate every checkpoint in the directory --init_checkpoint, not only the latest."
    )
    metrics: tuple[str, ...] = setting(
        METRICS,
        "What to compute, comma-separated: masked (masked perplexity), pseudo (pseudo-perplexity).",
        kind=str,
        parse=_metrics,
    )
    whole_words: bool = setting(
        False,
        "Mask all pieces of a word together for the pseudo-perplexity, so that no piece shows the "
        "others and vocabularies compare.",
    )
    num_draws: int = setting(5, "Draws of masks for the masked perplexity.", bounds=AT_LEAST_ONE)
    masks: MaskingOptions = group(MaskingOptions)
    batch_tokens: int = setting(2048, "Tokens per batch and rank.", bounds=AT_LEAST_ONE)

    @property
    def has_records(self) -> bool:
        """Whether the input files hold pre-training records rather than texts."""
        return ".tfrecord" in self.input_files[0].name

    def contradictions(self) -> Iterator[str]:
        """Whole words without the pseudo-perplexity; records with texts, or with their settings."""
        if self.whole_words and PSEUDO not in self.metrics:
            yield "--whole_words is for the pseudo-perplexity; give --metrics=pseudo, or drop it."
        kinds = {".tfrecord" in path.name: path for path in reversed(self.input_files)}
        if len(kinds) == 2:
            yield (
                f"--input_file: {kinds[True]} holds records and {kinds[False]} does not; give one "
                "kind."
            )
        for name in ("text_column", "wikitext"):
            if True in kinds and getattr(self.texts, name):
                yield f"--{name} is for texts, but {kinds[True]} holds records; drop one."


def define_evaluation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_evaluation.py."""
    define = Definer(values)
    _define_evaluation_flags(define)
    _define_text_flags(define)
    define_model_flags(define)
    define_computing_flags(define)


@flag_group("Evaluation")
def _define_evaluation_flags(define: Definer) -> None:
    define_inference_flags(
        define,
        model="The model to evaluate",
        output_dir={"help_text": "Directory for results, and for scores until all are there."},
        seed={"help_text": "Seed of the masks and of --sample."},
    )
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
    files = expand_record_files(values.input_file, flag="input_file")
    return inference_settings(ScoringSettings, values, input_files=tuple(files))
