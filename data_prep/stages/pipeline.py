"""All stages in turn, from raw text to pre-training records."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.config.declared import options_of
from bert_tf.durable.stage import remove_outputs
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir
from data_prep.downloads import download
from data_prep.sources.source_formats import Reading
from data_prep.stages import (
    clean,
    create_pretraining_data,
    extract,
    filter_language,
    sentences,
    shards,
    vocabulary,
)
from data_prep.stages.order import STAGES
from data_prep.stages.settings import FileSettings
from data_prep.stages.stage import define_settings
from data_prep.stages.vocabulary_flags import VocabularyFiles, chosen_vocabulary
from data_prep.text.languages import DEFAULT_LANGUAGE
from data_prep.text.wikitext_corpus import PLAIN


class Call(NamedTuple):
    """A stage with its settings, which name where it reads and writes."""

    stage: str
    settings: Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """The calls of stages, in their order, and where their results are.

    Attributes:
      calls: without those of stages that are left out.
      vocabulary: vocab.txt or SentencePiece model.
      train, heldout: directories of records; heldout is None if nothing is held out.
    """

    calls: tuple[Call, ...]
    vocabulary: Path
    train: Path
    heldout: Path | None


def run(settings: Settings) -> None:
    """Runs all stages that are not up to date."""
    for stage, of_stage in settings.calls:
        STAGES[stage].module.run(of_stage)
    if settings.heldout is None:
        # Records of an earlier run may contain documents that are now used for training.
        remove_outputs(create_pretraining_data.STAGE, settings.train.parent / "heldout")


def settings_from_pipeline_flags(values: flags.FlagValues) -> Settings:
    """Turns the flags of the pipeline into the settings of its stages."""
    chosen = chosen_vocabulary(from_flags(VocabularyFiles, values), values.max_seq_length)
    _check_vocabulary_size(values, chosen)
    extracts = _check_source(values)
    if "," in values.output_dir:
        raise UserError(
            f"--output_dir={values.output_dir}: commas separate files in lists; choose a name "
            "without one."
        )
    root = make_output_dir(values.output_dir, flag="output_dir")
    shards_in = Path(glob.escape(str(root))) / "shards"
    vocabulary_settings = None
    if chosen is None:
        vocabulary_settings = from_flags(
            vocabulary.Settings,
            values,
            input_file=str(shards_in / "train-*.txt"),
            output_dir=str(root / "vocabulary"),
            # The text's own language, if it is known before it is read.
            language=values.language or (DEFAULT_LANGUAGE if values.source else None),
            do_lower_case=values.do_lower_case is not False,
            strip_accents=values.strip_accents,
        )
        casing = vocabulary_settings.casing
        chosen = TokenizerFiles.of_kind(
            values.tokenizer,
            root / "vocabulary" / vocabulary.FILE_NAMES[values.tokenizer],
            lower_case=casing["do_lower_case"],
            strip_accents=casing.get("strip_accents"),
        )

    def records(kind: str, **others: object) -> create_pretraining_data.Settings:
        return from_flags(
            create_pretraining_data.Settings,
            values,
            input_file=str(shards_in / f"{kind}-*.txt"),
            output_dir=str(root / "records" / kind),
            tokenizer_files=chosen,
            **others,
        )

    calls = [
        *_calls_for_sentences(values, root, extracts=extracts),
        Call(
            "shards",
            from_flags(
                shards.Settings,
                values,
                input_file=str(root / "sentences"),
                output_dir=str(root / "shards"),
            ),
        ),
    ]
    if vocabulary_settings is not None:
        calls.append(Call("vocabulary", vocabulary_settings))
    calls.append(Call("create_pretraining_data", records("train")))
    if values.heldout_fraction:
        # Evaluation reads each document once.
        of_heldout = records("heldout", num_output_files=1, dupe_factor=1)
        calls.append(Call("create_pretraining_data", of_heldout))
    return Settings(
        tuple(calls),
        chosen.required_file,
        root / "records" / "train",
        root / "records" / "heldout" if values.heldout_fraction else None,
    )


def _calls_for_sentences(values: flags.FlagValues, root: Path, *, extracts: bool) -> Iterator[Call]:
    """The stages before the shards: each reads what the one before it has written."""
    text, line_breaks = values.input_file, values.line_breaks
    if values.source:
        yield Call(
            "download",
            from_flags(download.Settings, values, output_dir=str(root / "download")),
        )
        text = str(root / "download")
    if extracts:
        yield Call(
            "extract",
            from_flags(extract.Settings, values, input_file=text, output_dir=str(root / "text")),
        )
        text = str(root / "text")
        if not values["line_breaks"].present:
            line_breaks = "paragraph"
    if values.keep_languages is not None:
        filtered = from_flags(
            filter_language.Settings,
            values,
            input_file=text,
            output_dir=str(root / "filter_language"),
        )
        if len(filtered.keep_languages) > 1 and values.language is None:
            raise UserError(
                f"--keep_languages={values.keep_languages}: give the --language by whose rules the "
                "sentences of all of them should end, or prepare each language by itself."
            )
        yield Call("filter_language", filtered)
        text = str(root / "filter_language")
    elif values["min_language_probability"].present:
        raise UserError(
            "--min_language_probability belongs to --keep_languages; give both or neither."
        )
    if values.clean or (values.clean is None and values.source):
        yield Call(
            "clean",
            from_flags(clean.Settings, values, input_file=text, output_dir=str(root / "clean")),
        )
        text = str(root / "clean")
    settings = from_flags(
        sentences.Settings,
        values,
        output_dir=str(root / "sentences"),
        input_file=text,
        line_breaks=line_breaks,
    )
    yield Call("sentences", settings)


def _check_source(values: flags.FlagValues) -> bool:
    """Whether text is extracted first; raises UserError unless there is exactly one text."""
    if bool(values.source) == bool(values.input_file):
        raise UserError(
            "give either --input_file, your own text, or --source, a collection to download."
        )
    if values.source is None:
        for name in options_of(download.SourceSettings):
            if name not in ("source", "language") and values[name].present:
                raise UserError(f"--{name} belongs to --source; leave it out with --input_file.")
        extracts = any(values[name].present for name in options_of(Reading))
        if not extracts and extract.is_plain_text(values.input_file):
            return False
    if values.markup != PLAIN:
        raise UserError(
            f"--markup={values.markup} is for plain text with --input_file, not for --source or "
            "for text that is extracted."
        )
    return True


def _check_vocabulary_size(values: flags.FlagValues, chosen: TokenizerFiles | None) -> None:
    """Detects mistakes before the first stage has run for hours."""
    if chosen is None:
        if values.vocab_size is None:
            raise UserError(
                "give --vocab_size to train a vocabulary, --vocab_file or --spm_model_file to use "
                "an existing one, or --init_checkpoint to use that of a model."
            )
        return
    tokenizer = chosen.load()
    if values.vocab_size not in (None, tokenizer.vocab_size):
        raise UserError(
            f"--vocab_size={values.vocab_size}: the given vocabulary has {tokenizer.vocab_size} "
            "entries; leave --vocab_size out."
        )


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.pipeline``."""
    define_settings(
        FileSettings,
        *(row.module.Settings for row in STAGES.values()),
        values=values,
        without=(
            create_pretraining_data.CallFiles,
            "checksum_file",
            "do_lower_case",
            "strip_accents",
        ),
        optional=("input_file", "vocab_size", "keep_languages"),
        input_file="Text, dumps, JSON, Parquet, WARC or archives: comma-separated files, globs "
        "and directories.",
        output_dir="Directory for all outputs.",
    )
    define = define_settings(
        VocabularyFiles,
        values=values,
        vocab_file="WordPiece vocabulary (vocab.txt), instead of training one.",
    )
    _define_clean_flag(define)


@flag_group("Cleaning")
def _define_clean_flag(define: Definer) -> None:
    define.boolean(
        "clean",
        None,
        "Remove all but running text, and duplicates; the default with --source.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    settings = settings_from_pipeline_flags(values)
    run(settings)
    report(f"vocabulary: {settings.vocabulary}")
    report(f"training records: {settings.train}")
    if settings.heldout:
        report(f"held-out records: {settings.heldout}")
