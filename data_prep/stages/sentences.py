"""The stage that splits text into one sentence per line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.versions import UNICODE, maker
from data_prep.sources.source_text import require_no_html
from data_prep.stages.journal import Journal, JournaledDirectory
from data_prep.stages.settings import CallSettings, FileSettings, LanguageSettings
from data_prep.stages.stage import (
    NumberedFiles,
    begin_progress,
    define_settings,
    find_text_files,
    languages_of,
)
from data_prep.text.documents import (
    CUT_DOCUMENTS,
    REPLACED,
    Decoder,
    DecodingSettings,
    Part,
    between_blank_lines,
    cut_long_sentences,
    last_blank_line,
    read_parts,
    require_few_nulls,
)
from data_prep.text.languages import (
    DEFAULT_LANGUAGE,
    Choice,
    choose_language,
    contradicts,
    validate_language,
)
from data_prep.text.sentence_splitting import split_sentences, splitter_version
from data_prep.text.wikitext_corpus import (
    PLAIN,
    UNKNOWN,
    WIKITEXT,
    MarkupSettings,
    articles,
    is_heading,
    last_title,
)

STAGE = "sentences"
VERSION = 1  # goes up when the output of equal input changes
LINE_BREAKS = ("auto", "wrapped", "paragraph", "sentence")

MAX_DOCUMENT_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_BOUNDARY_SEARCH_BYTES = 1 << 16  # at the end of a chunk that must be split
_MIN_WRAP_WIDTH, _MAX_WRAP_WIDTH = 40, 200  # characters; plausible widths of wrapped text
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SENTENCE_END = re.compile(r"[.!?:;…。！？؟।][\"'’”»)\]]*$")


@dataclasses.dataclass(frozen=True)
class SplittingRules(declared.Settings):
    """Where sentences end."""

    heading: ClassVar[str] = "Sentences"
    line_breaks: str = setting(
        "auto",
        "Meaning of a line end within a document: none (wrapped), the end of a sentence "
        "(paragraph), the only kind of sentence end (sentence); auto: paragraph, after joining "
        "lines that look wrapped.",
        choices=LINE_BREAKS,
    )


@dataclasses.dataclass(frozen=True)
class Settings(
    CallSettings, LanguageSettings, MarkupSettings, DecodingSettings, SplittingRules, FileSettings
):
    """Settings of the stage."""

    def contradictions(self) -> Iterator[str]:
        """Raises UserError for what is not the code of a language."""
        if self.language is not None:
            validate_language(self.language)
        yield from super().contradictions()


class Sentences(NamedTuple):
    """A chunk after splitting; ``text`` has a blank line after each document."""

    text: bytes
    counts: dict[str, int]
    num_input_bytes: int


def run(settings: Settings) -> Path:
    """Splits the input files into sentences; returns the output directory."""
    files = find_text_files(settings.input_file)
    of_text = languages_of(files)
    chosen = choose_language(settings.language, of_text)
    if contradicts(chosen.language, of_text):
        report(
            f"{STAGE}: the text comes from a dump in {', '.join(of_text)}, but "
            f"--language={chosen.language} is given, by whose rules its sentences end"
        )
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters={
            "line_breaks": settings.line_breaks,
            "invalid_utf8": settings.invalid_utf8,
            "max_document_bytes": MAX_DOCUMENT_BYTES,
            "language": chosen.language,
            "splitter": splitter_version(chosen.language),
            **settings.markup_parameters,
        },
        inputs=files,
        made_by=maker(VERSION, UNICODE),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, chosen, files),
        use=JournaledDirectory(),
    )


def _build(
    settings: Settings,
    chosen: Choice,
    files: list[Path],
    directory: Path,
    journal: Journal,
) -> Built:
    report(f"{STAGE}: split by the rules of {chosen.language} ({chosen.origin})")
    progress = begin_progress(STAGE, journal, files)
    chunks = (
        chunk
        for path in files
        for chunk in read_chunks(path, markup=settings.markup, language=chosen.language)
    )
    splitter = functools.partial(
        SentenceSplitter,
        settings.line_breaks,
        settings.invalid_utf8,
        settings.markup,
        chosen.language,
    )
    results = settings.executor.map(splitter, journal.remaining(chunks), what=STAGE)
    totals = journal.totals
    with NumberedFiles(directory, STAGE, journal) as output:
        for result in results:
            output.write(result.text, count=result.counts["documents"])
            journal.add_item(result.counts, input_bytes=result.num_input_bytes, outputs=[output])
            progress.advance(result.num_input_bytes / 1e6)
    if not totals["documents"]:
        raise UserError(f"--input_file: {settings.input_file!r} contains only white space.")
    progress.finish()
    if settings.markup == PLAIN:
        _report_wikitext(totals)
    if totals[CUT_DOCUMENTS]:
        report(
            f"{STAGE}: documents of more than {MAX_DOCUMENT_BYTES >> 20} MiB were cut "
            f"{totals[CUT_DOCUMENTS]:,} times, and each piece counts as a document"
        )
    if_any = ("headings", "unknown_words", "null_characters", "cut_sentences", CUT_DOCUMENTS)
    marks = {name: totals[name] for name in if_any if totals[name]}
    counted = {name: totals[name] for name in ("documents", "sentences", "replaced_bytes")}
    return Built(output.counts, {**counted, **marks})


def _report_wikitext(totals: Mapping[str, int]) -> None:
    headings, unknown = totals["headings"], totals["unknown_words"]
    if headings or unknown:
        report(
            f"{STAGE}: {headings:,} lines look like WikiText headings (= Title =) and {unknown:,} "
            f"words are {UNKNOWN}; if this is WikiText, give --markup={WIKITEXT}: without it, a "
            f"heading between blank lines is a document and {UNKNOWN} is three tokens"
        )


def read_chunks(
    path: Path, *, markup: str = PLAIN, language: str = DEFAULT_LANGUAGE
) -> Iterator[Part]:
    """Splits a file at blank lines; if a part is cut, its last document continues in the next.

    WikiText is split at titles instead. If there is no such place within two MiB, the file is split
    at a sentence boundary.
    """
    with open(path, "rb") as file:
        yield from read_parts(
            file,
            path,
            border=last_title if markup == WIKITEXT else last_blank_line,
            cut=functools.partial(_last_sentence_boundary, language=language),
        )


def _last_sentence_boundary(content: bytes, language: str) -> int:
    """Start of the last sentence, else of the last word, else of the last character."""
    search_from = len(content) - _BOUNDARY_SEARCH_BYTES
    # One character per invalid byte, so that the text can be encoded back unchanged.
    text = content[search_from:].decode("utf-8", "surrogateescape")
    printable = re.sub(r"\s", " ", text.encode("utf-8", "replace").decode("utf-8"))
    lengths = list(map(len, split_sentences(printable, language)))
    sentences = list(itertools.accumulate(lengths[:-1]))
    at_line_start = [begin for begin in sentences if text[begin - 1] == "\n"]
    begin = (at_line_start or sentences or [0])[-1] or text.rfind("\n") + 1 or text.rfind(" ") + 1
    if begin:
        return len(content) - len(text[begin:].encode("utf-8", "surrogateescape"))
    tail = content[-4:]
    last_character = re.search(rb"[^\x80-\xbf][\x80-\xbf]*\Z", tail)
    return len(content) - len(tail) + last_character.start() if last_character else len(content)


class SentenceSplitter:
    """Splits chunks into sentences; one instance per worker process."""

    def __init__(self, line_breaks: str, invalid_utf8: str, markup: str, language: str):
        self._line_breaks = line_breaks
        self._invalid_utf8 = invalid_utf8
        self._markup = markup
        self._language = language

    def __call__(self, chunk: Part) -> Sentences:
        """Splits all documents of a chunk."""
        require_few_nulls(chunk.content, chunk.name)
        if not chunk.offset:
            require_no_html(chunk.content[:_HEAD_BYTES], chunk.name)
        text, num_replaced = self._decode(chunk)
        output: list[str] = []
        counts = {"documents": 0, "sentences": 0, "replaced_bytes": num_replaced}
        counts |= {"headings": 0, "unknown_words": text.count(UNKNOWN)}
        counts |= {"null_characters": text.count("\0"), "cut_sentences": 0}
        counts[CUT_DOCUMENTS] = int(chunk.is_cut)
        documents = _documents(text)
        for lines in articles(documents) if self._markup == WIKITEXT else documents:
            counts["headings"] += sum(map(is_heading, lines))
            sentences, num_cut = cut_long_sentences(self._split_lines(lines))
            counts["cut_sentences"] += num_cut
            parts = list(_cut_document(sentences))
            counts[CUT_DOCUMENTS] += max(0, len(parts) - 1)
            for document in parts:
                output.extend(document)
                output.append("")
                counts["documents"] += 1
                counts["sentences"] += len(document)
        encoded = "".join(f"{line}\n" for line in output).encode("utf-8")
        return Sentences(encoded, counts, len(chunk.content))

    def _decode(self, chunk: Part) -> tuple[str, int]:
        # The other stages read what this one or data_prep.extract wrote, without such a mark.
        if not chunk.offset and chunk.content.startswith(_BYTE_ORDER_MARK):
            size = len(_BYTE_ORDER_MARK)
            chunk = chunk._replace(offset=size, content=chunk.content[size:])
        decode = Decoder(self._invalid_utf8)
        return decode(chunk.content, chunk.place), decode.counts[REPLACED]

    def _split_lines(self, lines: list[str]) -> list[str]:
        """The sentences of a document; WikiText headings are kept whole."""
        if self._markup == PLAIN:
            return self._split_text(lines)
        sentences = []
        for are_headings, group in itertools.groupby(lines, key=is_heading):
            part = list(group)
            sentences += part if are_headings else self._split_text(part)
        return sentences

    def _split_text(self, lines: list[str]) -> list[str]:
        if self._line_breaks == "sentence":
            return lines
        if self._line_breaks == "wrapped":
            lines = [" ".join(lines)]
        elif self._line_breaks == "auto":
            lines = join_wrapped_lines(lines)
        sentences = itertools.chain.from_iterable(map(self._split_paragraph, lines))
        return [sentence for sentence in map(str.strip, sentences) if sentence]

    def _split_paragraph(self, line: str) -> list[str]:
        if self._markup != WIKITEXT:
            return split_sentences(line, self._language)
        # A decimal point ends no sentence.
        shown = split_sentences(line.replace("@.@", "@,@"), self._language)
        ends = list(itertools.accumulate(map(len, shown)))
        return [line[start:end] for start, end in zip([0, *ends], ends)]


def join_wrapped_lines(lines: list[str]) -> list[str]:
    """Joins the lines of each paragraph, if the document looks wrapped.

    A line is full if appending the first word of the next line would make it wider than four fifths
    of the lines. A document looks wrapped if four fifths of the lines that do not end like a
    sentence are full. (In a wrapped book 97% are, among unwrapped sentences 20%.)
    """
    widths = sorted(map(len, lines))
    width = widths[math.ceil(0.8 * len(widths)) - 1]
    if len(lines) < 2 or not _MIN_WRAP_WIDTH <= width <= _MAX_WRAP_WIDTH:
        return lines
    full = [
        len(line) + 1 + len(after.split(" ", 1)[0]) > width for line, after in zip(lines, lines[1:])
    ]
    ended = [bool(_SENTENCE_END.search(line)) for line in lines[:-1]]
    full_of_open = [is_full for is_full, is_ended in zip(full, ended) if not is_ended]
    if not full_of_open or sum(full_of_open) < 0.8 * len(full_of_open):
        return lines
    paragraphs = [[lines[0]]]
    for line, is_full, is_ended in zip(lines[1:], full, ended):
        if is_ended and not is_full:
            paragraphs.append([])
        paragraphs[-1].append(line)
    return [" ".join(paragraph) for paragraph in paragraphs]


def _documents(text: str) -> Iterator[list[str]]:
    """The non-blank lines of each document, with white space reduced to single blanks.

    A carriage return among line feeds is white space; for ``split_lines`` it ends a line.
    """
    if "\n" not in text:  # lines may end in carriage returns alone
        text = text.replace("\r", "\n")
    return between_blank_lines(map(_normalized, text.replace("\0", "").split("\n")))


def _normalized(line: str) -> str:
    line = line.strip()
    # Of white space, only blanks are printable.
    is_regular = line.isprintable() and "  " not in line
    return line if is_regular else " ".join(line.split())


def _cut_document(sentences: list[str]) -> Iterator[list[str]]:
    """Splits into parts of at most MAX_DOCUMENT_BYTES (but at least one sentence)."""
    if sentences and 4 * sum(map(len, sentences)) + len(sentences) <= MAX_DOCUMENT_BYTES:
        yield sentences
        return
    part: list[str] = []
    size = 0
    for sentence in sentences:
        num_bytes = len(sentence.encode("utf-8")) + 1
        if part and size + num_bytes > MAX_DOCUMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(sentence)
        size += num_bytes
    if part:
        yield part


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.sentences``."""
    define_settings(
        Settings,
        values=values,
        input_file="Text files: comma-separated files, globs and directories.",
        output_dir="Directory for the sentences.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
