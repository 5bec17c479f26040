"""Measures how many times faster the input pipeline is than the training it feeds.

    python -m benchmarks.input_pipeline --input_file=records --batch_size=16

Compares sequences per second of the training input alone with those of a training step:
``--training_sequences_per_second`` from a run's log if that is known, otherwise only the matrix
products of a BERT-base step, forward and backward. No training on this machine can be faster than
these, so the true ratio is higher.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from benchmarks.results import Result, printed, result
from benchmarks.script import REQUIRED, run_benchmark, shared_flags
from benchmarks.speed.batches import masked_words
from benchmarks.speed.process import run_in_process
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import BERT_BASE, SUBJECTS
from bert_tf.records.info import inspect_records
from bert_tf.util.environment import available_cores
from bert_tf.util.files import expand_record_files

_WARMUP_STEPS, _STEPS = 3, 3


def pipeline_rate(files: list[Path], *, batch_size: int, seconds: float) -> tuple[float, object]:
    """Sequences per second of the training input, and what is known about the records."""
    import tensorflow.compat.v1 as tf

    from bert_tf.config.masking import MaskingOptions
    from bert_tf.input import pipeline
    from bert_tf.input.batches import user_errors
    from bert_tf.input.masking import MaskingSettings
    from bert_tf.input.order import GlobalBatchSlice
    from bert_tf.records.tfrecord import RecordSet

    info = inspect_records(files)
    masking = None
    if not info.masked:
        predictions = masked_words(info.seq_length)
        masks = MaskingOptions(max_predictions_per_seq=predictions)
        masking = MaskingSettings(masks, info.vocab_size, info.special_ids)
    with tf.Graph().as_default(), tf.Session() as session, user_errors():
        records = pipeline.PretrainingRecords(
            RecordSet(files),
            info,
            vocab_size=info.vocab_size or BERT_BASE.vocab_size,
            type_vocab_size=BERT_BASE.type_vocab_size,
            masking=masking,
        )
        batch = GlobalBatchSlice(batch_size)
        dataset = pipeline.training_dataset(records, batch, start_position=0, seed=1)
        # Consume in the graph, as training does: fetching would add a copy to numpy.
        features = tf.data.make_one_shot_iterator(dataset).get_next()
        step = tf.group(*features.values())
        for _ in range(_WARMUP_STEPS):
            session.run(step)
        start, steps = time.perf_counter(), 0
        while steps < _STEPS or time.perf_counter() - start < seconds:
            session.run(step)
            steps += 1
        return batch_size * steps / (time.perf_counter() - start), info


def measure() -> Iterator[Result]:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    files = expand_record_files(values.input_file, flag="input_file")
    ours, info = pipeline_rate(files, batch_size=values.batch_size, seconds=values.seconds)
    training, subject, name = values.training_sequences_per_second, "ours", "training"
    if training is None:
        subject, name = "limit-fp32", "matrix products of BERT-base"
        job = StepJob(
            BERT_BASE,
            PRETRAINING,
            values.batch_size,
            info.seq_length,
            predictions=info.max_predictions or masked_words(info.seq_length),
            threads=available_cores(),
            warmup_steps=_WARMUP_STEPS,
            steps=_STEPS,
        )
        found = run_in_process(SUBJECTS[subject], job.to_json(), "train")
        training = job.sequences / found["seconds"]
    config = {
        "batch_size": values.batch_size,
        "max_seq_length": info.seq_length,
        "masking": "stored" if info.masked else "at training time",
        "records": info.num_records,
    }
    rows = [
        result("input pipeline", ours, "sequences/s", config),
        result(name, training, "sequences/s", config, subject),
        result(f"input pipeline / {name}", ours / training, "ratio", config),
    ]
    yield from printed(rows)


FLAGS = {
    "input_file": (REQUIRED, "Training records: files, globs or directories."),
    "seconds": (5.0, "Duration of the input measurement."),
    "training_sequences_per_second": (float, "Rate of BERT-base on this machine, if known."),
    **shared_flags("batch_size", "json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
