"""Sentences to pre-training records.

    python -m data_prep.create_pretraining_data --input_file='shards/*.txt' \
        --output_dir=records --vocab_file=vocab.txt    # or --init_checkpoint=MODEL_DIR

Input: UTF-8 text, one sentence per line, a blank line (or the end of a file) between documents.
Flags, defaults and rules are those of google-research/bert's script of the same name, and
``--output_file`` takes a list of files as there; several calls may fill one directory, one after
the other or at the same time, and its manifest lists the files of all. Extensions: a SentencePiece
model in place of a vocabulary; ``--masking=dynamic`` stores no masks, since they are drawn at
training time, and the passes of ``--dupe_factor`` then differ only in their pairs; ``--nsp=false``
makes single segments of full length from consecutive sentences, with the next-sentence label 0;
with ``--pack_documents`` they continue with the next document after a [SEP], so only the last one
of a block is shorter; ``--sentence_order`` makes pairs of consecutive segments, half of them
swapped; ``--ngram`` and ``--favor_shorter_ngram`` are those of google-research/albert.
``--init_checkpoint`` takes vocabulary and casing from a checkpoint's directory. A copy of the
vocabulary is stored with the records (``wordpiece-HASH.vocab`` or ``sentencepiece-HASH.vocab``),
for the model that is trained on them.

The text is processed in blocks of 1 MiB, split between documents. A random next sentence comes from
another document of the same block, and instances are shuffled within their block, which is
sufficient because training reads all records in random order. Documents of more than 256 KiB are
split at line ends, so that a block always has several. A block that would have a single document is
added to the one before it. All random draws are seeded by (--random_seed, block, pass), so the
output does not depend on --num_workers.

Memory: about 70 MB plus (75 + 16 x dupe_factor) MB per worker process, whatever the size of the
corpus.
"""

from data_prep.stages.create_pretraining_data import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
