"""What --shard_optimizer_state can be combined with."""

from __future__ import annotations

from bert_tf.config.settings import CommunicationSettings, OptimizationSettings
from bert_tf.update.optimizers import optimizer_row
from bert_tf.util.errors import UserError

_FLAG = "--shard_optimizer_state"


def check_sharding(
    optimization: OptimizationSettings, communication: CommunicationSettings
) -> None:
    """Raises UserError if the optimizer's slots cannot be shared out over the ranks."""
    if not optimization.shard_optimizer_state:
        return
    row = optimizer_row(optimization.optimizer)
    if not row.can_be_sharded:
        raise UserError(f"{_FLAG}: {row.title} updates whole weights; drop the flag.")
    conflicts = {
        "--adasum": (communication.adasum, "combines whole gradients"),
        "--embedding_gradient_rows": (
            communication.embedding_rows,
            "sends rows to all ranks, and a part of a table is not made of rows",
        ),
        "--allreduce_every_micro_batch": (
            optimization.allreduce_every_micro_batch,
            "is for comparison with one exchange of whole gradients",
        ),
    }
    for flag, (is_given, why) in conflicts.items():
        if is_given:
            raise UserError(f"{_FLAG} cannot be combined with {flag}, which {why}; drop one.")
