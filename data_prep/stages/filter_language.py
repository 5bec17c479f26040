"""The stage that keeps the documents in some languages."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval
from bert_tf.util.versions import maker
from data_prep.stages.journal import Journal, JournaledDirectory
from data_prep.stages.settings import CallSettings, FileSettings, output_parameters
from data_prep.stages.stage import (
    LANGUAGES,
    NumberedFiles,
    begin_progress,
    define_settings,
    find_text_files,
)
from data_prep.text.documents import (
    CUT_DOCUMENTS,
    Block,
    decode_document,
    read_blocks,
)
from data_prep.text.language_identification import (
    PACKAGES,
    LanguageIdentifier,
    missing_package,
    parse_languages,
    unknown_language,
)

STAGE = "filter_language"
VERSION = 1  # goes up when the output of equal input changes
DOCUMENTS, UNCERTAIN = "documents", "uncertain"
KEPT, REMOVED = "kept_", "removed_"  # before the code of a language
BLOCK_BYTES = 1 << 18
MAX_DOCUMENT_BYTES = 4 << 20
_SHOWN_LANGUAGES = 5


@dataclasses.dataclass(frozen=True)
class LanguageFilter(declared.Settings):
    """Which documents are kept."""

    heading: ClassVar[str] = "Languages"
    keep_languages: tuple[str, ...] = setting(
        ...,
        "Keep only documents in these languages: comma-separated codes such as de,fr.",
        kind=str,
        parse=parse_languages,
    )
    min_language_probability: float = setting(
        0.5,
        "Remove documents whose most likely language has a lower probability: often documents of "
        "a few words, and always documents without letters.",
        bounds=Interval(0, 1),
    )

    def contradictions(self) -> Iterator[str]:
        """Raises UserError for unknown languages, and if the package is missing."""
        if not self.keep_languages:
            yield "--keep_languages is empty; give codes of languages, such as de,fr."
        for code in self.keep_languages:
            if unknown := unknown_language(code):
                yield f"--keep_languages: {unknown}"
        if missing := missing_package():
            yield f"--keep_languages: {missing}"
        yield from super().contradictions()


@dataclasses.dataclass(frozen=True)
class Settings(CallSettings, LanguageFilter, FileSettings):
    """Settings of the stage."""


class Filtered(NamedTuple):
    """A block of documents: the text and the number of those that are kept, counts, bytes read."""

    text: bytes
    documents: int
    counts: collections.Counter[str]
    num_bytes: int


def run(settings: Settings) -> Path:
    """Filters the input files; returns the output directory."""
    files = find_text_files(settings.input_file)
    parameters = output_parameters(settings)
    parameters["keep_languages"] = list(settings.keep_languages)
    return run_stage(
        STAGE,
        settings.output_dir,
        # The next stages learn from it by whose rules sentences end.
        parameters={**parameters, LANGUAGES: list(settings.keep_languages)},
        inputs=files,
        made_by=maker(VERSION, *PACKAGES),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, files),
        use=JournaledDirectory(),
    )


def _build(settings: Settings, files: list[Path], directory: Path, journal: Journal) -> Built:
    progress = begin_progress(STAGE, journal, files)
    # A resumed call starts counting from 0, since it reads all lines again.
    cuts: collections.Counter[str] = collections.Counter()
    blocks = read_blocks(
        files,
        block_bytes=BLOCK_BYTES,
        max_bytes=MAX_DOCUMENT_BYTES,
        cuts=cuts,
        cut_lines=True,
    )
    results = settings.executor.map(
        functools.partial(Filter, settings),
        journal.remaining(blocks),
        what=STAGE,
    )
    with NumberedFiles(directory, STAGE, journal) as output:
        for result in results:
            if result.documents:
                output.write(result.text, count=result.documents)
            journal.add_item(result.counts, input_bytes=result.num_bytes, outputs=[output])
            progress.advance(result.num_bytes / 1e6)
    progress.finish()
    counts = {**dict(sorted(journal.totals.items())), **cuts}
    kept = counts.pop(DOCUMENTS, 0)
    removed = _described(counts)
    if not kept:
        raise UserError(
            f"--input_file: no document of {settings.input_file!r} is kept (removed: {removed}); "
            "give other --keep_languages, or a lower --min_language_probability."
        )
    if cuts[CUT_DOCUMENTS]:
        report(
            f"{STAGE}: documents of more than {MAX_DOCUMENT_BYTES >> 20} MiB were cut "
            f"{cuts[CUT_DOCUMENTS]:,} times; each piece was judged by itself"
        )
    report(f"{STAGE}: {kept:,} documents kept, removed: {removed}")
    return Built(output.counts, {DOCUMENTS: kept, **counts})


def _described(counts: dict[str, int]) -> str:
    """What was removed: the most frequent languages by name."""
    removed = {n.removeprefix(REMOVED): c for n, c in counts.items() if n.startswith(REMOVED)}
    languages = sorted(removed, key=lambda language: -removed[language])
    shown = [f"{removed[language]:,} {language}" for language in languages[:_SHOWN_LANGUAGES]]
    if others := sum(removed[language] for language in languages[_SHOWN_LANGUAGES:]):
        shown.append(f"{others:,} in other languages")
    if uncertain := counts.get(UNCERTAIN):
        shown.append(f"{uncertain:,} {UNCERTAIN}")
    return ", ".join(shown) or "none"


class Filter:
    """Keeps the documents of blocks that are in the languages; one instance per worker process."""

    def __init__(self, settings: LanguageFilter):
        self._settings = settings
        self._identify = LanguageIdentifier()

    def __call__(self, block: Block) -> Filtered:
        """Identifies the language of each document of a block."""
        texts: list[str] = []
        counts: collections.Counter[str] = collections.Counter()
        for document in block.documents:
            for lines in decode_document(document):
                text = "\n".join(lines)
                is_kept, reason = self._judge(text)
                counts[reason] += 1
                if is_kept:
                    texts.append(f"{text}\n\n")
        counts[DOCUMENTS] += len(texts)
        num_bytes = sum(len(document.text) for document in block.documents)
        return Filtered("".join(texts).encode("utf-8"), len(texts), counts, num_bytes)

    def _judge(self, text: str) -> tuple[bool, str]:
        """Whether a document is kept, and the name of its count."""
        language, probability = self._identify(text)
        if probability < self._settings.min_language_probability:
            return False, UNCERTAIN
        is_kept = language in self._settings.keep_languages
        return is_kept, f"{KEPT if is_kept else REMOVED}{language}"


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.filter_language``."""
    define_settings(
        Settings,
        values=values,
        input_file="Text files: comma-separated files, globs and directories.",
        output_dir="Directory for the text.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
