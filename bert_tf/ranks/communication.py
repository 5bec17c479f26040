"""How gradients are communicated: Horovod's settings as flags, and the values in effect.

Horovod reads its tunables from the environment when it starts. A flag overrides a variable set by
the user; without a flag, the variable is kept and shown in the ledger.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_tf.config.settings import CommunicationSettings
from bert_tf.util.errors import UserError

_MIB = 1 << 20
DEFAULT = "horovod's default"

# Rows must be at most half the data of the table. A gather has costs beyond its bytes: it is not
# fused with other gradients, and every rank keeps the rows of all ranks and adds them to a table
# itself. Two ranks achieved 0.6 to 1.0 of the gain expected from the bytes (see
# docs/measurements/communication.md), so half the bytes are a gain on any of those links. It also
# means that the gathered rows of all ranks take no more memory than the table.
_LEAST_GAIN = 2.0
# A smaller table is fused with the other gradients, in a round that takes place anyway. Its rows
# need two gathers, of values and of indices, each of which the ranks have to negotiate in a cycle
# of Horovod, 1 ms. Half of 4 MiB takes 1.7 ms at 10 Gbit/s.
_LEAST_TABLE_BYTES = 4 * _MIB
_BYTES_OF_AN_INDEX = 8  # int64; half for int32

# Name in the ledger -> (variable, formats the setting, parses the variable for the ledger).
_TUNABLES: Mapping[str, tuple[str, Callable[[Any], str], Callable[[str], object]]] = {
    "fusion_threshold_mb": (
        "HOROVOD_FUSION_THRESHOLD",
        lambda mib: str(int(mib * _MIB)),
        lambda text: float(text) / _MIB,
    ),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", str, float),
    "hierarchical": ("HOROVOD_HIERARCHICAL_ALLREDUCE", lambda on: str(int(on)), lambda t: t != "0"),
    "autotune": ("HOROVOD_AUTOTUNE", lambda on: str(int(on)), lambda text: text != "0"),
    "nccl_streams": ("HOROVOD_NUM_NCCL_STREAMS", str, int),
}


# Open MPI busy-waits for other ranks. Horovod waits a thousand times a second, in a separate thread
# on a core that should compute: without this, two ranks on two cores were a third slower. A
# variable set by the user takes precedence.
MPI_ENVIRONMENT = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def horovod_environment(settings: CommunicationSettings) -> dict[str, str]:
    """The variables to set before Horovod starts, for the settings that were given."""
    given = {name: getattr(settings, name) for name in _TUNABLES}
    return {
        _TUNABLES[name][0]: _TUNABLES[name][1](value)
        for name, value in given.items()
        if value is not None
    }


def in_fixed_order(settings: CommunicationSettings) -> CommunicationSettings:
    """Settings with which ranks add up every number in the same order in every run.

    Horovod fuses tensors that happen to be ready at the same time. From three ranks on, the
    allreduce algorithms of MPI, Gloo and NCCL start the sum of an element at a rank that depends on
    its place in the buffer, so rounding would change with the timing. Without fusion, each tensor
    has its own buffer.
    """
    return dataclasses.replace(settings, fusion_threshold_mb=0.0, autotune=False)


def number_of_groups(settings: CommunicationSettings, *, complete_at_once: bool) -> int:
    """The number of groups in which gradients are sent; 0 sends each as soon as it is ready.

    A group is sent as a whole, once its last gradient is complete. If gradients are
    ``complete_at_once``, this costs nothing; otherwise the first ones have to wait instead of
    overlapping with the backward pass.
    """
    if settings.adasum:
        return 0
    if settings.groups is None:
        return int(complete_at_once)
    return settings.groups


def is_sent_as_rows(
    settings: CommunicationSettings,
    table: Sequence[int],
    *,
    rows: int | None,
    groups: int,
    world_size: int,
) -> bool:
    """Whether to send the gradient of an embedding table as rows; all ranks must agree.

    Args:
      settings: the user's choices, if any.
      table: shape of the table, [rows, width], float32.
      rows: maximum number of rows that a rank looks up; None if unknown.
      groups: see :func:`number_of_groups`; groups consist of whole tables.
      world_size: number of ranks.
    """
    if settings.adasum or groups:
        return False
    if settings.embedding_rows is not None:
        return settings.embedding_rows
    if rows is None or world_size == 1:
        return False
    # Horovod compresses in allreduce, but not in gather.
    element_bytes = 2 if settings.compression == "fp16" else 4
    table_bytes = element_bytes * math.prod(table)
    row_bytes = rows * (4 * math.prod(table[1:]) + _BYTES_OF_AN_INDEX)
    sent_as_table = 2 * (world_size - 1) / world_size * table_bytes
    sent_as_rows = (world_size - 1) * row_bytes
    return table_bytes >= _LEAST_TABLE_BYTES and sent_as_table >= _LEAST_GAIN * sent_as_rows


def describe_communication(
    settings: CommunicationSettings, environment: Mapping[str, str], *, complete_at_once: bool
) -> dict[str, object]:
    """The ledger's section on communication, except for when gradients are sent.

    ``environment`` is the process's, including :func:`horovod_environment`; ``complete_at_once`` is
    as in :func:`number_of_groups`. Raises UserError if a variable is not a number.
    """
    groups = number_of_groups(settings, complete_at_once=complete_at_once)
    if settings.adasum or groups or complete_at_once:
        embeddings = "table"
    else:
        embeddings = {None: "by size", True: "rows", False: "table"}[settings.embedding_rows]
    section: dict[str, object] = {
        "compression": settings.compression,
        "combined_by": "adasum" if settings.adasum else "sum",
        "groups": groups or "as they are ready",
        "embeddings": embeddings,
    }
    for name, (variable, _, parse) in _TUNABLES.items():
        text = environment.get(variable)
        try:
            section[name] = DEFAULT if text is None else parse(text)
        except ValueError as error:
            raise UserError(f"{variable}={text} is not a number; change or unset it.") from error
    return section


def check_adasum(settings: CommunicationSettings, world_size: int) -> None:
    """Raises UserError if Adasum cannot combine the ranks in pairs."""
    if settings.adasum and world_size & (world_size - 1):
        raise UserError(
            f"--adasum combines ranks in pairs, which is impossible with {world_size}; start "
            "a power of two of ranks, or drop the flag."
        )
