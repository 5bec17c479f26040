"""Trains a vocabulary on text: WordPiece in BERT's vocab.txt form, or a SentencePiece model.

    python -m data_prep.vocabulary --input_file='shards/train-*.txt' --output_dir=vocabulary \\
        --vocab_size=30522 [--tokenizer=sentencepiece]

WordPiece: [PAD] [UNK] [CLS] [SEP] [MASK], the characters, the characters inside words (``##``),
then pairs by frequency (by the trainer of the ``tokenizers`` package) in words split by our own
BasicTokenizer, so that training and use agree. SentencePiece: a unigram model with <pad> <unk>
[CLS] [SEP] [MASK] first. Either has exactly ``--vocab_size`` entries.

Of a large corpus at most ``--vocab_sample_megabytes`` are used: lines whose hash is low enough.
Memory: WordPiece about 100 MB plus the size of the sample and 70 MB per worker process;
SentencePiece about 100 MB plus 22 times the sample.
"""

from data_prep.stages.stage import run_main
from data_prep.stages.vocabulary import define_flags, run_from_flags


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
