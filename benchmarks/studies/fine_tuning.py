"""Fine-tunes here and as transformers' programs do, from the same weights.

    python -m benchmarks.studies.fine_tuning --task=sts-b --model_dir=all-MiniLM-L6-v2 \\
        --train_file=sts-train.csv --dev_file=sts-dev.csv --output_dir=sts --json=sts.json
    python -m benchmarks.studies.fine_tuning --task=ner --model_dir=all-MiniLM-L6-v2 \\
        --train_file=train.conll --dev_file=dev.conll --output_dir=ner --json=ner.json

``--task`` is one of GLUE's, ``table`` for a table of one's own (``--table`` has its settings), or
``ner``. ``ours`` is run_classifier.py or run_ner.py with its defaults, but in float32;
``ours-by-length`` is the same with batches by length, ``ours-uncorrected`` with Adam as in
google-research/bert, without bias correction, ``ours-same-optimizer`` with the optimizer's settings
of transformers, and ``ours-auto`` with the precision that the scripts choose for the processor.
``transformers`` is the recipe of the library's run_glue.py and run_ner.py (see
transformers_recipes.py) in float32, ``transformers-malloc`` the same with glibc keeping large
blocks, and ``transformers-bf16-malloc`` that with products in bfloat16. All have the learning rate,
batches, epochs and length of the flags.

For every seed, programs take turns, each in a process of its own; finished ones are kept, so that
more seeds can be added. Sequences per second are those of the updates after start-up. The score is
the task's first metric, by the same rules for all.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, print_table, ratio_result, spread_result
from benchmarks.script import (
    REQUIRED,
    known_names,
    run_benchmark,
    shared_flags,
    threads_from_flags,
    whole_numbers,
)
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found, processor_seconds, run_in_process
from benchmarks.speed.subjects import MALLOC, OURS, Subject, by_name
from benchmarks.speed.turns import rotated
from benchmarks.studies.fine_tuning_jobs import NER, TABLE, FineTuningJob, train_ours
from bert_tf.tasks.classification.glue import GLUE_TASKS
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, read_json, require_file, write_json

_PEER = "benchmarks.studies.transformers_recipes"

SUBJECTS = by_name(
    Subject("ours", OURS),
    Subject("ours-by-length", OURS, {"length_buckets": True}),
    Subject("ours-uncorrected", OURS, {"adam_bias_correction": False}),
    Subject("ours-same-optimizer", OURS, {"warmup_proportion": 0.0, "weight_decay": 0.0}),
    Subject("ours-auto", OURS, {"precision": "auto"}),
    Subject("transformers", _PEER, {"precision": "fp32"}),
    Subject("transformers-malloc", _PEER, {"precision": "fp32"}, environment=MALLOC),
    Subject("transformers-bf16-malloc", _PEER, {"precision": "bf16"}, environment=MALLOC),
)


def measure() -> Iterator[Result]:
    """Runs the missing trainings, and compares all."""
    values = flags.FLAGS
    seeds = whole_numbers("seeds", least=0)
    subjects = [SUBJECTS[name] for name in known_names("subjects", SUBJECTS)]
    root = make_output_dir(values.output_dir, flag="output_dir")
    files = {
        name: str(require_file(values[name].value, flag=name).resolve())
        for name in ("train_file", "dev_file")
    }
    job = FineTuningJob(
        task=values.task,
        table=_table_settings(values.table),
        model_dir=str(Path(values.model_dir).resolve()),
        **files,
        learning_rate=values.learning_rate,
        batch_size=values.batch_size,
        epochs=values.epochs,
        seq_length=values.seq_length,
        seed=0,
        threads=threads_from_flags(),
    )
    print(machine_line(), flush=True)
    found: dict[str, list[Found]] = {subject.name: [] for subject in subjects}
    for turn, seed in enumerate(seeds):
        for subject in rotated(subjects, turn):
            job = dataclasses.replace(job, seed=seed)
            found[subject.name].append(_once(subject, job, root))
    yield from _results(found, {**dataclasses.asdict(job), "seeds": seeds})


def _table_settings(given: str) -> dict[str, Any]:
    try:
        return dict(json.loads(given))
    except ValueError:
        raise UserError(
            f"--table={given} is not a JSON object; give one such as "
            '\'{"text_column": "text", "multi_label": true}\'.'
        ) from None


def _once(subject: Subject, job: FineTuningJob, root: Path) -> Found:
    """The findings of a training, unless it was done before."""
    path = root / f"{subject.name}-seed{job.seed}"
    kept = path.with_name(f"{path.name}.json")
    if kept.exists():
        return read_json(kept, what="findings")
    load, started = ForeignLoad(), processor_seconds()
    found = (
        train_ours(job, subject.settings, path)
        if subject.is_ours
        else run_in_process(subject, dataclasses.asdict(job), "train")
    )
    found["cpu_seconds"] = processor_seconds() - started
    found["foreign_share"] = load.share()
    write_json(kept, found)
    print(
        f"{subject.name}, seed {job.seed}: {100 * found['score']:.2f} %, "
        f"{found['sequences_per_second']:.4g} sequences/s",
        flush=True,
    )
    return found


def _results(found: Mapping[str, Sequence[Found]], config: Mapping[str, Any]) -> Iterator[Result]:
    """The rates with their ratios, and the scores, all with their turns."""
    results = []
    for name, runs in found.items():
        described = {**config, "others_share_of_machine": [run["foreign_share"] for run in runs]}
        figures = {
            "training": ([run["sequences_per_second"] for run in runs], "sequences/s"),
            "CPU": ([run["cpu_seconds"] for run in runs], "s"),
            "score": ([100 * run["score"] for run in runs], "%"),
        }
        results += [
            spread_result(what, taken, unit, described, name)
            for what, (taken, unit) in figures.items()
        ]
    print_table(results)
    for name, runs in found.items():
        scores = [100 * run["score"] for run in runs]
        deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{name}: {statistics.fmean(scores):.2f} ± {deviation:.2f} %", flush=True)
    yield from results
    for name, runs in found.items():
        if name != "ours" and "ours" in found:
            for what in ("sequences_per_second", "cpu_seconds"):
                above, below = ([run[what] for run in each] for each in (found["ours"], runs))
                yield ratio_result(f"{what}, ours to {name}", above, below, config)


FLAGS = {
    **shared_flags("json", "seq_length", "threads", batch_size=32),
    "task": ((*GLUE_TASKS, TABLE, NER), "What is learned."),
    "table": ("{}", "Settings of a table, as a JSON object."),
    "subjects": (["ours", "transformers"], f"Programs, of {', '.join(SUBJECTS)}."),
    "model_dir": (REQUIRED, "The weights to start from, in Hugging Face's format."),
    "train_file": (REQUIRED, "The training set, as the scripts' --train_file."),
    "dev_file": (REQUIRED, "The development set, to score."),
    "output_dir": (REQUIRED, "Directory of our runs and of all findings."),
    "seeds": (["1", "2", "3", "4", "5"], "Seeds; each is a turn."),
    "learning_rate": (5e-5, "The highest rate of all trainings."),
    "epochs": (3.0, "Passes over the training file."),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
