"""A model of communication: how long ranks take to exchange gradients, and what that costs.

All quantities are in bytes, seconds and bytes per second. The ring is that of Patarasuk and Yuan
(2009), "Bandwidth optimal all-reduce algorithms for clusters of workstations": the data are cut
into as many parts as there are ranks and travel around the ring twice, so every rank sends
2 (N - 1) / N of them, which is optimal, in 2 (N - 1) steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection through which a rank or host sends, in both directions at once.

    Attributes:
      bytes_per_second: bandwidth in one direction.
      latency_seconds: time until the first byte of a message arrives.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    @classmethod
    def from_gbit(cls, gbit_per_second: float, latency_seconds: float = 0.0) -> Link:
        """A link with its nominal rate, ``gbit_per_second`` times 10^9 bits."""
        return cls(gbit_per_second * 1e9 / 8, latency_seconds)


def ring_allreduce_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Time to sum ``num_bytes`` of every rank: 2(N-1)/N bytes/bandwidth + 2(N-1) latency."""
    steps = 2 * (ranks - 1)
    return steps * (num_bytes / ranks / link.bytes_per_second + link.latency_seconds)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Ranks on hosts.

    Attributes:
      ranks_per_host: ranks on a full host; up to this number, all ranks are on one host.
      local: the link from one rank to another on its host.
      remote: the link that all ranks of a host share to reach other hosts.
    """

    ranks_per_host: int
    local: Link
    remote: Link

    def allreduce_seconds(self, num_bytes: float, ranks: int, *, hierarchical: bool) -> float:
        """Time to sum ``num_bytes`` of each of ``ranks`` ranks, which fill their hosts.

        One ring over all ranks enters and leaves each host once, so a host's link carries what one
        rank sends. The hierarchical form sums within each host, then between hosts, then broadcasts
        the sum within each host: its first and last phase together are a ring within the host; in
        between, the parts of all ranks of a host pass through its only ``remote`` link, just as its
        whole sum would. Raises ValueError if ranks leave a host partly filled.
        """
        if ranks <= self.ranks_per_host:
            return ring_allreduce_seconds(num_bytes, ranks, self.local)
        hosts, left = divmod(ranks, self.ranks_per_host)
        if left:
            raise ValueError(f"{ranks} ranks do not fill hosts of {self.ranks_per_host}")
        if hierarchical:
            within = ring_allreduce_seconds(num_bytes, self.ranks_per_host, self.local)
            return within + ring_allreduce_seconds(num_bytes, hosts, self.remote)
        through_both = Link(
            min(self.local.bytes_per_second, self.remote.bytes_per_second),
            max(self.local.latency_seconds, self.remote.latency_seconds),
        )
        return ring_allreduce_seconds(num_bytes, ranks, through_both)


def update_seconds(
    compute_seconds: float, communication_seconds: float, hidden_share: float = 0.0
) -> float:
    """Time of an update in which computation hides a fraction of the communication."""
    return compute_seconds + (1.0 - hidden_share) * communication_seconds


def hidden_share(
    update_seconds: float, compute_seconds: float, communication_seconds: float
) -> float:
    """The fraction for :func:`update_seconds`, from measured times; negative if both interfere."""
    return (compute_seconds + communication_seconds - update_seconds) / communication_seconds


def communication_to_compute(delay_factor: float, accumulation_steps: int) -> float:
    """The ratio r of the time of one allreduce to that of one micro batch.

    ``delay_factor`` is the speed-up from communicating once per update instead of after each of k
    micro batches: (1 + r) / (1 + r / k), which is below k.
    """
    return (delay_factor - 1.0) / (1.0 - delay_factor / accumulation_steps)


def rows_pay_up_to(table_bytes: float, row_bytes: float) -> float:
    """The number of ranks at which rows (allgather) and the whole table (allreduce) cost the same.

    ``row_bytes`` is the size of one rank's rows with their indices. With fewer ranks, sending rows
    is cheaper: each rank sends (N - 1) x its rows, against 2 (N - 1) / N x the table.
    """
    return 2.0 * table_bytes / row_bytes


def fit_ring(num_bytes: Sequence[float], seconds: Sequence[float], ranks: int) -> Link:
    """Fits a link to the times of rings of different sizes: a least-squares line through them.

    Each size is weighted by its own time, so small sizes count as much as large ones. If the line
    would start below 0, latency is set to 0 and the line starts there. Raises ValueError if larger
    sizes took no longer, or one took no time.
    """
    sizes, taken = np.asarray(num_bytes, float), np.asarray(seconds, float)
    if taken.min() <= 0:
        raise ValueError("messages took no time on the link")
    slope, start = np.polyfit(sizes, taken, deg=1, w=1.0 / taken)
    if slope <= 0:
        raise ValueError("larger messages took no longer than small ones")
    if start < 0:
        start, shares = 0.0, sizes / taken
        slope = shares.sum() / (shares**2).sum()
    steps = 2 * (ranks - 1)
    return Link(steps / ranks / float(slope), float(start) / steps)
