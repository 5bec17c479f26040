"""The settings of an evaluation of perplexities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, setting
from bert_tf.config.masking import MaskingOptions
from bert_tf.config.settings import RunSettings, RuntimeSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

# The metrics to compute, and the units of a text file that can be a text.
METRICS = MASKED, PSEUDO = "masked", "pseudo"
TEXT_UNITS = LINE, DOCUMENT = "line", "document"

_FRACTION = Interval(0, 1, open_low=True)


def _metrics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METRICS:
            raise UserError(f"--metrics={text}: {name!r} is none of {', '.join(METRICS)}.")
    return tuple(name for name in METRICS if name in names)


@dataclasses.dataclass(frozen=True)
class TextSettings(Settings):
    """How texts are read from files."""

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


@dataclasses.dataclass(frozen=True)
class ScoringSettings(Settings):
    """The settings of an evaluation of a masked language model's perplexity.

    ``bert_config_file`` (if not None) and ``tokenizer_files`` override those stored with the
    weights; of ``masks`` only the fraction of masked tokens has a flag.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    input_files: tuple[Path, ...]
    has_records: bool
    run: RunSettings
    runtime: RuntimeSettings
    texts: TextSettings = group(TextSettings)
    score_unknown: bool = setting(True, "Score [UNK] tokens too; otherwise they are only context.")
    sample: float = setting(
        1.0, "Fraction of the texts to score, chosen at random by --seed.", bounds=_FRACTION
    )
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

    def contradictions(self) -> Iterator[str]:
        """Yields an error for whole words without the pseudo-perplexity."""
        if self.whole_words and PSEUDO not in self.metrics:
            yield "--whole_words is for the pseudo-perplexity; give --metrics=pseudo, or drop it."
