"""What --precision=auto is worth: every setting of the pre-training step by hand, and auto.

    python -m benchmarks.fastest_setting --json=fastest_setting.json

The settings are precision x operations x threads. All are in one process and take a step in turn,
so that what else the machine does hits all alike: ratios are taken turn by turn. Precisions that
the processor only emulates take part too: that they are slow is what auto has to find out. Layers
are alike, and ``--layers`` of them are enough to compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, median_ratio, print_table, result, spread_result
from benchmarks.script import run_benchmark, shared_flags, start_tensorflow
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.turns import rotated
from bert_tf import environment

AUTO = "auto"


def every_setting(threads: int) -> dict[str, dict[str, Any]]:
    """What a user can set, by name, auto first; all threads, and half of them.

    The values are settings of ``benchmarks.speed.ours``.
    """
    settings: dict[str, dict[str, Any]] = {AUTO: {}}
    for count in sorted({threads, max(1, threads // 2)}, reverse=True):
        for precision in ("fp32", "bf16"):
            for native in (True, False):
                name = f"{precision}, {'native' if native else 'tensorflow'}, threads {count}"
                settings[name] = {"precision": precision, "native": native, "threads": count}
    return settings


def time_in_turn(
    steps: Mapping[str, Callable[[], object]], turns: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of each step in each turn; another one begins each time, and none warms up."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns):
        for name in rotated(list(steps), turn):
            started = clock()
            steps[name]()
            found[name].append(clock() - started)
    return found


def measure() -> Iterator[Result]:
    """Compares the settings of the flags."""
    environment.give_sessions_their_own_threads()
    from benchmarks.speed.ours import Settings, running_step

    start_tensorflow()
    job = StepJob.from_flags(PRETRAINING, steps=flags.FLAGS.turns)
    network = dataclasses.replace(job.network, num_hidden_layers=flags.FLAGS.layers)
    job = dataclasses.replace(job, network=network)
    print(machine_line(), flush=True)
    with contextlib.ExitStack() as stack:
        built = {
            name: stack.enter_context(running_step(job, Settings(**settings)))
            for name, settings in every_setting(job.threads).items()
        }
        steps = {name: step.run for name, step in built.items()}
        time_in_turn(steps, job.warmup_steps, time.perf_counter)
        found = time_in_turn(steps, job.steps, time.perf_counter)
        chosen = built[AUTO].chosen
    yield from _report(job, found, chosen)


def _report(
    job: StepJob, found: Mapping[str, Sequence[float]], chosen: Mapping[str, str]
) -> Iterator[Result]:
    config = {**job.to_json(), "auto": dict(chosen)}
    rates = {}
    for name, seconds in found.items():
        turns = [job.sequences / second for second in seconds]
        rates[name] = spread_result("pre-training step", turns, "sequences/s", config, name)
    print_table(rates.values(), to=AUTO)
    shares = {name: median_ratio(rates[AUTO], row) for name, row in rates.items()}
    best = min((name for name in rates if name != AUTO), key=shares.__getitem__)
    print(
        f"auto took {chosen['precision']}, {chosen['operations']} operations and "
        f"{chosen['threads']} threads: "
        f"{shares[best]:.1%} of the rate of the best setting by hand ({best})"
    )
    yield from rates.values()
    for name, share in shares.items():
        yield result(f"auto to {name}", share, "ratio", config, AUTO)


FLAGS = {
    **shared_flags("bert_config_file", "batch_size", "seq_length", "predictions", "threads"),
    **shared_flags("json", warmup_steps=2, turns=9),
    "layers": (2, "Of the network: all settings share memory.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
