"""Correlates cosine similarities of mean-pooled vectors with the ratings of the STS benchmark.

    python -m benchmarks.studies.sentence_similarity --model_dir=all-MiniLM-L6-v2 \\
        --sts_file=sts-test.csv

The file has the columns of the benchmark's own files, separated by tabs, without a header: genre,
file, year, index, rating and two sentences. Vectors are also rounded to half precision, as
--output_dtype=float16 does.

docs/measurements/vectors.md has the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags

from benchmarks.results import Result, printed, result
from benchmarks.script import REQUIRED, run_benchmark, shared_flags, start_tensorflow
from bert_tf.model_directory.complete import find_model
from bert_tf.util.files import read_lines

_RATING, _FIRST, _SECOND = 4, 5, 6


def similarities(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The products, in float32, of vectors of unit length: [N, D], [N, D] -> [N]."""
    return np.sum(vectors.astype(np.float32) * others.astype(np.float32), axis=-1)


def columns_of(lines: Sequence[str]) -> tuple[np.ndarray, list[str], list[str]]:
    """The ratings and both sentences of a file's lines."""
    rows = [line.split("\t") for line in lines]
    ratings = np.array([float(row[_RATING]) for row in rows])
    return ratings, [row[_FIRST] for row in rows], [row[_SECOND] for row in rows]


def measure() -> Iterator[Result]:
    """Yields both correlations, of the vectors as they are and in half precision."""
    values = flags.FLAGS
    start_tensorflow()
    from bert_tf.inference.settings import chosen_options
    from bert_tf.tasks.classification.metrics import pearson, spearman
    from bert_tf.tasks.vectors.encoder import TextEncoder
    from bert_tf.tasks.vectors.settings import VectorSettings

    model = find_model(values.model_dir)
    ratings, first, second = columns_of(read_lines(values.sts_file, flag="sts_file"))
    options, _ = chosen_options(model.config, precision=values.precision)
    settings = VectorSettings(pooling="mean", normalize=True)
    encoder = TextEncoder(model, settings, max_seq_length=values.seq_length, options=options)
    vectors, others = encoder.encode(first), encoder.encode(second)

    def correlations() -> Iterator[Result]:
        for kind in ("float32", "float16"):
            found = similarities(vectors.astype(kind), others.astype(kind))
            config = {"pairs": len(ratings), "precision": values.precision, "kind": kind}
            for name, metric in (("Spearman", spearman), ("Pearson", pearson)):
                yield result(f"{name}, {kind}", float(metric(ratings, found)), "", config)

    yield from printed(correlations())


FLAGS = {
    **shared_flags("json", "seq_length", precision="fp32"),
    "model_dir": (REQUIRED, "The model's directory."),
    "sts_file": (REQUIRED, "A file of the STS benchmark."),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
