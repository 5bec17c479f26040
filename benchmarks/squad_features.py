"""How fast SQuAD features are made here, in google-research/bert and in transformers.

    python -m benchmarks.squad_features --data_file=train-v1.1.json --vocab_file=vocab.txt \
        --google_bert_dir=bert

Training features a second on one thread, from questions in memory and an empty tokenizer cache.
Ours end as records on the disk, checksums and manifest included. Google's (a checkout of
google-research/bert) are those of its convert_examples_to_features, transformers' are the windows
of its fast tokenizer with offsets, before answers are looked for; neither writes anything, and
neither has to open the vocabulary in the time that is taken. ``--doc_stride`` is the step from a
window to the next one; for transformers, which takes the overlap, it is the same number.

Each turn of a subject is a separate process, and the subjects alternate, so that a machine that
slows down slows all of them. Figures are medians.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from absl import flags

from benchmarks.results import Result
from benchmarks.script import REQUIRED, run_benchmark
from benchmarks.speed.comparison import compare, comparison_flags
from benchmarks.speed.subjects import MAKING_FEATURES
from bert_tf.files import require_file
from bert_tf.squad.examples import read_squad
from bert_tf.squad.windows import WindowSettings

_WINDOWS = dataclasses.asdict(WindowSettings())


def measure() -> Iterator[Result]:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    files = {n: require_file(values[n].value, flag=n) for n in ("data_file", "vocab_file")}
    windows = WindowSettings(**{name: values[name].value for name in _WINDOWS})
    windows.validate()
    job = {
        **{name: str(path.resolve()) for name, path in files.items()},
        "windows": dataclasses.asdict(windows),
        "do_lower_case": values.do_lower_case,
        "version_2_with_negative": values.version_2_with_negative,
    }
    squad = read_squad(
        files["data_file"],
        flag="data_file",
        version_2_with_negative=values.version_2_with_negative,
        needs_answers=True,
    )
    yield from compare(
        MAKING_FEATURES,
        job,
        "make_features",
        lambda found: {"SQuAD features": (found["features"] / found["seconds"], "features/s")},
        config={
            "data_file": files["data_file"].name,
            "questions": len(squad.examples),
            **job["windows"],
            "threads": 1,
        },
    )


FLAGS = {
    **comparison_flags(MAKING_FEATURES),
    "data_file": (REQUIRED, "SQuAD file with answers."),
    "vocab_file": (REQUIRED, "WordPiece vocabulary (vocab.txt)."),
    "do_lower_case": (True, "Lower-case the text, for uncased models."),
    "version_2_with_negative": (False, "The file has unanswerable questions."),
    **{name: (length, "As in run_squad.py.") for name, length in _WINDOWS.items()},
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
