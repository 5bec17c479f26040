"""Megabytes of raw text a second that become records of pre-training, here and elsewhere.

    python -m benchmarks.data_prep --input_file=corpus.txt --vocab_file=vocab.txt \
        --google_bert_dir=bert --json=data_prep.json

The text has one sentence a line and blank lines between documents; ``tools.demo.corpus`` makes
one. Ours is data_prep.create_pretraining_data, on all cores and on one, with its checksums; the
peer is google's script of that name, with the same flags. ``tokenizers`` is Hugging Face's, which
only cuts the text into words: a part of the work, on all cores and on one. Start-up is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.results import Result, print_result, spread_result
from benchmarks.script import run_benchmark, threads_from_flags
from benchmarks.speed.comparison import (
    compare,
    define_comparison_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.process import Found
from benchmarks.speed.report import present_rates, ratio_results
from benchmarks.speed.subjects import MAKING_RECORDS, Subject
from bert_tf.files import require_file

_GOOGLE_FILES = ("create_pretraining_data.py", "tokenization.py")


def _rate(turn: Found) -> float:
    return turn["megabytes"] / turn["seconds"]


def record_results(
    subjects: Sequence[Subject], found: Mapping[str, Sequence[Found]], config: Mapping[str, Any]
) -> list[Result]:
    """The speed of each subject in ``found``, and how many times faster ours are."""
    what = "text to records"
    present, rates = present_rates(subjects, found, _rate)
    results = []
    for name, of_subject in rates.items():
        shares = [turn["foreign_share"] for turn in found[name]]
        described = {**config, "others_share_of_machine": shares}
        results.append(spread_result(what, of_subject, "MB/s", described, name))
    return [*results, *ratio_results(what, present, rates, config)]


def measure() -> Iterator[Result]:
    """Runs the comparison of the flags."""
    values = flags.FLAGS
    names = ("max_seq_length", "dupe_factor", "do_lower_case")
    rules = {**{name: values[name].value for name in names}, "threads": threads_from_flags()}
    input_file = require_file(values.input_file, flag="input_file").resolve()
    job = {
        **rules,
        "input_file": str(input_file),
        "vocab_file": str(require_file(values.vocab_file, flag="vocab_file").resolve()),
        "google_bert_dir": google_bert_dir_from_flags(_GOOGLE_FILES),
    }
    subjects = subjects_from_flags(MAKING_RECORDS)
    comparison = compare(subjects, job, "make", lambda found: f"{_rate(found):.3g} MB/s")
    config = {**rules, "text_bytes": input_file.stat().st_size, **describe_machine()}
    for result in record_results(subjects, comparison.found, config):
        who = "" if result["unit"] == "ratio" else f", {result['subject']}"
        print_result(result, label=f"{result['name']}{who}")
        yield result
    comparison.raise_failures()


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.data_prep``."""
    define_comparison_flags(MAKING_RECORDS)
    flags.DEFINE_string("input_file", None, "Text, one sentence a line.", required=True)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary.", required=True)
    flags.DEFINE_integer("max_seq_length", 128, "As in data_prep.create_pretraining_data.")
    flags.DEFINE_integer("dupe_factor", 5, "As in data_prep.create_pretraining_data.")
    flags.DEFINE_bool("do_lower_case", True, "As in data_prep.create_pretraining_data.")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
