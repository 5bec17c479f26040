"""Downloads a Wikipedia, or files at any addresses, to make training text of.

    python -m data_prep.download --source=wikipedia --language=de --output_dir=dump
    python -m data_prep.download --url=https://example.org/a.txt.gz --output_dir=books

Interrupted transfers are continued where they stopped, also by a later call; a file gets its name
when it is complete and its size and checksum are right. Checksums come with Wikipedia's dumps; for
other addresses give ``--checksum_file``, in the format of ``sha256sum``.

Output: the files under their own names, and ``manifest.json``. What has arrived of unfinished files
is kept in ``.download`` in the output directory.
"""

from data_prep.downloads.download import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
