"""The stage that removes documents that are not running text, and duplicates."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import unicodedata
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import NOT_NEGATIVE, setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval
from bert_tf.util.versions import UNICODE, maker
from data_prep.stages.journal import AppendedFile, Journal, JournaledDirectory
from data_prep.stages.settings import CallSettings, FileSettings, output_parameters
from data_prep.stages.stage import (
    LANGUAGES,
    NumberedFiles,
    begin_progress,
    define_settings,
    find_text_files,
    languages_of,
)
from data_prep.text.documents import (
    CUT_DOCUMENTS,
    CUT_LINES,
    Block,
    decode_document,
    read_blocks,
    read_documents,
)
from data_prep.text.duplicates import find_duplicates, sketch

STAGE = "clean"
VERSION = 1  # goes up when the output of equal input changes
REASONS = TOO_SHORT, FEW_LETTERS, REPETITIVE = "too_short", "few_letters", "repetitive"
EXACT, NEAR = "exact_duplicates", "near_duplicates"
BLOCK_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 4 << 20
_SHARE = Interval(0, 1)


@dataclasses.dataclass(frozen=True)
class CleaningRules(declared.Settings):
    """What is removed."""

    heading: ClassVar[str] = "Cleaning"
    min_characters: int = setting(
        200,
        "Remove documents with fewer characters, not counting white space.",
        bounds=NOT_NEGATIVE,
    )
    min_letter_share: float = setting(
        0.6,
        "Remove documents with a smaller share of letters (and marks on them) among these "
        "characters.",
        bounds=_SHARE,
    )
    max_repeated_share: float = setting(
        0.3,
        "Remove documents with a larger share of characters in lines that they had before.",
        bounds=_SHARE,
    )
    near_duplicate_similarity: float = setting(
        0.8,
        "Remove documents that are that similar to an earlier one (Jaccard similarity of runs of "
        "five words); 0 removes equal ones only.",
        bounds=_SHARE,
    )
    keep_duplicates: bool = setting(False, "Keep equal and similar documents.")


@dataclasses.dataclass(frozen=True)
class Settings(CallSettings, CleaningRules, FileSettings):
    """Settings of the stage."""


class Judged(NamedTuple):
    """A block of documents after the rules.

    Attributes:
      text: that of the documents which are kept so far, with a blank line after each.
      sketches: theirs, for the comparison.
      counts: how many are kept ("kept"), and removed, by reason.
      num_bytes: of all of them.
    """

    text: bytes
    sketches: bytes
    counts: collections.Counter[str]
    num_bytes: int


def run(settings: Settings) -> Path:
    """Cleans the input files; returns the output directory."""
    files = find_text_files(settings.input_file)
    parameters = output_parameters(settings)
    if languages := languages_of(files):
        parameters[LANGUAGES] = languages
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=files,
        made_by=maker(VERSION, UNICODE),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, files),
        use=JournaledDirectory(),
    )


def _build(settings: Settings, files: list[Path], directory: Path, journal: Journal) -> Built:
    # Removed with the directory, and not before: a call that continues needs them.
    work = directory / ".work"
    work.mkdir(exist_ok=True)
    texts, sketches = work / "texts", work / "sketches"
    removed = collections.Counter(_judge_all(settings, files, texts, sketches, journal))
    is_left_out = np.zeros(removed.pop("kept"), bool)
    cut = {name: removed.pop(name) for name in (CUT_DOCUMENTS, CUT_LINES) if removed[name]}
    if not settings.keep_duplicates:
        report(f"{STAGE}: comparing {len(is_left_out):,} documents")
        found = find_duplicates(sketches, threshold=settings.near_duplicate_similarity or None)
        removed[EXACT], removed[NEAR] = len(found.exact), len(found.near)
        is_left_out[found.exact] = is_left_out[found.near] = True
    kept = len(is_left_out) - np.count_nonzero(is_left_out)
    counted = {reason: removed[reason] for reason in (*REASONS, EXACT, NEAR)}
    shown = ", ".join(f"{number:,} {reason}" for reason, number in counted.items() if number)
    if not kept:
        raise UserError(
            f"--input_file: nothing is left of {settings.input_file!r} (removed: {shown}); the "
            "documents need blank lines between them, or other limits: --help lists them."
        )
    # None of them is as long as that, so that none is divided again.
    documents = read_documents(texts, max_bytes=2 * MAX_DOCUMENT_BYTES)
    with NumberedFiles(directory, STAGE) as output:
        for document, leave_out in zip(documents, is_left_out):
            if not leave_out:
                output.write(document.text + b"\n", count=1)
    if CUT_DOCUMENTS in cut:
        report(
            f"{STAGE}: documents of more than {MAX_DOCUMENT_BYTES >> 20} MiB were cut "
            f"{cut[CUT_DOCUMENTS]:,} times, and their pieces kept without judging them; if they "
            "hold several documents, put blank lines between these"
        )
    report(f"{STAGE}: {kept:,} documents kept, removed: {shown or 'none'}")
    return Built(output.counts, {"documents": kept, **counted, **cut})


def _judge_all(
    settings: Settings, files: list[Path], texts: Path, sketches: Path, journal: Journal
) -> collections.Counter[str]:
    """Writes the documents that pass the rules, and their sketches; counts them and the others."""
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
        functools.partial(Judge, settings),
        journal.remaining(blocks),
        what=STAGE,
    )
    with AppendedFile(texts) as text_file, AppendedFile(sketches) as sketch_file:
        outputs = (text_file, sketch_file)
        for result in results:
            text_file.write(result.text)
            sketch_file.write(result.sketches)
            journal.add_item(result.counts, input_bytes=result.num_bytes, outputs=outputs)
            progress.advance(result.num_bytes / 1e6)
    progress.finish()
    return collections.Counter({"kept": 0, **journal.totals, **cuts})


class Judge:
    """Applies the rules to blocks of documents; one instance per worker process."""

    def __init__(self, settings: CleaningRules):
        self._settings = settings
        self._compares = not settings.keep_duplicates
        self._compares_similar = self._compares and settings.near_duplicate_similarity > 0
        self._kind_of: dict[str, str] = {}

    def __call__(self, block: Block) -> Judged:
        """Judges each document of a block."""
        texts, sketches = [], []
        counts: collections.Counter[str] = collections.Counter()
        for document in block.documents:
            for lines in decode_document(document):
                # The rules are for whole documents.
                reason = None if document.piece else self.reason_to_remove(lines)
                counts[reason or "kept"] += 1
                if reason is None:
                    text = "\n".join(lines)
                    texts.append(f"{text}\n\n")
                    if self._compares:
                        compared = _compared(text, document.piece)
                        sketches.append(sketch(compared, near=self._compares_similar))
        return Judged(
            "".join(texts).encode("utf-8"),
            b"".join(sketches),
            counts,
            sum(len(document.text) for document in block.documents),
        )

    def reason_to_remove(self, lines: list[str]) -> str | None:
        """One of ``REASONS``; None for a document that passes the rules."""
        characters = collections.Counter(itertools.chain.from_iterable(lines))
        kinds: collections.Counter[str] = collections.Counter()
        for character, number in characters.items():
            kinds[self._kind(character)] += number
        total = kinds["letter"] + kinds["other"]
        if total < max(1, self._settings.min_characters):
            return TOO_SHORT
        if kinds["letter"] < self._settings.min_letter_share * total:
            return FEW_LETTERS
        before: set[str] = set()
        repeated = 0
        for line in lines:
            repeated += len(line) * (line in before)
            before.add(line)
        if repeated > self._settings.max_repeated_share * sum(map(len, lines)):
            return REPETITIVE
        return None

    def _kind(self, character: str) -> str:
        kind = self._kind_of.get(character)
        if kind is None:
            # Letters (L) and marks (M), without which words of many scripts are not whole.
            is_letter = unicodedata.category(character)[0] in "LM"
            kind = "space" if character.isspace() else "letter" if is_letter else "other"
            self._kind_of[character] = kind
        return kind


def _compared(text: str, piece: int) -> str:
    """The part of a document that is compared with others.

    The pieces of one document differ in every word, so that they are not duplicates of one another,
    but are those of the same document elsewhere.
    """
    return " ".join(f"{piece}:{word}" for word in text.split()) if piece else text


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.clean``."""
    define_settings(
        Settings,
        values=values,
        input_file="Text files: comma-separated files, globs and directories.",
        output_dir="Directory for the text.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
