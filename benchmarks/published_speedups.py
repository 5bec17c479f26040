"""Speed-ups that others published for BERT, with what is known or assumed of where they ran.

Rates of one GPU are those of the READMEs of NVIDIA's DeepLearningExamples for BERT-large with
sequences of 128 tokens and mixed precision; BERT-base, with a third of the weights, is taken as
three times as fast. Bandwidths are those of data sheets, in one direction.
"""

from __future__ import annotations

import dataclasses

from benchmarks import communication_model as model
from benchmarks.communication_model import Cluster, Link

_LATENCY = 5e-6  # of a message between two GPUs by NVLink or InfiniBand, about
_HALF_BYTES = 2  # of a float16


@dataclasses.dataclass(frozen=True)
class GpuCluster:
    """A published run of BERT-large, on hosts whose parts are known.

    Attributes:
      cluster: its hosts and links.
      sequences_per_second: of 128 tokens, of one GPU alone.
      sequences_of_a_rank: in an update.
    """

    cluster: Cluster
    sequences_per_second: float
    sequences_of_a_rank: int

    def update_seconds(self, ranks: int, parameters: int) -> float:
        """Time of an update whose gradients travel in float16, between whole hosts."""
        return model.update_seconds(
            self.sequences_of_a_rank / self.sequences_per_second,
            self.cluster.allreduce_seconds(_HALF_BYTES * parameters, ranks, hierarchical=True),
        )


@dataclasses.dataclass(frozen=True)
class EqualLinks:
    """A published run of which nothing but the worth of the delay is known.

    Attributes:
      delay_factor: how many times faster ``base_ranks`` were when they communicated once in
        ``accumulation_steps`` micro batches.
    """

    delay_factor: float
    accumulation_steps: int
    base_ranks: int

    def update_seconds(self, ranks: int, parameters: int) -> float:
        """Time of an update of a ring over equal links, in times of one micro batch."""
        del parameters
        ratio = model.communication_to_compute(self.delay_factor, self.accumulation_steps)
        link = Link(model.ring_allreduce_seconds(1.0, self.base_ranks, Link(1.0)) / ratio)
        return model.update_seconds(
            self.accumulation_steps, model.ring_allreduce_seconds(1.0, ranks, link)
        )


@dataclasses.dataclass(frozen=True)
class Published:
    """A published speed-up.

    Attributes:
      source: who published it.
      speedup: of the rate of ``ranks`` GPUs over that of ``base_ranks``.
      setting: where it ran.
      assumed: what of the setting the source does not say.
    """

    source: str
    speedup: float
    ranks: int
    base_ranks: int
    setting: GpuCluster | EqualLinks
    assumed: str

    def predicted(self, parameters: int) -> float:
        """The model's speed-up for a network of ``parameters`` weights."""
        base, many = (
            self.setting.update_seconds(ranks, parameters)
            for ranks in (self.base_ranks, self.ranks)
        )
        return self.ranks / self.base_ranks * base / many


# Links of a GPU within its host: NVLink of 150 (V100) and 300 (A100) GB/s. Of a host: 8 ports of
# 100 (DGX-2) and 200 (DGX A100) Gbit/s.
V100_LOCAL = Link(150e9, _LATENCY)
_DGX_2 = Cluster(16, V100_LOCAL, Link.from_gbit(800, _LATENCY))
_DGX_A100 = Cluster(8, Link(300e9, _LATENCY), Link.from_gbit(1600, _LATENCY))
V100_LARGE = 180.0  # sequences a second of BERT-large; 169 to 188 were published
V100_RATES = {"BERT-base": 3.0 * V100_LARGE, "BERT-large": V100_LARGE}

_DEEPSPEED = GpuCluster(_DGX_2, V100_LARGE, 16384 // 64)
_DEEPSPEED_ASSUMED = "64 V100 in 4 DGX-2; the published text names no number of GPUs"
_OF_V100 = "the rate of a V100 of 16 or 32 GB"
_BANDWIDTHS = "nothing but the bandwidths"
_DGX_2H = GpuCluster(_DGX_2, V100_LARGE, 65536 // 512)
_A100_TENSORFLOW = GpuCluster(_DGX_A100, 357.0, 65536 // 256)
_A100_PYTORCH = GpuCluster(_DGX_A100, 580.0, 65536 // 256)
_BRIGHTICS = EqualLinks(delay_factor=2.0, accumulation_steps=50, base_ranks=8)
_EQUAL = "equal links; their speed is that which gives the published factor of 2.0 on 8 GPUs"

PUBLISHED = (
    Published("DeepSpeed, Adam", 53.0, 64, 1, _DEEPSPEED, _DEEPSPEED_ASSUMED),
    Published("DeepSpeed, LAMB", 57.4, 64, 1, _DEEPSPEED, _DEEPSPEED_ASSUMED),
    Published("NVIDIA, TensorFlow, 32 DGX-2H", 28.1, 512, 16, _DGX_2H, _OF_V100),
    Published("NVIDIA, TensorFlow, 32 DGX A100", 27.0, 256, 8, _A100_TENSORFLOW, _BANDWIDTHS),
    Published("NVIDIA, PyTorch, 32 DGX A100", 30.4, 256, 8, _A100_PYTORCH, _BANDWIDTHS),
    Published("Brightics, 50 micro batches", 6.4, 64, 8, _BRIGHTICS, _EQUAL),
)
