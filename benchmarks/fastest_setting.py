"""How good --precision=auto is: compares it with every setting of the pre-training step by hand.

Checks the row of ``bert_tf/tuning/hardware.py`` for the processor that it runs on.

    python -m benchmarks.fastest_setting --json=fastest_setting.json

The settings are precision x operations x threads. All run in one process and take turns, so that
disturbances of the machine affect all alike; ratios are taken turn by turn. Layers are alike, so
``--layers`` of them suffice for a comparison.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, median_ratio, print_table, result
from benchmarks.script import run_benchmark, shared_flags, start_tensorflow
from benchmarks.speed.comparison import subject_results
from benchmarks.speed.process import Found
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import OURS, Subject
from benchmarks.speed.turns import take_turns

AUTO = "auto"


def every_setting(threads: int) -> list[Subject]:
    """The settings that a user can choose, auto first; with all threads and with half of them."""
    settings = [Subject(AUTO, OURS)]
    for count in sorted({threads, max(1, threads // 2)}, reverse=True):
        for precision in ("fp32", "bf16"):
            for native in (True, False):
                name = f"{precision}, {'native' if native else 'tensorflow'}, threads {count}"
                how = {"precision": precision, "native": native, "threads": count}
                settings.append(Subject(name, OURS, how))
    return settings


def measure() -> Iterator[Result]:
    """Compares the settings given by the flags."""
    # Each session is to have its own number of threads, not that of the first one.
    os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
    from benchmarks.speed.ours import Settings, running_step

    start_tensorflow()
    job = StepJob.from_flags(PRETRAINING, steps=flags.FLAGS.turns)
    network = dataclasses.replace(job.network, num_hidden_layers=flags.FLAGS.layers)
    job = dataclasses.replace(job, network=network)
    settings = every_setting(job.threads)
    print(machine_line(), flush=True)
    with contextlib.ExitStack() as stack:
        steps = {
            subject.name: stack.enter_context(running_step(job, Settings(**subject.settings)))
            for subject in settings
        }

        def time_step(subject: Subject) -> Found:
            start = time.perf_counter()
            steps[subject.name].run()
            return {"seconds": time.perf_counter() - start, "foreign_share": None}

        take_turns(settings, time_step, turns=job.warmup_steps)
        found = take_turns(settings, time_step, turns=job.steps).found
        chosen = steps[AUTO].chosen
    rows = subject_results(
        settings,
        found,
        lambda turn: {"pre-training step": (job.sequences / turn["seconds"], "sequences/s")},
        config={**job.to_json(), "auto": chosen},
    )
    print_table(rows, to=AUTO)
    shares = {row["subject"]: median_ratio(rows[0], row) for row in rows}
    best = min((name for name in shares if name != AUTO), key=shares.__getitem__)
    print(
        f"auto took {chosen['precision']}, {chosen['operations']} operations and "
        f"{chosen['threads']} threads: "
        f"{shares[best]:.1%} of the rate of the best setting by hand ({best})"
    )
    yield from rows
    for name, share in shares.items():
        yield result(f"auto to {name}", share, "ratio", rows[0]["config"], AUTO)


FLAGS = {
    **shared_flags("bert_config_file", "batch_size", "seq_length", "predictions", "threads"),
    **shared_flags("json", warmup_steps=2, turns=9),
    "layers": (2, "Layers of the network, since all settings share memory.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
