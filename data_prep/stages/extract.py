"""The stage that extracts text from the files that collections are published in."""

from __future__ import annotations

import codecs
import collections
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.versions import maker
from data_prep.sources.containers import open_sources
from data_prep.sources.input_tree import InputFile, find_input_tree
from data_prep.sources.mediawiki_dump import language_of
from data_prep.sources.source_formats import (
    MEDIAWIKI,
    TEXT,
    Opened,
    Reading,
    packages_of,
    read_pieces,
    recognise,
)
from data_prep.sources.source_text import encode
from data_prep.stages.journal import Journal, JournaledDirectory
from data_prep.stages.settings import CallSettings, FileSettings
from data_prep.stages.stage import LANGUAGES, NumberedFiles, begin_progress, define_settings
from data_prep.text.documents import Decoder, DecodingSettings
from data_prep.text.left_out import Frequencies, bounded, most_frequent
from data_prep.text.mediawiki_variants import variants_of

STAGE = "extract"
VERSION = 2  # goes up when the output of equal input changes
BATCH_BYTES = 1 << 18
_SHOWN_TEMPLATES = 5
_OF_DUMPS = ("articles", "articles_without_text", "redirects", "other_pages")


@dataclasses.dataclass(frozen=True)
class Settings(CallSettings, DecodingSettings, Reading, FileSettings):
    """Settings of the stage."""


class Extracted(NamedTuple):
    """The text of a batch, its documents with text, counts for the manifest, and bytes read."""

    text: bytes
    documents: int
    counts: collections.Counter[str]
    size: int


class Recognised(NamedTuple):
    """A file's format, None if it has no source, and its language where it is a dump that says."""

    format: str | None
    language: str | None


def run(settings: Settings) -> Path:
    """Extracts the text; returns the output directory."""
    files = find_input_tree(settings.input_file)
    recognised = [recognise_file(file, settings) for file in files]
    found = {file.format for file in recognised}
    languages = sorted({file.language for file in recognised if file.language})
    if len(languages) > 1:
        report(
            f"{STAGE}: the dumps are in several languages ({', '.join(languages)}); "
            "data_prep.sentences will need --language, since all get the same rules"
        )
    _check_variant(settings.variant, languages)
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters={
            **_parameters(settings, found),
            **({LANGUAGES: languages} if languages else {}),
        },
        inputs=[file.path for file in files],
        made_by=maker(VERSION, *packages_of(found)),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, files, found),
        use=JournaledDirectory(),
    )


def _check_variant(variant: str, languages: list[str]) -> None:
    """Raises UserError for a variant that no dump's language has."""
    known = {name for language in languages for name in variants_of(language)}
    if variant and variant not in known:
        advice = f"give one of {', '.join(sorted(known))}" if known else "leave the flag out"
        raise UserError(
            f"--variant={variant} does not fit the language of the dumps "
            f"({', '.join(languages) or 'which they do not name'}); {advice}."
        )


def recognise_file(file: InputFile, reading: Reading) -> Recognised:
    """What the first source in a file is; raises UserError as ``recognise``."""
    first = next(open_sources(file.path, collections.Counter()), None)
    if first is None:
        return Recognised(None, None)
    found = recognise(first, reading, is_nested=file.is_nested)
    return Recognised(found, language_of(first.head) if found == MEDIAWIKI else None)


def is_plain_text(patterns: str) -> bool:
    """Whether the next stages read all files as they are: text with blank lines between documents.

    Raises UserError if there are none. Stops at the first other file.
    """
    return all(_is_plain_text(file) for file in find_input_tree(patterns))


def _is_plain_text(file: InputFile) -> bool:
    source = next(open_sources(file.path, collections.Counter()), None)
    if file.is_nested or source is None or not source.is_plain:
        return False
    is_utf8 = not source.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return is_utf8 and recognise(source, Reading(), is_nested=False) == TEXT


def _parameters(settings: Settings, found: set[str | None]) -> dict[str, object]:
    """The parameters that determine the output; those of dumps alone are named as always."""
    parameters: dict[str, object] = {
        "lists": settings.keep_lists,
        "headings": settings.keep_headings,
        **({"variant": settings.variant} if settings.variant else {}),
    }
    if found == {MEDIAWIKI}:
        return parameters
    names = ("format", "text_field", "rows_per_document", "encoding", "invalid_utf8")
    return {**parameters, **{name: getattr(settings, name) for name in names}}


def _build(
    settings: Settings,
    files: list[InputFile],
    found: set[str | None],
    directory: Path,
    journal: Journal,
) -> Built:
    progress = begin_progress(STAGE, journal, None, unit="MB of input")
    # A resumed call starts counting from 0, since it reads all files again.
    left_out: collections.Counter[str] = collections.Counter()
    results = settings.executor.map(
        functools.partial(Extractor, settings.invalid_utf8),
        journal.remaining(_batches(files, settings, left_out)),
        what=STAGE,
    )
    with NumberedFiles(directory, "articles", journal) as output:
        for result in results:
            if result.documents:
                output.write(result.text, count=result.documents)
            counts = bounded({"articles": result.documents, **result.counts}, journal.totals)
            journal.add_item(counts, input_bytes=result.size, outputs=[output])
            progress.advance(result.size / 1e6)
    progress.finish()
    totals = journal.totals + left_out
    if not totals["articles"]:
        raise UserError(f"--input_file: {settings.input_file!r} contains no article with text.")
    counted = {name: totals[name] for name in _OF_DUMPS} if MEDIAWIKI in found else {}
    templates = Frequencies.of(totals)
    if templates.total:
        report(f"{STAGE}: templates left out, {templates.line(_SHOWN_TEMPLATES)}")
    kept = most_frequent(totals)
    return Built(output.counts, {**counted, **{n: c for n, c in sorted(kept.items()) if c}})


def _batches(
    files: list[InputFile], reading: Reading, totals: collections.Counter[str]
) -> Iterator[list[Any]]:
    """The pieces of all files, several at a time; ``totals`` counts what is not among them."""
    batch, size = [], 0
    for file in files:
        for source in open_sources(file.path, totals):
            found = recognise(source, reading, is_nested=file.is_nested)
            for piece in read_pieces(Opened(source, file.path, reading, totals), found):
                batch.append(piece)
                size += piece.size
                if size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
    if batch:
        yield batch


class Extractor:
    """Turns batches into text; one instance per worker process."""

    def __init__(self, invalid_utf8: str):
        self._invalid_utf8 = invalid_utf8

    def __call__(self, batch: list[Any]) -> Extracted:
        """The text of a batch, with a blank line after each document."""
        decoder = Decoder(self._invalid_utf8)
        documents = [lines for piece in batch for lines in piece.documents(decoder)]
        counts = decoder.counts
        with_text = [lines for lines in documents if lines]
        counts["articles_without_text"] += len(documents) - len(with_text)
        text = encode(with_text, counts)
        return Extracted(text, len(with_text), counts, sum(piece.size for piece in batch))


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.extract``."""
    define_settings(
        Settings,
        values=values,
        input_file="Dumps, JSON, Parquet, WARC, text, or archives of them: comma-separated files, "
        "globs and directories.",
        output_dir="Directory for the text.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
