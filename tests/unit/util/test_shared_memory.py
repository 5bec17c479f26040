"""Slots: what comes out of them, when they are used again, what is left open."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.util import shared_memory
from bert_tf.util.shared_memory import Slot, Slots, pack

LARGE = np.arange(100_000)


def open_files():
    return len(os.listdir("/proc/self/fd"))


@settings(max_examples=40, deadline=None)
@given(
    arrays=st.lists(
        st.tuples(
            st.sampled_from(["u1", "<i2", "<i8", "<f4"]),
            st.lists(st.integers(0, 40), min_size=1, max_size=3),
        ),
        max_size=6,
    ),
    has_large=st.booleans(),
)
def test_a_result_comes_out_as_it_went_in(arrays, has_large):
    result = [np.random.default_rng(0).integers(0, 99, s).astype(kind) for kind, s in arrays]
    result += [LARGE, LARGE.reshape(1000, -1).T] * has_large
    slot = Slot()
    packed = pack({"arrays": result, "text": b"bytes"}, slot.address)
    assert bool(packed.sizes) == (sum(a.nbytes for a in result) >= shared_memory._SMALLEST_SHARED)
    found = slot.unpack(packed)
    assert found["text"] == b"bytes"
    for expected, array in zip(result, found["arrays"]):
        np.testing.assert_array_equal(array, expected, strict=True)
    slot.close()


def test_arrays_start_where_the_processor_likes_them():
    slot = Slot()
    _, *rest = slot.unpack(pack([LARGE.astype("u1"), np.ones(3, "u1"), LARGE], slot.address))
    assert [array.ctypes.data % 64 for array in rest] == [0, 0]
    slot.close()


def test_a_slot_is_used_again_once_its_result_is_gone():
    with Slots() as slots:
        first = slots.take()
        result = slots.unpack(pack(LARGE, first.address), first)
        second = slots.take()
        assert second is not first  # whose result is still there
        np.testing.assert_array_equal(result, LARGE)
        del result
        gc.collect()
        assert slots.take() is first


def test_results_that_are_kept_leave_few_files_open():
    before = open_files()
    with Slots() as slots:
        kept = []
        for value in range(50):
            slot = slots.take()
            kept.append(slots.unpack(pack(LARGE + value, slot.address), slot))
        # For each, that of the slot and that of the mapping, which a view keeps.
        assert open_files() <= before + 2 * (shared_memory._MOST_KEPT + 1)
    for value, result in enumerate(kept):
        np.testing.assert_array_equal(result, LARGE + value)
    del kept, result
    gc.collect()
    assert open_files() == before


def test_smaller_results_after_larger_ones_and_the_other_way():
    with Slots() as slots:
        for size in (90_000, 50_000, 200_000, 60_000):
            slot = slots.take()
            result = slots.unpack(pack(LARGE[:size], slot.address), slot)
            np.testing.assert_array_equal(result, LARGE[:size])


@pytest.mark.parametrize("address", [None, "/proc/1/fd/987654", "/nowhere/else"])
def test_without_a_slot_the_result_is_in_the_pickle(address):
    packed = pack(LARGE, address)
    assert not packed.sizes
    np.testing.assert_array_equal(Slot().unpack(packed), LARGE)


def test_systems_without_such_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with Slots() as slots:
        slot = slots.take()
        assert slot.address is None
        np.testing.assert_array_equal(slot.unpack(pack(LARGE, slot.address)), LARGE)


def test_another_process_fills_a_slot():
    slot = Slot()
    program = (
        "import sys, pickle, numpy as np\n"
        "from bert_tf.util.shared_memory import pack\n"
        "packed = pack(np.arange(100_000), sys.argv[1])\n"
        "sys.stdout.buffer.write(pickle.dumps(packed))\n"
    )
    command = [sys.executable, "-c", program, slot.address]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    packed = shared_memory.pickle.loads(done.stdout)
    assert packed.sizes == (LARGE.nbytes,)
    np.testing.assert_array_equal(slot.unpack(packed), LARGE)
    slot.close()
