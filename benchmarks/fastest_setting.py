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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.rank_jobs import Result, ratio_result, read_network, spread_result
from benchmarks.script import run_benchmark
from benchmarks.speed.comparison import check_length
from benchmarks.speed.report import machine_line
from benchmarks.speed.steps import PRETRAINING, StepJob
from benchmarks.speed.subjects import BERT_BASE
from bert_tf import environment
from bert_tf.files import write_json

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
    names = list(steps)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
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


def measure() -> None:
    """Compares the settings of the flags."""
    environment.give_sessions_their_own_threads()
    import tensorflow.compat.v1 as tf

    from benchmarks.speed.ours import running_step

    values = flags.FLAGS
    environment.quiet_tensorflow(verbose=False)
    tf.disable_eager_execution()
    network = read_network(values.bert_config_file, BERT_BASE)
    check_length(values.seq_length, network.max_position_embeddings)
    job = StepJob(
        task=PRETRAINING,
        network=dataclasses.replace(network, num_hidden_layers=values.layers),
        batch_size=values.batch_size,
        seq_length=values.seq_length,
        predictions=values.predictions,
        accumulation_steps=1,
        threads=values.threads or environment.available_cores(),
        warmup_steps=values.warmup_steps,
        timed_steps=values.turns,
    )
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
    _report(job, found, chosen, values.json)


def _report(
    job: StepJob, found: Mapping[str, Sequence[float]], chosen: Mapping[str, str], path: str | None
) -> None:
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
    if path:
        config = {**job.to_json(), **describe_machine(), "auto": dict(chosen)}
        results: list[Result] = []
        for name, turns in rates.items():
            results.append(spread_result(name, turns, "sequences/s", config))
            results.append(ratio_result(f"auto to {name}", rates[AUTO], turns, config))
        write_json(path, results)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.fastest_setting``."""
    flags.DEFINE_string("bert_config_file", None, "The network; BERT-base if not given.")
    flags.DEFINE_integer("layers", 2, "Of the network: all settings share memory.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 16, "Sequences of a step.", lower_bound=1)
    flags.DEFINE_integer("seq_length", 128, "Tokens of a sequence.", lower_bound=2)
    flags.DEFINE_integer("predictions", 20, "Masked words of a sequence.", lower_bound=1)
    flags.DEFINE_integer("threads", None, "Cores to use; all if not given.", lower_bound=1)
    flags.DEFINE_integer("warmup_steps", 2, "Steps before the timed ones.", lower_bound=1)
    flags.DEFINE_integer("turns", 9, "Timed steps of every setting.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where to write the results.")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
