"""Predictions that need no measurement: efficiencies of many GPUs, and published speed-ups.

Rates of one GPU are those in the READMEs of NVIDIA's DeepLearningExamples for BERT-large with
sequences of 128 tokens and mixed precision; BERT-base, with a third of the weights, is assumed to
be three times as fast. Bandwidths are from data sheets, in one direction.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from benchmarks.communication import model
from benchmarks.communication.model import Cluster, Link
from benchmarks.results import Result, result
from benchmarks.speed.subjects import BERT_BASE
from bert_tf.model.config import BertConfig

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
GPUS_OF_A_HOST = 8
_GBITS = (10, 100)  # Gbit/s that the GPUs of a host share to reach other hosts
_ACCUMULATION_STEPS, _MICRO_BATCH_SIZE = (1, 50), 32  # of sequences of 128 tokens
BERT_LARGE = dataclasses.replace(
    BERT_BASE,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
NETWORKS = {"BERT-base": BERT_BASE, "BERT-large": BERT_LARGE}
_SINGLE_BYTES, _HALF_BYTES = 4, 2  # per float32 and float16
_LATENCY = 5e-6  # approximate, for a message between two GPUs by NVLink or InfiniBand


@dataclasses.dataclass(frozen=True)
class GpuCluster:
    """A training on hosts with known hardware; computation does not hide communication.

    Attributes:
      cluster: its hosts and links.
      sequences_per_second: rate of a single GPU with sequences of 128 tokens.
      sequences_of_a_rank: sequences per rank and update.
      weight_bytes: bytes per element of a gradient in transit.
      hierarchical: whether gradients are first summed within each host.
    """

    cluster: Cluster
    sequences_per_second: float
    sequences_of_a_rank: int
    weight_bytes: int = _HALF_BYTES
    hierarchical: bool = True

    def update_seconds(self, ranks: int, parameters: int) -> float:
        """Time of an update of a network with ``parameters`` weights."""
        num_bytes = self.weight_bytes * parameters
        communication = self.cluster.allreduce_seconds(
            num_bytes, ranks, hierarchical=self.hierarchical
        )
        return model.update_seconds(
            self.sequences_of_a_rank / self.sequences_per_second, communication
        )


@dataclasses.dataclass(frozen=True)
class EqualLinks:
    """A published run of which only the gain from delayed communication is known.

    Attributes:
      delay_factor: speed-up of ``base_ranks`` ranks from communicating once in
        ``accumulation_steps`` micro batches.
    """

    delay_factor: float
    accumulation_steps: int
    base_ranks: int

    def update_seconds(self, ranks: int, parameters: int) -> float:
        """Time of an update with a ring over equal links, in units of one micro batch."""
        del parameters
        ratio = model.communication_to_compute(self.delay_factor, self.accumulation_steps)
        link = Link(model.ring_allreduce_seconds(1.0, self.base_ranks, Link(1.0)) / ratio)
        return model.update_seconds(
            self.accumulation_steps, model.ring_allreduce_seconds(1.0, ranks, link)
        )


@dataclasses.dataclass(frozen=True)
class Published:
    """A published speed-up of BERT-large.

    Attributes:
      source: who published it.
      speedup: the rate of ``ranks`` GPUs divided by that of ``base_ranks``.
      setting: where it ran.
      assumed: what the source does not state about the setting.
    """

    source: str
    speedup: float
    ranks: int
    base_ranks: int
    setting: GpuCluster | EqualLinks
    assumed: str

    def predicted(self) -> float:
        """The model's speed-up."""
        base, seconds = (
            self.setting.update_seconds(ranks, parameters_of(BERT_LARGE))
            for ranks in (self.base_ranks, self.ranks)
        )
        return self.ranks / self.base_ranks * base / seconds


# Links of a GPU within its host: NVLink with 150 (V100) and 300 (A100) GB/s. Links of a host: 8
# ports of 100 (DGX-2) and 200 (DGX A100) Gbit/s.
_V100_LOCAL = Link(150e9, _LATENCY)
_DGX_2 = Cluster(16, _V100_LOCAL, Link.from_gbit(800, _LATENCY))
_DGX_A100 = Cluster(8, Link(300e9, _LATENCY), Link.from_gbit(1600, _LATENCY))
_V100_LARGE = 180.0  # sequences per second of BERT-large; 169 to 188 were published
_V100_RATES = {"BERT-base": 3.0 * _V100_LARGE, "BERT-large": _V100_LARGE}

