r"""From raw text to pre-training records: runs all stages in turn.

    python -m data_prep.pipeline --input_file='corpus/*.txt' --output_dir=data --vocab_size=30522
    python -m data_prep.pipeline --source=wikipedia --language=de --output_dir=data \
        --vocab_size=30000

The input may be plain text, or whatever ``data_prep.extract`` reads: dumps, JSON, Parquet, folders,
archives. Below --output_dir: with --source ``download/``, with that or such input ``text/``, with
--keep_languages ``filter_language/``, with --clean, which --source implies, ``clean/``; then
``sentences/``, ``shards/`` (train-*.txt, heldout-*.txt), ``vocabulary/`` (vocab.txt or spm.model;
not with --vocab_file, --spm_model_file or --init_checkpoint), ``records/train/`` and
``records/heldout/``, each with its ``manifest.json``. A stage whose inputs, parameters and versions
have not changed is skipped. The vocabulary is trained on the training shards only.

The flags are those of the stages. Memory: that of the largest stage.
"""

from data_prep.stages.pipeline import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
