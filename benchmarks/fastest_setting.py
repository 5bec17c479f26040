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
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

from benchmarks.machine import describe_machine, machine_line
from benchmarks.results import Result, ratio_result, spread_result
from benchmarks.script import define_shared_flags, run_benchmark, start_tensorflow
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.turns import rotated
from bert_tf import environment

if TYPE_CHECKING:
    from benchmarks.speed.ours import Settings

AUTO = "auto"


def every_setting(threads: int) -> dict[str, Settings]:
    """What a user can set, by name, auto first; all threads, and half of them."""
    from benchmarks.speed.ours import Settings

    settings = {AUTO: Settings()}
    for count in sorted({threads, max(1, threads // 2)}, reverse=True):
        for precision in ("fp32", "bf16"):
            for native in (True, False):
                form = "native" if native else "tensorflow"
                name = f"{precision}, {form}, threads {count}"
                settings[name] = Settings(precision, native=native, threads=count)
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


def shares(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The rate of auto as a share of each setting's, the median of the turns."""
    return {
        name: statistics.median(other / auto for other, auto in zip(seconds, found[AUTO]))
        for name, seconds in found.items()
    }


def measure() -> Iterator[Result]:
    """Compares the settings of the flags."""
    environment.give_sessions_their_own_threads()
    from benchmarks.speed.ours import running_step

    start_tensorflow()
    job = StepJob.from_flags(PRETRAINING, timed_steps=flags.FLAGS.turns)
    network = dataclasses.replace(job.network, num_hidden_layers=flags.FLAGS.layers)
    job = dataclasses.replace(job, network=network)
    print(machine_line(), flush=True)
    with contextlib.ExitStack() as stack:
        built = {
            name: stack.enter_context(running_step(job, settings))
            for name, settings in every_setting(job.threads).items()
        }
        steps = {name: step for name, (step, _) in built.items()}
        time_in_turn(steps, job.warmup_steps, time.perf_counter)
        found = time_in_turn(steps, job.timed_steps, time.perf_counter)
        chosen = built[AUTO][1]
    yield from _report(job, found, chosen)


def _report(
    job: StepJob, found: Mapping[str, Sequence[float]], chosen: Mapping[str, str]
) -> Iterator[Result]:
    of_setting = shares(found)
    rates = {name: [job.sequences / s for s in seconds] for name, seconds in found.items()}
    print(f"{'':34}{'sequences/s':>12}  {'turns':18}{'auto to it':>12}")
    for name, turns in rates.items():
        spread = f"{min(turns):.4g} to {max(turns):.4g}"
        median = statistics.median(turns)
        print(f"{name:34}{median:12.4g}  {spread:18}{of_setting[name]:12.3f}", flush=True)
    best = min((name for name in found if name != AUTO), key=of_setting.__getitem__)
    print(
        f"auto took {chosen['precision']}, {chosen['operations']} operations and "
        f"{chosen['threads']} threads: "
        f"{of_setting[best]:.1%} of the rate of the best setting by hand ({best})"
    )
    config = {**job.to_json(), **describe_machine(), "auto": dict(chosen)}
    for name, turns in rates.items():
        yield spread_result(name, turns, "sequences/s", config)
        yield ratio_result(f"auto to {name}", rates[AUTO], turns, config)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.fastest_setting``."""
    shared = ("bert_config_file", "batch_size", "seq_length", "predictions", "threads", "json")
    define_shared_flags(*shared, warmup_steps=2, turns=9)
    flags.DEFINE_integer("layers", 2, "Of the network: all settings share memory.", lower_bound=1)


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
