"""Predictions that need no measurement: efficiencies of many GPUs, and published speed-ups."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from benchmarks import communication_model as model
from benchmarks.communication_model import Cluster, Link
from benchmarks.published_speedups import PUBLISHED, V100_LOCAL, V100_RATES
from benchmarks.results import Result, spread_result
from benchmarks.speed.subjects import BERT_BASE
from bert_tf.config.bert_config import BertConfig

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
GPUS_OF_A_HOST = 8
BERT_LARGE = dataclasses.replace(
    BERT_BASE,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
NETWORKS = {"BERT-base": BERT_BASE, "BERT-large": BERT_LARGE}
_SINGLE_BYTES = 4  # of a float32


@dataclasses.dataclass(frozen=True)
class Training:
    """How V100s are taken to train.

    Attributes:
      network: a name of ``NETWORKS``.
      gbit_per_second_of_a_host: what its GPUs share to reach other hosts.
      micro_batch_size: sequences of 128 tokens.
      accumulation_steps: micro batches of an update.
      hierarchical: whether gradients are summed within each host first.
    """

    network: str
    gbit_per_second_of_a_host: float
    micro_batch_size: int
    accumulation_steps: int
    hierarchical: bool

    def efficiency(self, ranks: int) -> float:
        """The share of its speed alone that a GPU keeps; float32 gradients, none of them hidden."""
        compute = self.accumulation_steps * self.micro_batch_size / V100_RATES[self.network]
        remote = Link.from_gbit(self.gbit_per_second_of_a_host, V100_LOCAL.latency_seconds)
        communication = Cluster(GPUS_OF_A_HOST, V100_LOCAL, remote).allreduce_seconds(
            _SINGLE_BYTES * parameters_of(NETWORKS[self.network]),
            ranks,
            hierarchical=self.hierarchical,
        )
        return compute / model.update_seconds(compute, communication)

    def __str__(self) -> str:
        return (
            f"{self.network:11}{self.gbit_per_second_of_a_host:4g} Gbit/s, "
            f"{self.accumulation_steps:3} micro batches, "
            f"{'hierarchical' if self.hierarchical else 'ring'}"
        )


def parameters_of(network: BertConfig) -> int:
    """Weights of a network with its pre-training heads."""
    from bert_tf.model.pretraining import pretraining_specs

    return sum(math.prod(spec.shape) for spec in pretraining_specs(network))


def print_efficiencies(
    gbits: Sequence[float], accumulation_steps: Sequence[int], micro_batch_size: int
) -> Iterator[Result]:
    """Prints a row for each way to train and yields the results of its columns."""
    print(f"\n{'predicted efficiency, ranks':54}" + "".join(f"{ranks:>8}" for ranks in RANKS))
    for network, gbit, steps, hierarchical in itertools.product(
        NETWORKS, gbits, accumulation_steps, (False, True)
    ):
        training = Training(network, gbit, micro_batch_size, steps, hierarchical)
        shares = [training.efficiency(ranks) for ranks in RANKS]
        print(f"{training!s:54}" + "".join(f"{share:8.1%}" for share in shares), flush=True)
        for ranks, share in zip(RANKS, shares):
            config = {"ranks": ranks, **dataclasses.asdict(training)}
            yield spread_result("predicted efficiency", [share], "share", config, subject="model")


def print_published() -> Iterator[Result]:
    """Prints the published speed-ups next to the model's and yields both as results."""
    print(f"\n{'speed-up':40}{'GPUs':>12}{'published':>11}{'model':>8}")
    for published in PUBLISHED:
        predicted = published.predicted(parameters_of(BERT_LARGE))
        config = {
            "ranks": published.ranks,
            "compared_with_ranks": published.base_ranks,
            "assumed": published.assumed,
        }
        gpus = f"{published.base_ranks} to {published.ranks}"
        print(
            f"{published.source:40}{gpus:>12}{published.speedup:11.1f}{predicted:8.1f}"
            f"   assumed: {published.assumed}",
            flush=True,
        )
        for subject, value in ((published.source, published.speedup), ("model", predicted)):
            yield spread_result("speed-up", [value], "x", config, subject=subject)
