"""Splits plain text into one sentence per line, with a blank line between documents.

    python -m data_prep.sentences --input_file='corpus/*.txt' --output_dir=sentences

Input: UTF-8 text files, with a blank line or the end of a file between documents; a document is
running prose, wrapped or not, or has one sentence per line. Sentences are found by the rules of
``--language`` or of the dump's language (data_prep/text/sentence_splitting.py). White space inside
a sentence becomes single blanks. Documents of more than 1 MiB are split at sentence boundaries, so
that later stages only handle small documents; the manifest counts these cuts.
``--markup=wikitext`` is for WikiText (data_prep/text/wikitext_corpus.py); without it, the stage
prints a note if the text looks like WikiText.

Output: ``sentences-00000.txt`` and so on, a new file after each 64 MiB.

Memory: about 60 MB plus 70 MB per worker process, whatever the size of the corpus.
"""

from data_prep.stages.sentences import define_flags, run_from_flags
from data_prep.stages.stage import run_main


def main() -> None:
    """Runs the command."""
    run_main(define_flags, run_from_flags)


if __name__ == "__main__":
    main()
