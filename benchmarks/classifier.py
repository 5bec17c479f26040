"""Latency of a classifier in memory, here and in transformers: texts in, labels out.

    python -m bert_tf.commands.convert --input=classes --output_dir=hub --format=huggingface
    python -m benchmarks.classifier --model_dir=hub --input_file=texts.txt --batch_sizes=1,8

Both programs open the same directory, tokenize, pad to the longest text of the batch and return a
label and its probability for each. Reports texts per second and percentiles over the calls of a
turn, one call at a time on all cores. The texts are ``--sequences`` lines, spread over the file;
every call takes the next ones, after calls that do not count. ``ours-auto`` uses the fastest
precision of this machine. The procedure is that of benchmarks.step.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.inference import PERCENTILES
from benchmarks.results import Result
from benchmarks.script import (
    REQUIRED,
    run_benchmark,
    threads_from_flags,
    whole_numbers,
)
from benchmarks.speed.comparison import Figures, compare, comparison_flags
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import Subject, by_name
from bert_tf.util.files import read_lines

_MODULE = "benchmarks.classifier"
_WARM_UP = 3

SUBJECTS = by_name(
    Subject("ours", _MODULE, {"program": "ours", "precision": "fp32"}),
    Subject("ours-auto", _MODULE, {"program": "ours", "precision": "auto"}),
    Subject("transformers", _MODULE, {"program": "transformers"}),
)


@dataclasses.dataclass(frozen=True)
class ClassifierJob:
    """The task for all subjects; a subject's process receives it as JSON.

    Attributes:
      model_dir: a classifier in Hugging Face's format.
      texts: what is classified.
      max_seq_length: the same for all.
      batch_sizes: texts per call.
      threads: cores to use.
    """

    model_dir: str
    texts: tuple[str, ...]
    max_seq_length: int
    batch_sizes: tuple[int, ...]
    threads: int


def classify(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times a subject's calls for each batch size."""
    names = [field.name for field in dataclasses.fields(ClassifierJob)]
    job, settings = ClassifierJob(**{name: request[name] for name in names}), request["settings"]
    predict = PROGRAMS[settings["program"]](job, settings)
    seconds, load = [], ForeignLoad()
    for size in job.batch_sizes:
        batches = [job.texts[n : n + size] for n in range(0, len(job.texts), size)]
        for batch in batches[:_WARM_UP]:
            predict(batch)
        found = []
        for batch in batches:
            started = time.perf_counter()
            predict(batch)
            found.append(time.perf_counter() - started)
        seconds.append(found)
    return {"call_seconds": seconds, "foreign_share": load.share()}


# The labels of texts with their probabilities.
Predict = Callable[[Sequence[str]], list[tuple[str, float]]]


def _ours(job: ClassifierJob, settings: Mapping[str, Any]) -> Predict:
    from bert_tf.serving.load import load_model

    model = load_model(
        job.model_dir,
        precision=settings["precision"],
        threads=job.threads,
        max_seq_length=job.max_seq_length,
    )
    return lambda texts: [(one.label, one.probability) for one in model.predict(list(texts))]


def _transformers(job: ClassifierJob, settings: Mapping[str, Any]) -> Predict:
    del settings
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(job.model_dir)
    network = transformers.BertForSequenceClassification.from_pretrained(job.model_dir).eval()

    def predict(texts: Sequence[str]) -> list[tuple[str, float]]:
        inputs = tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=job.max_seq_length,
            return_tensors="pt",
        )
        with torch.inference_mode():
            best = network(**inputs).logits.softmax(-1).max(-1)
        labels = [network.config.id2label[number] for number in best.indices.tolist()]
        return list(zip(labels, best.values.tolist()))

    return predict


PROGRAMS = {"ours": _ours, "transformers": _transformers}


def call_figures(job: ClassifierJob, number: int, found: Found) -> Figures:
    """Texts per second and percentiles of a turn, for one of the job's batch sizes."""
    seconds, name = found["call_seconds"][number], f"batch of {job.batch_sizes[number]}"
    latencies = {
        f"{name}, p{p}": (float(np.percentile(seconds, p)) * 1e3, "ms") for p in PERCENTILES
    }
    return {name: (len(job.texts) / sum(seconds), "texts/s"), **latencies}


def measure() -> Iterator[Result]:
    """Runs the comparison given by the flags."""
    values = flags.FLAGS
    lines = [line for line in read_lines(values.input_file, flag="input_file") if line.strip()]
    kept = min(values.sequences, len(lines))
    job = ClassifierJob(
        model_dir=str(Path(values.model_dir).resolve()),
        texts=tuple(lines[number * len(lines) // kept] for number in range(kept)),
        max_seq_length=values.seq_length,
        batch_sizes=tuple(whole_numbers("batch_sizes")),
        threads=threads_from_flags(),
    )
    config = {
        "texts": kept,
        "mean_characters": sum(map(len, job.texts)) / kept,
        "seq_length": job.max_seq_length,
        "threads": job.threads,
    }
    sizes = range(len(job.batch_sizes))
    figures = [functools.partial(call_figures, job, number) for number in sizes]
    yield from compare(SUBJECTS, dataclasses.asdict(job), "classify", *figures, config=config)


FLAGS = {
    **comparison_flags(SUBJECTS, "threads", "seq_length"),
    "model_dir": (REQUIRED, "A classifier in Hugging Face's format."),
    "input_file": (REQUIRED, "Texts, one per line."),
    "batch_sizes": (["1", "8"], "Texts per call."),
    "sequences": (100, "Texts to classify.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
