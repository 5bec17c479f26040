"""How gradients travel: Horovod's settings as flags, and what a run was really told.

Horovod reads its tunables from the environment when it starts. A flag wins over a variable that
the user set; without a flag the variable stands, and the ledger shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bert_tf.config.settings import CommunicationSettings
from bert_tf.errors import UserError

_MIB = 1 << 20
DEFAULT = "horovod's default"

# Name in the ledger -> (variable, from the setting to its text, from the text to the ledger).
_TUNABLES = {
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


def horovod_environment(settings: CommunicationSettings) -> dict[str, str]:
    """The variables to set before Horovod starts: those whose setting is given."""
    given = {name: getattr(settings, name) for name in _TUNABLES}
    return {
        _TUNABLES[name][0]: _TUNABLES[name][1](value)
        for name, value in given.items()
        if value is not None
    }


def communication_facts(
    settings: CommunicationSettings, environment: Mapping[str, str]
) -> dict[str, object]:
    """The ledger's section, without when gradients travel.

    ``environment`` is the process's, with :func:`horovod_environment` already in it. Raises
    UserError for a variable that is no number.
    """
    facts: dict[str, object] = {
        "compression": settings.compression,
        "combined_by": "adasum" if settings.adasum else "sum",
        "groups": settings.groups or "as they are ready",
        "embeddings": "rows" if settings.embedding_rows else "table",
    }
    for name, (variable, _, parse) in _TUNABLES.items():
        text = environment.get(variable)
        try:
            facts[name] = DEFAULT if text is None else parse(text)
        except ValueError as error:
            raise UserError(f"{variable}={text} is no number; change or unset it.") from error
    return facts


def check_adasum(settings: CommunicationSettings, world_size: int) -> None:
    """Raises UserError where Adasum cannot pair the ranks."""
    if settings.adasum and world_size & (world_size - 1):
        raise UserError(
            f"--adasum combines ranks in pairs and cannot do so with {world_size}; start a power "
            "of two of them, or drop the flag."
        )
