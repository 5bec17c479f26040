"""From settings to what Horovod reads, and what the ledger says of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.communication.model import rows_pay_up_to
from bert_tf.config.settings import CommunicationSettings
from bert_tf.ranks.communication import (
    DEFAULT,
    check_adasum,
    describe_communication,
    horovod_environment,
    in_fixed_order,
    is_sent_as_rows,
    number_of_groups,
)
from bert_tf.util.errors import UserError


def test_nothing_asked_for_leaves_horovod_alone():
    assert horovod_environment(CommunicationSettings()) == {}
    facts = describe_communication(CommunicationSettings(), {}, complete_at_once=False)
    assert (facts["compression"], facts["combined_by"]) == ("none", "sum")
    assert facts["fusion_threshold_mb"] == facts["nccl_streams"] == DEFAULT


def test_a_fixed_order_of_sums_overrides_what_the_environment_says():
    variables = horovod_environment(in_fixed_order(CommunicationSettings(cycle_time_ms=2.5)))
    assert variables == {
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_AUTOTUNE": "0",
        "HOROVOD_CYCLE_TIME": "2.5",
    }


def test_settings_in_the_units_that_horovod_reads():
    settings = CommunicationSettings(
        compression="fp16",
        adasum=True,
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
    assert describe_communication(settings, variables, complete_at_once=True) == {
        "compression": "fp16",
        "combined_by": "adasum",
        "groups": "as they are ready",
        "embeddings": "table",
        "fusion_threshold_mb": 0.5,
        "cycle_time_ms": 2.5,
        "hierarchical": False,
        "autotune": True,
        "nccl_streams": 4,
    }


def test_a_variable_that_the_user_set_is_recorded():
    variables = {"HOROVOD_FUSION_THRESHOLD": "33554432"}
    facts = describe_communication(CommunicationSettings(), variables, complete_at_once=False)
    assert facts["fusion_threshold_mb"] == 32


def test_a_variable_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="HOROVOD_CYCLE_TIME=fast is not a number"):
        describe_communication(
            CommunicationSettings(), {"HOROVOD_CYCLE_TIME": "fast"}, complete_at_once=False
        )


@pytest.mark.parametrize(
    ("settings", "at_once", "groups", "embeddings"),
    [
        (CommunicationSettings(), False, 0, "by size"),
        (CommunicationSettings(), True, 1, "table"),
        (CommunicationSettings(groups=0), True, 0, "table"),
        (CommunicationSettings(groups=0), False, 0, "by size"),
        (CommunicationSettings(groups=3), True, 3, "table"),
        (CommunicationSettings(groups=3), False, 3, "table"),
        (CommunicationSettings(adasum=True), False, 0, "table"),
        (CommunicationSettings(adasum=True), True, 0, "table"),
        (CommunicationSettings(embedding_rows=True), False, 0, "rows"),
        (CommunicationSettings(embedding_rows=True), True, 1, "table"),
        (CommunicationSettings(embedding_rows=False), False, 0, "table"),
    ],
)
def test_groups_and_what_the_ledger_says_of_them(settings, at_once, groups, embeddings):
    assert number_of_groups(settings, complete_at_once=at_once) == groups
    facts = describe_communication(settings, {}, complete_at_once=at_once)
    assert facts["groups"] == (groups or "as they are ready")
    assert facts["embeddings"] == embeddings


BERT_BASE = [30522, 768]
AUTO = CommunicationSettings()


def as_rows(settings=AUTO, table=BERT_BASE, *, rows, groups=0, world_size=2):
    return is_sent_as_rows(settings, table, rows=rows, groups=groups, world_size=world_size)


@settings(deadline=None)
@given(
    words=st.integers(1, 50_000),
    width=st.integers(1, 1024),
    rows=st.integers(1, 50_000),
    world_size=st.integers(1, 64),
    compression=st.sampled_from(["none", "fp16"]),
)
def test_rows_are_chosen_only_where_they_are_half_as_much_to_send(
    words, width, rows, world_size, compression
):
    chosen = as_rows(
        CommunicationSettings(compression=compression),
        [words, width],
        rows=rows,
        world_size=world_size,
    )
    table_bytes = words * width * (2 if compression == "fp16" else 4)
    row_bytes = rows * (4 * width + 8)
    if chosen:
        assert table_bytes >= 4 << 20
        # Bytes that a rank sends: in a ring that adds up, and in one that gathers.
        ring = 2 * (world_size - 1) / world_size * table_bytes
        assert 0 < 2 * (world_size - 1) * row_bytes <= ring
        assert world_size <= rows_pay_up_to(table_bytes, row_bytes) / 2
        assert as_rows(table=[words, width], rows=rows // 2, world_size=world_size)
    elif table_bytes >= 4 << 20 and world_size > 1:
        assert world_size > 0.999 * rows_pay_up_to(table_bytes, row_bytes) / 2


def test_rows_of_a_fine_tuning_on_more_and_more_ranks():
    # 32 sequences of 128 words: 12.6 MB of rows, against 93.8 MB.
    chosen = [as_rows(rows=32 * 128, world_size=ranks) for ranks in range(1, 12)]
    assert chosen == [False, *[True] * 6, *[False] * 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": None},
        {"groups": 1},
        {"world_size": 1},
        {"table": [512, 768]},
        {"settings": CommunicationSettings(adasum=True)},
        {"settings": CommunicationSettings(embedding_rows=False)},
    ],
)
def test_tables_travel_as_such_where_rows_are_no_gain_or_not_possible(changes):
    assert as_rows(rows=8)
    assert not as_rows(**{"rows": 8, **changes})


def test_rows_that_the_user_asked_for():
    asked = CommunicationSettings(embedding_rows=True)
    assert as_rows(asked, [2, 2], rows=1000, world_size=64)
    assert as_rows(asked, rows=None)
    assert not as_rows(asked, rows=1, groups=2)


@pytest.mark.parametrize("world_size", range(1, 10))
def test_adasum_needs_a_power_of_two(world_size):
    check_adasum(CommunicationSettings(), world_size)
    if world_size in (1, 2, 4, 8):
        check_adasum(CommunicationSettings(adasum=True), world_size)
    else:
        with pytest.raises(UserError, match=f"--adasum .* with {world_size};"):
            check_adasum(CommunicationSettings(adasum=True), world_size)
