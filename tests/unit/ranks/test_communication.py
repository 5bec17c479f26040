"""From settings to what Horovod reads, and what the ledger says of it."""

import pytest

from bert_tf.config.settings import CommunicationSettings
from bert_tf.errors import UserError
from bert_tf.ranks.communication import (
    DEFAULT,
    check_adasum,
    communication_facts,
    horovod_environment,
)


def test_nothing_asked_for_leaves_horovod_alone():
    assert horovod_environment(CommunicationSettings()) == {}
    facts = communication_facts(CommunicationSettings(), {})
    assert (facts["compression"], facts["combined_by"]) == ("none", "sum")
    assert facts["fusion_threshold_mb"] == facts["nccl_streams"] == DEFAULT


def test_settings_in_the_units_that_horovod_reads():
    settings = CommunicationSettings(
        compression="fp16",
        adasum=True,
        groups=3,
        fusion_threshold_mb=0.5,
        cycle_time_ms=2.5,
        hierarchical=False,
        autotune=True,
        nccl_streams=4,
    )
    variables = horovod_environment(settings)
    assert variables == {
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_NUM_NCCL_STREAMS": "4",
    }
    assert communication_facts(settings, variables) == {
        "compression": "fp16",
        "combined_by": "adasum",
        "groups": 3,
        "embeddings": "table",
        "fusion_threshold_mb": 0.5,
        "cycle_time_ms": 2.5,
        "hierarchical": False,
        "autotune": True,
        "nccl_streams": 4,
    }


def test_a_variable_that_the_user_set_is_recorded():
    facts = communication_facts(CommunicationSettings(), {"HOROVOD_FUSION_THRESHOLD": "33554432"})
    assert facts["fusion_threshold_mb"] == 32


def test_a_variable_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="HOROVOD_CYCLE_TIME=fast is no number"):
        communication_facts(CommunicationSettings(), {"HOROVOD_CYCLE_TIME": "fast"})


@pytest.mark.parametrize("world_size", range(1, 10))
def test_adasum_needs_a_power_of_two(world_size):
    check_adasum(CommunicationSettings(), world_size)
    if world_size in (1, 2, 4, 8):
        check_adasum(CommunicationSettings(adasum=True), world_size)
    else:
        with pytest.raises(UserError, match=f"--adasum .* with {world_size};"):
            check_adasum(CommunicationSettings(adasum=True), world_size)
