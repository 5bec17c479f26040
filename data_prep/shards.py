"""Distributes documents over balanced text shards, some of them held out for evaluation.

    python -m data_prep.shards --input_file='sentences/*.txt' --output_dir=shards

Input: one sentence per line, a blank line or the end of a file between documents. Output:
``train-00000.txt`` and so on, ``heldout-00000.txt`` and so on, in the same format. Each document
goes to the smallest shard so far, so that no two shards of a kind differ by more than one document.

Whether a document is held out depends only on a hash of its text: a growing corpus keeps the split
of its old documents, and equal documents are on the same side. (If a corpus is so small that one
side would be empty, that side gets the document with the nearest hash.)

Runs in one process, since it only copies bytes. Memory: about 110 MB, whatever the size of the
corpus.
"""

from data_prep.stages.shards import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
