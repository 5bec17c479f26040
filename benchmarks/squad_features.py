"""How fast SQuAD features are made, beside google-research/bert and transformers.

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

import concurrent.futures
import contextlib
import dataclasses
import importlib
import io
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from absl import flags

from benchmarks.machine import describe_machine
from bert_tf.command_line import run_command
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json
from bert_tf.squad.examples import read_squad
from bert_tf.squad.features import build_features
from bert_tf.squad.windows import WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles

OURS, GOOGLE, TRANSFORMERS = "ours", "google-research/bert", "transformers"

_TEXTS_AT_ONCE = 1000  # for transformers; what its datasets library hands over by default


@dataclasses.dataclass(frozen=True)
class Job:
    """What features are made of."""

    data_file: Path
    vocab_file: Path
    windows: WindowSettings
    google_bert_dir: Path | None = None
    do_lower_case: bool = True
    version_2_with_negative: bool = False


@dataclasses.dataclass(frozen=True)
class Timing:
    """One turn of a subject."""

    features: int
    seconds: float


def time_ours(job: Job) -> Timing:
    """The whole stage, in this process."""
    squad = _read(job)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        features = build_features(
            squad,
            directory,
            tokenizer_files=TokenizerFiles(job.vocab_file, do_lower_case=job.do_lower_case),
            windows=job.windows,
            training=True,
            num_workers=1,
        )
        return Timing(len(features.lengths), time.perf_counter() - start)


def time_google(job: Job) -> Timing:
    """Its code was written for TensorFlow 1, whose names it finds in ``tensorflow.compat.v1``."""
    import tensorflow.compat.v1 as tf

    sys.modules["tensorflow"] = tf
    sys.path.insert(0, str(job.google_bert_dir))
    run_squad, tokenization = map(importlib.import_module, ("run_squad", "tokenization"))
    tf.logging.set_verbosity(tf.logging.ERROR)
    flag = f"--version_2_with_negative={str(job.version_2_with_negative).lower()}"
    run_squad.FLAGS(["run_squad", flag])
    examples = run_squad.read_squad_examples(str(job.data_file), is_training=True)
    tokenizer = tokenization.FullTokenizer(str(job.vocab_file), do_lower_case=job.do_lower_case)
    made: list[object] = []
    start = time.perf_counter()
    run_squad.convert_examples_to_features(
        examples=examples,
        tokenizer=tokenizer,
        **dataclasses.asdict(job.windows),
        is_training=True,
        output_fn=made.append,
    )
    return Timing(len(made), time.perf_counter() - start)


def time_transformers(job: Job) -> Timing:
    """The fast tokenizer on questions with their contexts, as in the library's example."""
    from transformers import BertTokenizerFast

    examples = _read(job).examples
    tokenizer = BertTokenizerFast(str(job.vocab_file), do_lower_case=job.do_lower_case)
    made = 0
    start = time.perf_counter()
    for first in range(0, len(examples), _TEXTS_AT_ONCE):
        part = examples[first : first + _TEXTS_AT_ONCE]
        windows = tokenizer(
            [example.question.lstrip() for example in part],
            [example.context for example in part],
            truncation="only_second",
            max_length=job.windows.max_seq_length,
            stride=job.windows.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        made += len(windows["input_ids"])
    return Timing(made, time.perf_counter() - start)


def _read(job: Job):
    return read_squad(
        job.data_file,
        flag="data_file",
        version_2_with_negative=job.version_2_with_negative,
        needs_answers=True,
    )


SUBJECTS: Mapping[str, Callable[[Job], Timing]] = {
    OURS: time_ours,
    GOOGLE: time_google,
    TRANSFORMERS: time_transformers,
}


def take_turns(job: Job, subjects: list[str], *, runs: int) -> dict[str, list[Timing]]:
    """Times of each subject, every turn in a fresh process."""
    timings: dict[str, list[Timing]] = {subject: [] for subject in subjects}
    for _ in range(runs):
        for subject in subjects:
            with concurrent.futures.ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn"), initializer=_use_one_thread
            ) as executor:
                timings[subject].append(executor.submit(SUBJECTS[subject], job).result())
    return timings


def _use_one_thread() -> None:
    """For the threads of Rust and of numpy; TensorFlow only lends google's code its names."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3")


def results_of(
    timings: Mapping[str, list[Timing]], config: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Median rates of the subjects, and how many times faster ours are than each other's."""
    results, medians = [], {}
    for subject, turns in timings.items():
        rates = [turn.features / turn.seconds for turn in turns]
        medians[subject] = statistics.median(rates)
        details = {**config, "features": turns[0].features, "turns": rates}
        results.append(_result("SQuAD features", subject, medians[subject], "features/s", details))
    for subject in list(medians)[1:]:
        ratio = medians[OURS] / medians[subject]
        results.append(_result(f"SQuAD features / {subject}", OURS, ratio, "ratio", config))
    return results


def _result(
    name: str, subject: str, value: float, unit: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    return {"name": name, "subject": subject, "value": value, "unit": unit, "config": dict(config)}


def measure() -> None:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    if values.runs < 1:
        raise UserError(f"--runs={values.runs}: give at least 1.")
    subjects = [OURS]
    google_bert_dir = None
    if values.google_bert_dir:
        google_bert_dir = Path(values.google_bert_dir)
        require_file(google_bert_dir / "run_squad.py", flag="google_bert_dir")
        subjects.append(GOOGLE)
    if values.transformers:
        subjects.append(TRANSFORMERS)
    job = Job(
        data_file=require_file(values.data_file, flag="data_file"),
        vocab_file=require_file(values.vocab_file, flag="vocab_file"),
        windows=WindowSettings(values.max_seq_length, values.doc_stride, values.max_query_length),
        google_bert_dir=google_bert_dir,
        do_lower_case=values.do_lower_case,
        version_2_with_negative=values.version_2_with_negative,
    )
    job.windows.validate()
    config = {
        "data_file": job.data_file.name,
        "questions": len(_read(job).examples),
        **dataclasses.asdict(job.windows),
        "threads": 1,
        **describe_machine(),
    }
    results = results_of(take_turns(job, subjects, runs=values.runs), config)
    for result in results:
        label = result["name"] if result["unit"] == "ratio" else f"{result['subject']}:"
        print(f"{label} {result['value']:,.1f} {result['unit']}")
    if values.json:
        write_json(values.json, results)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.squad_features``."""
    lengths = WindowSettings()
    flags.DEFINE_string("data_file", None, "SQuAD file with answers.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary (vocab.txt).")
    flags.mark_flags_as_required(["data_file", "vocab_file"])
    flags.DEFINE_string("google_bert_dir", None, "Checkout of google-research/bert to compare to.")
    flags.DEFINE_bool("transformers", True, "Compare to transformers' fast tokenizer.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text, for uncased models.")
    flags.DEFINE_bool("version_2_with_negative", False, "The file has unanswerable questions.")
    flags.DEFINE_integer("max_seq_length", lengths.max_seq_length, "Positions of a sequence.")
    flags.DEFINE_integer("doc_stride", lengths.doc_stride, "Tokens from window to window.")
    flags.DEFINE_integer("max_query_length", lengths.max_query_length, "Tokens of a question.")
    flags.DEFINE_integer("runs", 5, "Turns of each subject.")
    flags.DEFINE_string("json", None, "Where to write the results.")


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: measure())
