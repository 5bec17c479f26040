"""Compares batch times of a span model here, in google-research/bert and in transformers.

    python -m benchmarks.inference --google_bert_dir=bert --batch_sizes=1,8 --json=inference.json

Reports sequences per second and percentiles over the batches of a turn, one batch at a time on all
cores, as medians over the turns. The weights are random, since they do not affect the time; the
sequences are full. The subjects and the procedure are those of benchmarks.step.

    python -m benchmarks.inference --squad_file=dev-v1.1.json --vocab_file=vocab.txt

uses sequences of the lengths of ``--sequences`` windows of a SQuAD file, spread over it and sorted
by length, and percentiles over all their batches. Ours are padded to the longest of a batch; those
of the peers, and of ``ours-padded``, to ``--seq_length``, as their programs do.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks.results import Result
from benchmarks.script import (
    network_from_flags,
    run_benchmark,
    threads_from_flags,
    whole_numbers,
)
from benchmarks.speed.comparison import Figures, compare, comparison_flags
from benchmarks.speed.predictions import PredictionJob
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import BERT_BASE, PADDED, PREDICTING
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, require_file

PERCENTILES = (50, 90, 99)


def batch_figures(job: PredictionJob, number: int, found: Found) -> Figures:
    """Sequences per second and percentiles of a turn, for one of the job's batch sizes."""
    size, seconds = job.batch_sizes[number], found["batch_seconds"][number]
    name = f"prediction, batch of {size}"
    # Batches of real sequences differ in length, and all of them count.
    middle = np.mean if job.lengths else np.median
    latencies = {
        f"{name}, p{p}": (float(np.percentile(seconds, p)) * 1e3, "ms") for p in PERCENTILES
    }
    return {name: (size / float(middle(seconds)), "sequences/s"), **latencies}


def window_lengths(
    squad_file: PathLike, vocab_file: PathLike, *, seq_length: int, most: int
) -> tuple[int, ...]:
    """Token counts of a file's windows, as cut by run_squad.py; at most ``most``, evenly spaced."""
    from benchmarks.sequences import squad_windows  # loads TensorFlow

    vocab_file = require_file(vocab_file, flag="vocab_file")
    with tempfile.TemporaryDirectory() as directory:
        windows = squad_windows(
            squad_file,
            flag="squad_file",
            training=False,
            tokenizer_files=TokenizerFiles(vocab_file, do_lower_case=True),
            work_dir=Path(directory),
            max_seq_length=seq_length,
        )
    return tuple(windows.spread(most).lengths.tolist())


def _real_lengths(values: flags.FlagValues) -> tuple[int, ...]:
    if values.squad_file is None:
        return ()
    if values.vocab_file is None:
        raise UserError("--squad_file needs --vocab_file, to tokenize its texts.")
    return window_lengths(
        values.squad_file, values.vocab_file, seq_length=values.seq_length, most=values.sequences
    )


def measure() -> Iterator[Result]:
    """Runs the comparison given by the flags."""
    values = flags.FLAGS
    network = network_from_flags(BERT_BASE)
    job = PredictionJob(
        network=network,
        batch_sizes=tuple(whole_numbers("batch_sizes")),
        seq_length=values.seq_length,
        threads=threads_from_flags(),
        warmup=values.warmup,
        repetitions=values.repetitions,
        lengths=_real_lengths(values),
    )
    config = {
        "network": network.to_dict(),
        "seq_length": job.seq_length,
        "real_sequences": len(job.lengths),
        "mean_length": float(np.mean(job.lengths or [job.seq_length])),
        "threads": job.threads,
    }
    subjects = {**PREDICTING, PADDED.name: PADDED} if job.lengths else PREDICTING
    sizes = range(len(job.batch_sizes))
    figures = [functools.partial(batch_figures, job, number) for number in sizes]
    yield from compare(subjects, job.to_json(), "predict", *figures, config=config)


FLAGS = {
    **comparison_flags({**PREDICTING, PADDED.name: PADDED}, "threads", "bert_config_file"),
    "batch_sizes": (["1", "2", "4", "8", "16", "32"], "Sequences per batch."),
    "seq_length": (384, "Sequence length.", 8),
    "squad_file": (str, "SQuAD file whose window lengths to use (default: full sequences)."),
    "vocab_file": (str, "Uncased WordPiece vocabulary, for --squad_file."),
    "sequences": (256, "Windows of --squad_file to use.", 1),
    "repetitions": (10, "Measured batches per size and turn.", 1),
    "warmup": (2, "Batches per size before the measured ones.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