_DEEPSPEED = GpuCluster(_DGX_2, _V100_LARGE, 16384 // 64)
_DEEPSPEED_ASSUMED = "64 V100 in 4 DGX-2; the publication does not state the number of GPUs"
_OF_V100 = "the rate of a V100 of 16 or 32 GB"
_BANDWIDTHS = "nothing but the bandwidths"
_DGX_2H = GpuCluster(_DGX_2, _V100_LARGE, 65536 // 512)
_A100_TENSORFLOW = GpuCluster(_DGX_A100, 357.0, 65536 // 256)
_A100_PYTORCH = GpuCluster(_DGX_A100, 580.0, 65536 // 256)
_BRIGHTICS = EqualLinks(delay_factor=2.0, accumulation_steps=50, base_ranks=8)
_EQUAL = "equal links; their speed is the one that gives the published factor of 2.0 on 8 GPUs"

PUBLISHED = (
    Published("DeepSpeed, Adam", 53.0, 64, 1, _DEEPSPEED, _DEEPSPEED_ASSUMED),
    Published("DeepSpeed, LAMB", 57.4, 64, 1, _DEEPSPEED, _DEEPSPEED_ASSUMED),
    Published("NVIDIA, TensorFlow, 32 DGX-2H", 28.1, 512, 16, _DGX_2H, _OF_V100),
    Published("NVIDIA, TensorFlow, 32 DGX A100", 27.0, 256, 8, _A100_TENSORFLOW, _BANDWIDTHS),
    Published("NVIDIA, PyTorch, 32 DGX A100", 30.4, 256, 8, _A100_PYTORCH, _BANDWIDTHS),
    Published("Brightics, 50 micro batches", 6.4, 64, 8, _BRIGHTICS, _EQUAL),
)


def parameters_of(network: BertConfig) -> int:
    """Number of weights in a network with its pre-training heads."""
    from bert_tf.tasks.pretraining.task import PretrainingTask

    return sum(math.prod(spec.shape) for spec in PretrainingTask(network).specs())


def print_efficiencies() -> Iterator[Result]:
    """Prints the fraction of its speed that a V100 keeps, a row per setting; yields all."""
    print(f"\n{'predicted efficiency, ranks':54}" + "".join(f"{ranks:>8}" for ranks in RANKS))
    for network, gbit, steps, hierarchical in itertools.product(
        NETWORKS, _GBITS, _ACCUMULATION_STEPS, (False, True)
    ):
        training = GpuCluster(
            Cluster(GPUS_OF_A_HOST, _V100_LOCAL, Link.from_gbit(gbit, _LATENCY)),
            _V100_RATES[network],
            steps * _MICRO_BATCH_SIZE,
            _SINGLE_BYTES,
            hierarchical,
        )
        parameters = parameters_of(NETWORKS[network])
        alone = training.update_seconds(1, parameters)
        shares = [alone / training.update_seconds(ranks, parameters) for ranks in RANKS]
        form = "hierarchical" if hierarchical else "ring"
        label = f"{network:11}{gbit:4g} Gbit/s, {steps:3} micro batches, {form}"
        print(f"{label:54}" + "".join(f"{share:8.1%}" for share in shares), flush=True)
        for ranks, share in zip(RANKS, shares):
            config = {
                "ranks": ranks,
                "network": network,
                "gbit_per_second_of_a_host": gbit,
                "micro_batch_size": _MICRO_BATCH_SIZE,
                "accumulation_steps": steps,
                "hierarchical": hierarchical,
            }
            yield result("predicted efficiency", share, "share", config, "model")


def print_published() -> Iterator[Result]:
    """Prints the published speed-ups next to the model's and yields both as results."""
    print(f"\n{'speed-up':40}{'GPUs':>12}{'published':>11}{'model':>8}")
    for published in PUBLISHED:
        predicted = published.predicted()
        gpus = f"{published.base_ranks} to {published.ranks}"
        print(
            f"{published.source:40}{gpus:>12}{published.speedup:11.1f}{predicted:8.1f}"
            f"   assumed: {published.assumed}",
            flush=True,
        )
        config = {
            "ranks": published.ranks,
            "compared_with_ranks": published.base_ranks,
            "assumed": published.assumed,
        }
        yield result("speed-up", published.speedup, "x", config, published.source)
        yield result("speed-up", predicted, "x", config, "model")
