"""Extracts the text of the articles from MediaWiki dumps, such as those of Wikipedia.

    python -m data_prep.extract --input_file=dump --output_dir=text

Input: dumps in XML, plain or compressed by bzip2, gzip or xz: what ``data_prep.download`` has
fetched, or a part of it. Redirects and pages that are no articles are left out, and so are
templates, references and whatever is not running text: tables, lists and headings.

Output: ``articles-00000.txt`` and so on, a new file after each 64 MiB, with a paragraph a line and
a blank line between articles, for ``data_prep.sentences --line_breaks=paragraph``. The manifest
counts what was left out. The output does not depend on the number of workers.

Memory: about 200 MB plus 100 MB per worker process, whatever the size of the dump.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.errors import UserError
from bert_tf.records.journal import Journal
from bert_tf.records.stage import Built, run_stage
from bert_tf.workers import ordered_map, resolve_num_workers
from data_prep.mediawiki_dump import ARTICLES, Site, read_pages
from data_prep.mediawiki_text import Options, plain_text
from data_prep.stage import (
    NumberedFiles,
    begin_progress,
    define_common_flags,
    define_workers_flag,
    find_text_files,
    run_main,
    settings_from_flags,
)

STAGE = "extract"
_BATCH_CHARACTERS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the stage.

    Attributes:
      input_file: comma-separated files, globs and directories.
      output_dir: output directory for the text.
      keep_lists, keep_headings: keep the lines of lists, and the headings of sections with text.
      num_workers: processes, 0 for all cores.
      scheduler: address of a Dask scheduler, whose workers are used instead.
    """

    input_file: str
    output_dir: str
    keep_lists: bool = False
    keep_headings: bool = False
    num_workers: int = 0
    scheduler: str | None = None


class Batch(NamedTuple):
    """Articles that a worker turns into text together."""

    site: Site
    articles: list[str]


class Extracted(NamedTuple):
    """The text of a batch, its articles and those without text, and the characters of markup."""

    text: bytes
    articles: int
    empty: int
    characters: int


def validate(settings: Settings) -> None:
    """Raises UserError for values that cannot be."""
    resolve_num_workers(settings.num_workers, settings.scheduler)


def run(settings: Settings) -> Path:
    """Extracts the text; returns the output directory."""
    validate(settings)
    files = find_text_files(settings.input_file)
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters={"lists": settings.keep_lists, "headings": settings.keep_headings},
        inputs=files,
        build=functools.partial(_build, settings, files),
        journaled=True,
    )


def _build(settings: Settings, files: list[Path], directory: Path, journal: Journal) -> Built:
    progress = begin_progress(STAGE, journal, total_bytes=None, unit="MB of markup")
    # Counted anew by a call that continues, since it reads all pages again.
    left_out: collections.Counter[str] = collections.Counter()
    worker = functools.partial(Extractor, settings.keep_lists, settings.keep_headings)
    results = ordered_map(
        worker,
        journal.remaining(_batches(files, left_out)),
        num_workers=resolve_num_workers(settings.num_workers, settings.scheduler),
        scheduler=settings.scheduler,
        what=STAGE,
    )
    with NumberedFiles(directory, "articles", journal) as output:
        for result in results:
            output.write(result.text, count=result.articles)
            counts = {"articles": result.articles, "articles_without_text": result.empty}
            journal.add_item(counts, input_bytes=result.characters, outputs=[output])
            progress.advance(result.characters / 1e6)
    progress.finish()
    totals = journal.totals + left_out
    if not totals["articles"]:
        raise UserError(f"--input_file: {settings.input_file!r} contains no article with text.")
    names = ("articles", "articles_without_text", "redirects", "other_pages")
    return Built(output.counts, {name: totals[name] for name in names})


def _batches(files: list[Path], totals: collections.Counter[str]) -> Iterator[Batch]:
    """The articles of all files; ``totals`` counts the pages that are none."""
    for path in files:
        batch, size = None, 0
        for site, page in read_pages(path):
            if page.namespace != ARTICLES:
                totals["other_pages"] += 1
            elif page.is_redirect:
                totals["redirects"] += 1
            else:
                batch = batch or Batch(site, [])
                batch.articles.append(page.text)
                size += len(page.text)
                if size >= _BATCH_CHARACTERS:
                    yield batch
                    batch, size = None, 0
        if batch:
            yield batch


class Extractor:
    """Turns batches into text; one instance per worker process."""

    def __init__(self, lists: bool, headings: bool):
        self._lists = lists
        self._headings = headings

    def __call__(self, batch: Batch) -> Extracted:
        """The text of a batch, with a blank line after each article."""
        options = Options(batch.site.hidden, self._lists, self._headings)
        pages = [plain_text(markup, options) for markup in batch.articles]
        text = "".join("".join(f"{line}\n" for line in lines) + "\n" for lines in pages if lines)
        empty = sum(not lines for lines in pages)
        characters = sum(map(len, batch.articles))
        return Extracted(text.encode("utf-8"), len(pages) - empty, empty, characters)


@flag_group("Extraction")
def define_parameter_flags() -> None:
    """Defines the flags of this stage only."""
    flags.DEFINE_bool("keep_lists", False, "Keep the lines of lists.")
    flags.DEFINE_bool("keep_headings", False, "Keep the headings of sections that have text.")


@flag_group("Input and output")
def define_flags() -> None:
    """Defines the flags of ``python -m data_prep.extract``."""
    define_common_flags(
        input_help="MediaWiki dumps (XML, .bz2, .gz, .xz): comma-separated files, globs and "
        "directories.",
        output_help="Directory for the text.",
    )
    define_workers_flag()
    define_parameter_flags()


def main() -> None:
    """Runs the stage from its flags."""
    run_main(define_flags, lambda: run(settings_from_flags(Settings)))


if __name__ == "__main__":
    main()
