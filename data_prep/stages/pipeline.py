"""All stages in turn, from raw text to pre-training records."""

from __future__ import annotations

import dataclasses
import glob
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.records.stage import remove_outputs, report
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir
from data_prep.downloads import download
from data_prep.stages import clean, create_pretraining_data, extract, sentences, shards, vocabulary
from data_prep.stages.stage import (
    define_common_flags,
    define_language_flag,
    define_workers_flag,
    settings_from_flags,
)
from data_prep.stages.vocabulary_flags import chosen_vocabulary, define_vocabulary_flags
from data_prep.text.wikitext_corpus import PLAIN, define_markup_flag

_OF_EXTRACTION = ("format", "text_field", "rows_per_document", "encoding")
_OF_EXTRACTION += ("keep_lists", "keep_headings")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of each stage, with the paths between them filled in; None leaves it out."""

    download: download.Settings | None
    extract: extract.Settings | None
    clean: clean.Settings | None
    sentences: sentences.Settings
    shards: shards.Settings
    vocabulary: vocabulary.Settings | None
    train_records: create_pretraining_data.Settings
    heldout_records: create_pretraining_data.Settings | None


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Paths of the results.

    Attributes:
      vocabulary: vocab.txt or SentencePiece model.
      train, heldout: directories of records; heldout is None if nothing was held out.
    """

    vocabulary: Path
    train: Path
    heldout: Path | None


def run(settings: Settings) -> Outputs:
    """Runs all stages that are not up to date; settings are checked before the first one."""
    to_text = [
        (stage, stage_settings)
        for stage, stage_settings in (
            (download, settings.download),
            (extract, settings.extract),
            (clean, settings.clean),
        )
        if stage_settings
    ]
    for stage, stage_settings in to_text:
        stage.validate(stage_settings)
    sentences.validate(settings.sentences)
    shards.validate(settings.shards)
    if settings.vocabulary:
        vocabulary.validate(settings.vocabulary)
    create_pretraining_data.validate(settings.train_records)
    for stage, stage_settings in to_text:
        stage.run(stage_settings)
    sentences.run(settings.sentences)
    shards.run(settings.shards)
    if settings.vocabulary:
        vocabulary.run(settings.vocabulary)
    train = create_pretraining_data.run(settings.train_records)
    records = settings.train_records
    heldout = None
    if settings.heldout_records:
        heldout = create_pretraining_data.run(settings.heldout_records)
    else:  # records of an earlier run may contain documents that are now used for training
        remove_outputs(create_pretraining_data.STAGE, train.parent / "heldout")
    return Outputs(records.tokenizer_files.file, train, heldout)


def settings_from_pipeline_flags(values: flags.FlagValues) -> Settings:
    """Turns the flags of the pipeline into the settings of its stages."""
    chosen = chosen_vocabulary(values)
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
        vocabulary_settings = settings_from_flags(
            vocabulary.Settings,
            values,
            input_file=str(shards_in / "train-*.txt"),
            output_dir=str(root / "vocabulary"),
            do_lower_case=values.do_lower_case is not False,
        )
        flag = "vocab_file" if values.tokenizer == "wordpiece" else "spm_model_file"
        trained = root / "vocabulary" / vocabulary.FILE_NAMES[values.tokenizer]
        chosen = TokenizerFiles(**{flag: trained}, do_lower_case=vocabulary_settings.do_lower_case)

    def records(kind: str, **others: object) -> create_pretraining_data.Settings:
        return settings_from_flags(
            create_pretraining_data.Settings,
            values,
            input_file=str(shards_in / f"{kind}-*.txt"),
            output_dir=str(root / "records" / kind),
            output_file=None,
            tokenizer_files=chosen,
            **others,
        )

    text, line_breaks = values.input_file, values.line_breaks
    to_text: dict[str, object] = dict.fromkeys(("download", "extract", "clean"))
    if values.source:
        to_text["download"] = download.settings_from_download_flags(
            values, output_dir=str(root / "download"), url=(), checksum_file=None
        )
        text = str(root / "download")
    if extracts:
        to_text["extract"] = settings_from_flags(
            extract.Settings, values, input_file=text, output_dir=str(root / "text")
        )
        text = str(root / "text")
        if not values["line_breaks"].present:
            line_breaks = "paragraph"
    if values.clean or (values.clean is None and values.source):
        to_text["clean"] = settings_from_flags(
            clean.Settings, values, input_file=text, output_dir=str(root / "clean")
        )
        text = str(root / "clean")
    return Settings(
        **to_text,
        sentences=settings_from_flags(
            sentences.Settings,
            values,
            output_dir=str(root / "sentences"),
            input_file=text,
            line_breaks=line_breaks,
        ),
        shards=settings_from_flags(
            shards.Settings,
            values,
            input_file=str(root / "sentences"),
            output_dir=str(root / "shards"),
        ),
        vocabulary=vocabulary_settings,
        train_records=records("train"),
        heldout_records=(
            records("heldout", num_output_files=1, dupe_factor=1)  # evaluation reads each once
            if values.heldout_fraction
            else None
        ),
    )


def _check_source(values: flags.FlagValues) -> bool:
    """Whether text is extracted first; raises UserError unless there is exactly one text."""
    if bool(values.source) == bool(values.input_file):
        raise UserError(
            "give either --input_file, your own text, or --source, a collection to download."
        )
    if values.source is None:
        for name in ("date", "mirror", "num_connections"):
            if values[name].present:
                raise UserError(f"--{name} belongs to --source; leave it out with --input_file.")
        extracts = any(values[name].present for name in _OF_EXTRACTION)
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


@flag_group("Cleaning")
def _define_clean_flag() -> None:
    flags.DEFINE_bool(
        "clean", None, "Remove what is no running text, and duplicates; the default with --source."
    )


@flag_group("Vocabulary")
def define_flags() -> None:
    """Defines the flags of ``python -m data_prep.pipeline``."""
    define_common_flags(
        input_help="Text, dumps, JSON, Parquet or archives: comma-separated files, globs and "
        "directories.",
        output_help="Directory for all outputs.",
        input_is_required=False,
    )
    define_workers_flag()
    define_markup_flag()
    define_language_flag()
    download.define_source_flags()
    _define_clean_flag()
    for stage in (extract, clean, sentences, shards, vocabulary, create_pretraining_data):
        stage.define_parameter_flags()
    define_vocabulary_flags(otherwise=", instead of training one")


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the command with the settings that the flags give."""
    outputs = run(settings_from_pipeline_flags(values))
    report(f"vocabulary: {outputs.vocabulary}")
    report(f"training records: {outputs.train}")
    if outputs.heldout:
        report(f"held-out records: {outputs.heldout}")
