"""Extracts text from what collections are published in: dumps, JSON, Parquet, WARC, archives.

    python -m data_prep.extract --input_file=dump --output_dir=text

Input: files, or directories with all that is below them. A file may be compressed by bzip2, gzip or
xz, or be a tar or zip archive of files. Each file's format is recognised (``--format`` names it):
dumps of MediaWiki, JSON lines, JSON, Parquet, WARC (Common Crawl's WET files), what WikiExtractor
writes, and plain text. Of a dump, redirects and pages other than articles are left out, and so are
templates, references and whatever is not running text: tables, lists and headings.

Output: ``articles-00000.txt`` and so on, a new file after each 64 MiB, with a paragraph a line and
a blank line between documents, for ``data_prep.sentences --line_breaks=paragraph``. The manifest
counts what was left out or replaced. The output does not depend on the number of workers.

Memory: about 200 MB plus 100 MB per worker process, and a few times the longest document, whatever
the size of the input.
"""

from data_prep.stages.extract import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
