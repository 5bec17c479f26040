"""Megabytes of raw text a second that become records of pre-training, here and elsewhere.

    python -m benchmarks.data_prep --input_file=corpus.txt --vocab_file=vocab.txt \
        --google_bert_dir=bert --json=data_prep.json

The text has one sentence a line and blank lines between documents; ``tools.demo.corpus`` makes
one. Ours is data_prep.create_pretraining_data, on all cores and on one, with its checksums; the
peer is google's script of that name, with the same flags. ``tokenizers`` is Hugging Face's, which
only cuts the text into words: a part of the work, on all cores and on one. Start-up is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.rank_jobs import Result, print_result, spread_result
from benchmarks.speed.comparison import (
    compare,
    define_comparison_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.process import Found
from benchmarks.speed.report import ratio_results
from benchmarks.speed.subjects import MAKING_RECORDS, Subject
from bert_tf import environment
from bert_tf.command_line import run_command
from bert_tf.files import require_file, write_json

_GOOGLE_FILES = ("create_pretraining_data.py", "tokenization.py")


def record_results(
    subjects: Sequence[Subject], found: Mapping[str, Sequence[Found]], config: Mapping[str, Any]
) -> list[Result]:
    """The speed of each subject in ``found``, and how many times faster ours are."""
    present = [subject for subject in subjects if subject.name in found]
    rates = {
        s.name: [turn["megabytes"] / turn["seconds"] for turn in found[s.name]] for s in present
    }
    results = []
    for subject in present:
        turns = found[subject.name]
        shares = [turn["foreign_share"] for turn in turns]
        described = {**config, "others_share_of_machine": shares}
        results.append(
            spread_result("text to records", rates[subject.name], "MB/s", described, subject.name)
        )
    return [*results, *ratio_results("text to records", present, rates, config)]


def measure() -> None:
    """Runs the comparison of the flags."""
    values = flags.FLAGS
    rules = {
        "max_seq_length": values.max_seq_length,
        "dupe_factor": values.dupe_factor,
        "do_lower_case": values.do_lower_case,
        "threads": values.threads or environment.available_cores(),
    }
    input_file = require_file(values.input_file, flag="input_file").resolve()
    job = {
        **rules,
        "input_file": str(input_file),
        "vocab_file": str(require_file(values.vocab_file, flag="vocab_file").resolve()),
        "google_bert_dir": google_bert_dir_from_flags(_GOOGLE_FILES),
    }
    subjects = subjects_from_flags(MAKING_RECORDS)
    comparison = compare(
        subjects, job, "make", lambda found: f"{found['megabytes'] / found['seconds']:.3g} MB/s"
    )
    config = {**rules, "text_bytes": input_file.stat().st_size, **describe_machine()}
    results = record_results(subjects, comparison.found, config)
    for result in results:
        who = "" if result["unit"] == "ratio" else f", {result['subject']}"
        print_result({**result, "name": f"{result['name']}{who}"})
    if values.json:
        write_json(values.json, results)
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
    define_flags()
    run_command(lambda _: measure())
