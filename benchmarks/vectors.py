"""Compares vectors of texts here with google-research/bert's and sentence-transformers' programs.

    python -m bert_tf.commands.convert --input=all-MiniLM-L6-v2 --output_dir=minilm --format=google
    python -m benchmarks.vectors --model_dir=minilm --input_file=texts.txt \\
        --google_bert_dir=bert --subjects=ours-lines,ours-tokens,ours-texts,google-bert
    python -m benchmarks.vectors --model_dir=all-MiniLM-L6-v2 --input_file=texts.txt \\
        --subjects=ours,sentence-transformers

``google-bert`` is extract_features.py as it stands, on the names of TensorFlow 1 that TensorFlow
2.15 lacks; ``ours-lines``, ``ours-tokens`` (half precision) and ``ours-texts`` (means) are whole
runs of run_features.py. Both are timed after their imports, reading of weights and writing of files
included, with google's usual layers -1,-2,-3,-4. ``ours`` and ``sentence-transformers`` encode
texts to normalised means in float32 with a model in memory, after a batch that does not count;
``ours-auto`` chooses its precision by measurement, ``sentence-transformers-bf16`` has bfloat16. The
texts are ``--sequences`` lines, spread over the file. The procedure is that of benchmarks.step.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from absl import flags

from benchmarks.results import Result
from benchmarks.script import (
    REQUIRED,
    run_benchmark,
    shared_flags,
    start_tensorflow,
    threads_from_flags,
)
from benchmarks.speed.comparison import Figures, compare, comparison_flags
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import Subject, by_name
from bert_tf.model_directory.complete import find_model
from bert_tf.util.files import read_lines

_MODULE = "benchmarks.vectors"
_MIB = 1 << 20
_WARM_UP = 32

SUBJECTS = by_name(
    Subject("ours-lines", _MODULE, {"program": "features", "name": "vectors.jsonl"}),
    Subject("ours-tokens", _MODULE, {"program": "features", "name": "vectors.npy", "half": True}),
    Subject("ours-texts", _MODULE, {"program": "features", "name": "vectors.npy", "mean": True}),
    Subject("google-bert", _MODULE, {"program": "extract_features", "name": "vectors.jsonl"}),
    Subject("ours", _MODULE, {"program": "encoder", "precision": "fp32"}),
    Subject("ours-auto", _MODULE, {"program": "encoder", "precision": "auto"}),
    Subject("sentence-transformers", _MODULE, {"program": "sentence_transformers"}),
    Subject(
        "sentence-transformers-bf16",
        _MODULE,
        {"program": "sentence_transformers", "model_kwargs": {"torch_dtype": "bfloat16"}},
    ),
)


@dataclasses.dataclass(frozen=True)
class VectorJob:
    """The task for all subjects; a subject's process receives it as JSON.

    Attributes:
      model_dir: the model.
      texts: what is encoded.
      max_seq_length, batch_size: the same for all.
      threads: cores to use.
    """

    model_dir: str
    texts: tuple[str, ...]
    max_seq_length: int
    batch_size: int
    threads: int


def encode(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times a subject's program; also returns the size of its output file."""
    names = [field.name for field in dataclasses.fields(VectorJob)]
    job, settings = VectorJob(**{name: request[name] for name in names}), request["settings"]
    with tempfile.TemporaryDirectory() as directory:
        run = _PROGRAMS[settings["program"]](job, settings, Path(directory))
        load, started, cpu_started = ForeignLoad(), time.perf_counter(), time.process_time()
        run()
        found = {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
            "foreign_share": load.share(),
        }
        output = Path(directory, settings.get("name", "none"))
        return {**found, "bytes": os.path.getsize(output) if output.exists() else 0}


def _input_file(job: VectorJob, directory: Path) -> Path:
    path = directory / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in job.texts), encoding="utf-8")
    return path


def _features(job: VectorJob, settings: Mapping[str, Any], directory: Path) -> Callable[[], object]:
    start_tensorflow()
    from bert_tf.tasks.vectors import run as vectors
    from bert_tf.tasks.vectors.settings import define_feature_flags, feature_settings

    values = flags.FlagValues()
    define_feature_flags(values)
    values(
        [
            "run_features.py",
            f"--init_checkpoint={job.model_dir}",
            f"--input_file={_input_file(job, directory)}",
            f"--output_file={directory / settings['name']}",
            f"--max_seq_length={job.max_seq_length}",
            f"--batch_size={job.batch_size}",
            f"--num_threads={job.threads}",
            *(["--pooling=mean"] if settings.get("mean") else ["--layers=-1,-2,-3,-4"]),
            *(["--output_dtype=float16"] if settings.get("half") else []),
        ]
    )
    made = feature_settings(values)
    return lambda: vectors.run(made)


