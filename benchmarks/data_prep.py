"""Compares how fast programs turn raw text into pre-training records, in MB per second.

    python -m benchmarks.data_prep --input_file=corpus.txt --vocab_file=vocab.txt \
        --google_bert_dir=bert --json=data_prep.json

The text has one sentence per line and blank lines between documents; ``tools.demo.corpus`` makes
one. Ours is data_prep.create_pretraining_data, on all cores and on one, with its checksums; the
peer is google's script of that name, with the same flags. ``tokenizers`` is Hugging Face's library,
which only tokenizes the text: a part of the work, on all cores and on one. ``limit-tokenizer`` is
the same part of our work. ``ours-sentences-1-worker`` is the preceding stage, data_prep.sentences,
and ``limit-splitter`` the library that finds its sentences; both get each document as one
paragraph. Start-up is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from absl import flags

from benchmarks.results import Result
from benchmarks.script import REQUIRED, run_benchmark, threads_from_flags
from benchmarks.speed.comparison import compare, comparison_flags
from benchmarks.speed.subjects import MAKING_RECORDS
from bert_tf.util.files import expand_input_files, require_file

_STAGE_FLAGS = {
    "max_seq_length": (128, "As in data_prep.create_pretraining_data."),
    "dupe_factor": (5, "As in data_prep.create_pretraining_data."),
    "do_lower_case": (True, "As in data_prep.create_pretraining_data."),
}


def measure() -> Iterator[Result]:
    """Runs the comparison given by the flags."""
    values = flags.FLAGS
    rules = {name: values[name].value for name in _STAGE_FLAGS}
    rules["threads"] = threads_from_flags()
    texts = [path.resolve() for path in expand_input_files(values.input_file, flag="input_file")]
    job = {
        **rules,
        "input_file": ",".join(map(str, texts)),
        "vocab_file": str(require_file(values.vocab_file, flag="vocab_file").resolve()),
    }
    yield from compare(
        MAKING_RECORDS,
        job,
        "make",
        lambda found: {"text to records": (found["megabytes"] / found["seconds"], "MB/s")},
        config={**rules, "text_bytes": sum(path.stat().st_size for path in texts)},
    )


FLAGS = {
    **comparison_flags(MAKING_RECORDS, "threads"),
    "input_file": (REQUIRED, "Text, one sentence per line: comma-separated files and globs."),
    "vocab_file": (REQUIRED, "WordPiece vocabulary."),
    **_STAGE_FLAGS,
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
