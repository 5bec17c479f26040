r"""Converts pre-training records to the formats of other programs, and theirs to this one.

    python -m data_prep.convert_records --input_file=data/records/train --output_dir=parquet \
        --format=parquet

Input: TFRecords of this program, of google's and NVIDIA's scripts or with TensorFlow 2's names of
features; JSON lines or Parquet with the same features; the Parquet shards of NVIDIA's LDDL
(``--vocab_file``). Output: one file for each input file, with the records in the same order:

records: TFRecords of this program, with an index and a manifest, with stored masks or without;
google: the same with stored masks, which google's and NVIDIA's scripts read;
tf2: TFRecords with the names input_word_ids and input_type_ids;
jsonl, parquet: one record per line or row, one feature per field or column;
text: the original text, one segment per line, a blank line after each record, and between segments
that do not follow each other.

``--masking=static`` draws masks for records that have none, ``--masking=dynamic`` takes stored
masks out, for masks drawn in training. The output does not depend on the number of workers.

Memory: about 100 MB plus 100 MB per worker process.
"""

from data_prep.conversion.convert_records import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
