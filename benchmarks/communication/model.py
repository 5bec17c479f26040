"""The arithmetic of communication: how long ranks take to exchange gradients, and what that costs.

Bytes, seconds and bytes a second throughout. The ring is that of Patarasuk and Yuan (2009),
"Bandwidth optimal all-reduce algorithms for clusters of workstations": the data are cut into as
many parts as there are ranks and go round twice, so that every rank sends 2 (N - 1) / N of them,
which no algorithm can undercut, in 2 (N - 1) steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Link:
    """What a rank, or a host, sends through; both directions at once.

    Attributes:
      bytes_per_second: of one direction.
      latency_seconds: until the first byte of a message arrives.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    @classmethod
    def from_gbit(cls, gbit_per_second: float, latency_seconds: float = 0.0) -> Link:
        """A link by the rate on its label: ``gbit_per_second`` times 10^9 bits."""
        return cls(gbit_per_second * 1e9 / 8, latency_seconds)


def ring_allreduce_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Time to add up ``num_bytes`` of every rank: 2(N-1)/N bytes/bandwidth + 2(N-1) latency."""
    steps = 2 * (ranks - 1)
    return steps * (num_bytes / ranks / link.bytes_per_second + link.latency_seconds)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Ranks on hosts.

    Attributes:
      ranks_per_host: on a full host; fewer ranks than these are on one host.
      local: what a rank sends through to another of its host.
      remote: what all ranks of a host together send through to other hosts.
    """

    ranks_per_host: int
    local: Link
    remote: Link

    def allreduce_seconds(self, num_bytes: float, ranks: int, *, hierarchical: bool) -> float:
        """Time to add up ``num_bytes`` of each of ``ranks`` ranks, which fill their hosts.

        One ring over all ranks enters and leaves each host once, so that a host's link carries
        what one rank sends. The hierarchical form adds up within each host, then between hosts,
        then spreads the sum in each host: its first and last part together are a ring within the
        host; in between, the shares of all ranks of a host go through its one ``remote`` link, as
        its whole sum would. Raises ValueError for ranks that leave a host partly filled.
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
    """Time of an update of which ``hidden_share`` of the communication overlaps computation."""
    return compute_seconds + (1.0 - hidden_share) * communication_seconds


def hidden_share(
    update_seconds: float, compute_seconds: float, communication_seconds: float
) -> float:
    """What :func:`update_seconds` was given, from measured times; below 0 where each hinders."""
    return (compute_seconds + communication_seconds - update_seconds) / communication_seconds


def communication_to_compute(delay_factor: float, accumulation_steps: int) -> float:
    """The time of one allreduce to that of one micro batch, r.

    ``delay_factor`` is how many times faster updates are that communicate once, and not after each
    of k micro batches: (1 + r) / (1 + r / k), which is below k.
    """
    return (delay_factor - 1.0) / (1.0 - delay_factor / accumulation_steps)


def rows_pay_up_to(table_bytes: float, row_bytes: float) -> float:
    """The number of ranks at which rows (allgather) and the whole table (allreduce) cost the same.

    ``row_bytes`` are those of one rank's rows with their numbers. With fewer ranks the rows are
    less to send: each rank sends (N - 1) x its rows, against 2 (N - 1) / N x the table.
    """
    return 2.0 * table_bytes / row_bytes


def fit_ring(num_bytes: Sequence[float], seconds: Sequence[float], ranks: int) -> Link:
    """The link by what rings of different sizes took: a least-squares line through at least two.

    Each size is weighted with its own time, so that small ones count as much as large ones. Where
    the line would begin below 0 there is no latency, and the line begins at 0. Raises ValueError
    where larger sizes took no longer, or one took no time.
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