def _extract_features(
    job: VectorJob, settings: Mapping[str, Any], directory: Path
) -> Callable[[], object]:
    import tensorflow.compat.v1 as tf

    from benchmarks.speed.google_bert import TensorFlow1, as_tensorflow_1

    checkout = Path(settings["google_bert_dir"])
    tf.disable_v2_behavior()
    with as_tensorflow_1(checkout):
        # The estimator of TPUs, which runs on CPUs, too.
        cast(TensorFlow1, sys.modules["tensorflow"]).contrib.tpu = tf.estimator.tpu
        script = importlib.import_module("extract_features")
    script.FLAGS(
        [
            "extract_features.py",
            f"--input_file={_input_file(job, directory)}",
            f"--output_file={directory / settings['name']}",
            f"--vocab_file={job.model_dir}/vocab.txt",
            f"--bert_config_file={job.model_dir}/bert_config.json",
            f"--init_checkpoint={job.model_dir}/bert_model.ckpt",
            f"--max_seq_length={job.max_seq_length}",
            f"--batch_size={job.batch_size}",
        ]
    )
    return lambda: script.main([])


def _encoder(job: VectorJob, settings: Mapping[str, Any], _: Path) -> Callable[[], object]:
    start_tensorflow()
    from bert_tf.inference.settings import chosen_options
    from bert_tf.tasks.vectors.encoder import TextEncoder
    from bert_tf.tasks.vectors.settings import VectorSettings

    model = find_model(job.model_dir)
    options, _ = chosen_options(model.config, precision=settings["precision"])
    encoder = TextEncoder(
        model,
        VectorSettings(pooling="mean", normalize=True),
        max_seq_length=job.max_seq_length,
        batch_size=job.batch_size,
        options=options,
        threads=job.threads,
    )
    encoder.encode(job.texts[:_WARM_UP])
    return lambda: encoder.encode(job.texts)


def _sentence_transformers(
    job: VectorJob, settings: Mapping[str, Any], _: Path
) -> Callable[[], object]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(job.threads)
    model = SentenceTransformer(
        job.model_dir, device="cpu", model_kwargs=settings.get("model_kwargs")
    )
    model.max_seq_length = job.max_seq_length
    texts = list(job.texts)

    def run(encoded: list[str]) -> object:
        return model.encode(
            encoded,
            batch_size=job.batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
        )

    run(texts[:_WARM_UP])
    return lambda: run(texts)


_PROGRAMS = {
    "features": _features,
    "extract_features": _extract_features,
    "encoder": _encoder,
    "sentence_transformers": _sentence_transformers,
}


def measure() -> Iterator[Result]:
    """Runs the comparison given by the flags."""
    values = flags.FLAGS
    model = find_model(values.model_dir)
    lines = [line for line in read_lines(values.input_file, flag="input_file") if line.strip()]
    kept = min(values.sequences, len(lines))
    texts = tuple(lines[number * len(lines) // kept] for number in range(kept))
    job = VectorJob(
        model_dir=str(Path(values.model_dir).resolve()),
        texts=texts,
        max_seq_length=values.seq_length,
        batch_size=values.batch_size,
        threads=threads_from_flags(),
    )
    lengths = [min(len(model.tokenizer.encode(text)) + 2, job.max_seq_length) for text in texts]
    config = {
        "network": model.config.to_dict(),
        "sequences": kept,
        "mean_length": sum(lengths) / kept,
        "seq_length": job.max_seq_length,
        "batch_size": job.batch_size,
        "threads": job.threads,
    }

    def figures(found: Found) -> Figures:
        return {
            "vectors": (kept / found["seconds"], "sequences/s"),
            # This holds on a busy machine, too.
            "a CPU second": (kept / found["cpu_seconds"], "sequences"),
            "output": (found["bytes"] / _MIB, "MiB"),
            "peak memory": (found["peak_memory_bytes"] / _MIB, "MiB"),
        }

    yield from compare(SUBJECTS, dataclasses.asdict(job), "encode", figures, config=config)


FLAGS = {
    **comparison_flags(SUBJECTS, "threads", "seq_length"),
    **shared_flags(batch_size=32),
    "model_dir": (REQUIRED, "The model's directory."),
    "input_file": (REQUIRED, "Texts, one per line."),
    "sequences": (500, "Texts to encode.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
