"""Reads a data directory completely and reports what is wrong with it, and what is unusual.

    python -m data_prep.inspect data/records/train --report=inspection.html

Every file that a ``manifest.json`` lists is checked for presence, size and hash. Every record for
pre-training, SQuAD, classification or labels of words is read, and its checksums, layout and value
ranges are checked. Files without a manifest can be given as well; then only their records are
checked. Lengths, ids, masks, labels and repetitions of records are counted, and so are the
documents, lines and repetitions of text; some records are shown as text.

The exit status is 2 if files are damaged or inconsistent, 1 if there are only warnings of unusual
statistics, and 0 otherwise. Training itself checks presence and sizes at its start, and each
record that it reads.

Memory: about 50 MB, as much for each worker process, and up to 200 MB with millions of records. Of
more than two million different ones only a sample is looked at for repetitions.
"""

from absl import flags

from bert_tf.cli.flags import run_command
from data_prep.inspection.inspect_data import define_flags, run_from_flags


def main() -> None:
    """Runs the command."""
    define_flags()
    run_command(lambda words: run_from_flags(words, flags.FLAGS), takes_words=True)


if __name__ == "__main__":
    main()
