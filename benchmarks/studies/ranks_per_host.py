"""Compares several ranks on a host with one process with as many threads, at equal global batch.

    python -m benchmarks.studies.ranks_per_host --json=ranks_per_host.json

Both sides take turns, each time in a new job: one process with ``--ranks`` threads, and that many
ranks with one thread each, in every setting of ``--settings``. The ratio of their speeds is broken
down: an update without communication on all ranks at once, compared with the one process, is the
price of separate ranks; the rest is communication.

docs/howto/many_machines.md has the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from absl import flags

from benchmarks.communication import cases as kinds
from benchmarks.communication.cases import Case
from benchmarks.communication.rank_jobs import Job, Measured, run_on_one_host
from benchmarks.results import Result, printed, ratio_result, spread_result
from benchmarks.script import known_names, run_benchmark, shared_flags
from bert_tf.model.config import BertConfig

# Four of BERT-base's layers at two thirds of their width: products dominate an update.
NETWORK = BertConfig(
    vocab_size=30522,
    hidden_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=2048,
    type_vocab_size=2,
)
_UPDATE, _COMPUTE, _COMMUNICATION = (
    Case(kind) for kind in (kinds.DELAYED, kinds.COMPUTE, kinds.COMMUNICATION)
)
_ONE_PROCESS = "one process"


# What mpirun binds ranks to, and flags of update_time.
SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "unbound": ("none", {}),
    "core": ("core", {}),
    "cycle_0.1_ms": ("none", {"cycle_time_ms": 0.1}),
    "cycle_5_ms": ("none", {"cycle_time_ms": 5.0}),
    "cycle_20_ms": ("none", {"cycle_time_ms": 20.0}),
}


def measure(
    job: Job, settings: Sequence[str], *, ranks: int, rounds: int
) -> dict[str, dict[Case, list[float]]]:
    """Seconds of each case for ``one process`` and each setting, one value per turn.

    ``job`` is that of one rank. Every round restarts both sides; its turns are appended to those
    of earlier rounds.
    """
    sizes = {name: ranks * job.flags[name] for name in ("micro_batch_size", "num_threads")}
    found: dict[str, dict[Case, list[float]]] = {}

    def add(name: str, measured: Measured) -> None:
        for case, seconds in measured.seconds.items():
            found.setdefault(name, {}).setdefault(case, []).extend(seconds)

    for _ in range(rounds):
        add(_ONE_PROCESS, run_on_one_host(job.with_flags(**sizes), [_UPDATE]))
        for name in settings:
            bind_to, changed = SETTINGS[name]
            cases, of_rank = [_UPDATE, _COMPUTE, _COMMUNICATION], job.with_flags(**changed)
            add(name, run_on_one_host(of_rank, cases, ranks=ranks, bind_to=bind_to))
    return found


def results_of(
    found: Mapping[str, Mapping[Case, Sequence[float]]],
    *,
    sequences: int,
    config: Mapping[str, object],
) -> Iterator[Result]:
    """Sequences per second of both sides, the ranks' ratio, and the parts of their time.

    ``sequences`` is the number per update, the same on both sides.
    """
    alone = found[_ONE_PROCESS][_UPDATE]
    rates = [sequences / seconds for seconds in alone]
    yield spread_result("one process", rates, "sequences/s", config)
    for name, seconds in found.items():
        if name == _ONE_PROCESS:
            continue
        bind_to, changed = SETTINGS[name]
        described = {**config, "bind_to": bind_to, **changed}
        rates = [sequences / taken for taken in seconds[_UPDATE]]
        yield spread_result(f"ranks, {name}", rates, "sequences/s", described)
        update, communication = seconds[_UPDATE], seconds[_COMMUNICATION]
        for part, *compared in (
            ("ranks to one process", alone, update),
            ("ranks without communication to one process", alone, seconds[_COMPUTE]),
            ("allreduce alone to an update", communication, update),
        ):
            yield ratio_result(f"{part}, {name}", *compared, described)


def run() -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    values = flags.FLAGS
    settings, job = known_names("settings", SETTINGS), Job.from_flags(NETWORK)
    found = measure(job, settings, ranks=values.ranks, rounds=values.rounds)
    config = job.described(ranks=values.ranks)
    sequences = values.ranks * job.flags["micro_batch_size"]
    yield from printed(results_of(found, sequences=sequences, config=config))


FLAGS = {
    "ranks": (2, "Number of ranks, and of threads of the one process.", 2),
    "settings": (["unbound", "core"], f"Settings, of {', '.join(SETTINGS)}."),
    "rounds": (3, "Jobs per side.", 1),
    **shared_flags("bert_config_file", "micro_batch_size", "seq_length", "precision", "json"),
    **shared_flags(turns=2, micro_batches_a_turn=4),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, run)
