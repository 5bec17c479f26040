"""Searches for files that a reader of foreign_readers.py fails on, guided by coverage.

Run by hand, where the package atheris is installed; options after the name are libFuzzer's:

    python -m tests.fuzz pytorch -max_total_time=1800 -timeout=10 -rss_limit_mb=2000
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["bert_tf", "data_prep", "pickle", "zipfile", "tarfile"]):
    from tests.helpers.foreign_readers import READERS, check


def main() -> None:
    """Fuzzes one reader until it fails or the time is over."""
    reader = READERS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as corpus, tempfile.TemporaryDirectory() as directory:
        for number, seed in enumerate(reader.seeds(Path(directory))):
            Path(corpus, str(number)).write_bytes(seed)
        path = Path(directory, reader.name)
        atheris.Setup([sys.argv[0], *sys.argv[2:], corpus], lambda data: check(reader, path, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
