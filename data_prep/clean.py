"""Removes documents that are not running text, and all but the first of equal or similar ones.

    python -m data_prep.clean --input_file=text --output_dir=clean

Input: UTF-8 text with a blank line between documents, such as that of ``data_prep.extract``.
Output: ``clean-00000.txt`` and so on, in the same format and order, a new file after each 64 MiB.
The manifest counts what was removed, by reason. The rules know no language: lengths, shares of
kinds of characters, repetition. Documents of more than 4 MiB are cut, which is counted, and the
pieces are kept, since the rules are for whole documents. The output does not depend on the number
of workers.

Memory: about 200 MB plus 100 MB per worker process, and 1 byte per document; 300 MB plus 230 MB
per worker process where documents reach 4 MiB, at which they are cut. Disk, while it runs:
the text once more, and per document 528 bytes plus 8 for each band of a signature (16 bands at the
default similarity, 42 at 0.5).
"""

from data_prep.stages.clean import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
