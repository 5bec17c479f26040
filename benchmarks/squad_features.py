"""How fast SQuAD features are made here, in google-research/bert and in transformers.

    python -m benchmarks.squad_features --data_file=train-v1.1.json --vocab_file=vocab.txt \
        --google_bert_dir=bert

Training features a second on one thread, from questions in memory and an empty tokenizer cache.
Ours end as records on the disk, checksums and manifest included. Google's (a checkout of
google-research/bert) are those of its convert_examples_to_features, transformers' are the windows
of its fast tokenizer with offsets, before answers are looked for; neither writes anything, and
neither has to open the vocabulary in the time that is taken. ``--doc_stride`` is the step from a
window to the next one; for transformers, which takes the overlap, it is the same number.

Every subject runs in a process of its own, taking turns, so that a machine that slows down slows
all of them. Figures are medians.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.results import Result, result, spread_result
from benchmarks.script import define_flag, define_shared_flags, run_benchmark
from benchmarks.speed.comparison import google_bert_dir_from_flags
from benchmarks.speed.process import Found, run_in_process
from benchmarks.speed.subjects import MAKING_FEATURES
from benchmarks.speed.turns import Disturbance, take_turns
from bert_tf.errors import UserError
from bert_tf.files import require_file
from bert_tf.squad.examples import read_squad
from bert_tf.squad.windows import WindowSettings

OURS = "ours"


def results_of(found: Mapping[str, Sequence[Found]], config: Mapping[str, Any]) -> Iterator[Result]:
    """Median rates of the subjects, and how many times faster ours are than each other's."""
    medians = {}
    for subject, turns in found.items():
        rates = [turn["features"] / turn["seconds"] for turn in turns]
        described = {**config, "features": turns[0]["features"]}
        yield (row := spread_result("SQuAD features", rates, "features/s", described, subject))
        medians[subject] = row["value"]
    for peer in [subject for subject in medians if subject != OURS and OURS in medians]:
        ratio = medians[OURS] / medians[peer]
        yield result(f"SQuAD features / {peer}", ratio, "ratio", config)


def measure() -> Iterator[Result]:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    if values.runs < 1:
        raise UserError(f"--runs={values.runs}: give at least 1.")
    google_bert_dir = google_bert_dir_from_flags(("run_squad.py", "tokenization.py"))
    takes_part = {OURS: True, "google-research/bert": google_bert_dir}
    takes_part["transformers"] = values.transformers
    files = {n: require_file(values[n].value, flag=n) for n in ("data_file", "vocab_file")}
    names = [field.name for field in dataclasses.fields(WindowSettings)]
    windows = WindowSettings(**{name: values[name].value for name in names})
    windows.validate()
    is_version_2 = values.version_2_with_negative
    squad = read_squad(
        files["data_file"],
        flag="data_file",
        version_2_with_negative=is_version_2,
        needs_answers=True,
    )
    job = {
        **{name: str(path.resolve()) for name, path in files.items()},
        "windows": dataclasses.asdict(windows),
        "google_bert_dir": google_bert_dir,
        "do_lower_case": values.do_lower_case,
        "version_2_with_negative": is_version_2,
    }
    comparison = take_turns(
        [subject for name, subject in MAKING_FEATURES.items() if takes_part[name]],
        lambda subject: run_in_process(subject, job, "make_features"),
        turns=values.runs,
        disturbance=Disturbance(most_foreign=1.0, retries=0),
    )
    config = {
        "data_file": files["data_file"].name,
        "questions": len(squad.examples),
        **job["windows"],
        "threads": 1,
        **describe_machine(),
    }
    for row in results_of(comparison.found, config):
        label = row["name"] if row["unit"] == "ratio" else f"{row['subject']}:"
        print(f"{label} {row['value']:,.1f} {row['unit']}")
        yield row
    comparison.raise_failures()


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.squad_features``."""
    flags.DEFINE_string("data_file", None, "SQuAD file with answers.", required=True)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary (vocab.txt).", required=True)
    flags.DEFINE_string("google_bert_dir", None, "Checkout of google-research/bert to compare to.")
    flags.DEFINE_bool("transformers", True, "Compare to transformers' fast tokenizer.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text, for uncased models.")
    flags.DEFINE_bool("version_2_with_negative", False, "The file has unanswerable questions.")
    for name, default in dataclasses.asdict(WindowSettings()).items():
        define_flag(name, default, "As in run_squad.py.")
    flags.DEFINE_integer("runs", 5, "Turns of each subject.")
    define_shared_flags("json")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
