"""What --shard_optimizer_state cannot be combined with."""

import pytest

from bert_tf.config.settings import CommunicationSettings, check_sharding
from bert_tf.update.optimizers import OPTIMIZERS
from bert_tf.util.errors import UserError
from tests.helpers import momentum_optimizer
from tests.helpers.settings import optimization_settings

SHARED = {"shard_optimizer_state": True}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_optimizers_of_the_toolkit_can_share(optimizer):
    check_sharding(optimization_settings(optimizer=optimizer, **SHARED), CommunicationSettings())


@pytest.mark.parametrize(
    ("flag", "optimization", "communication"),
    [
        ("--adasum", {}, {"adasum": True}),
        ("--embedding_gradient_rows", {}, {"embedding_rows": True}),
        ("--allreduce_every_micro_batch", {"allreduce_every_micro_batch": True}, {}),
    ],
)
def test_what_needs_whole_gradients_is_refused(flag, optimization, communication):
    communication = CommunicationSettings(**communication)
    check_sharding(optimization_settings(**optimization), communication)
    with pytest.raises(UserError, match=f"--shard_optimizer_state .*{flag}.*; drop one"):
        check_sharding(optimization_settings(**optimization, **SHARED), communication)


def test_an_optimizer_that_does_not_say_it_can_is_refused(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "momentum", momentum_optimizer.ROW)
    with pytest.raises(UserError, match="momentum updates whole weights; drop the flag"):
        check_sharding(
            optimization_settings(optimizer="momentum", **SHARED), CommunicationSettings()
        )
