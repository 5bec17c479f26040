"""What all ranks can compute on, and the precision that follows from it."""

import dataclasses
import socket

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning.hardware import (
    AMX,
    Hardware,
    agree_on_hardware,
    comparable_policy_changes,
    probe_hardware,
    settled,
    this_processor,
    weakest,
)
from bert_tf.util.errors import UserError
from tests.helpers.settings import runtime_settings

CPU = Hardware()
FAST_CPU = Hardware(processor=AMX)
NEW_GPU = Hardware(gpu_compute_capability=(9, 0))
OLD_GPU = Hardware(gpu_compute_capability=(7, 0))


def gpu(major, minor):
    return Hardware(gpu_compute_capability=(major, minor))


class Everywhere(SingleProcess):
    """Rank 0 among ranks with the given hardware."""

    def __init__(self, *others):
        super().__init__(1)
        self._others = others

    def gather(self, value):
        return [value, *(("host-b", hardware) for hardware in self._others)]


@pytest.mark.parametrize(
    ("local", "other", "expected"),
    [
        (NEW_GPU, NEW_GPU, "bf16"),
        (NEW_GPU, OLD_GPU, "fp16"),
        (OLD_GPU, NEW_GPU, "fp16"),
        (CPU, CPU, "fp32"),
        (FAST_CPU, FAST_CPU, "bf16"),
        (FAST_CPU, CPU, "fp32"),
        (CPU, FAST_CPU, "fp32"),
    ],
)
def test_all_ranks_choose_the_precision_of_the_weakest(local, other, expected):
    assert agree_on_hardware(Everywhere(other), local).native_precisions()[0] == expected


def test_alone_a_rank_agrees_with_itself():
    for hardware in (CPU, OLD_GPU):
        assert agree_on_hardware(SingleProcess(1), hardware) == hardware


def test_a_host_without_its_gpu_is_named():
    with pytest.raises(UserError, match="rank 2 on host host-b finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU, CPU), NEW_GPU)
    with pytest.raises(UserError, match=f"rank 0 on host {socket.gethostname()} finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU), CPU)


class AnsweringRanks(SingleProcess):
    """Rank 0; the others have different values."""

    def __init__(self, *others):
        super().__init__()
        self._others = others

    def gather(self, value):
        return [value, *(("host-b", values) for values in self._others)]


def compared(path, **changes):
    """What ranks compare of a run with a policy file."""
    return {
        "--seed": 3,
        **comparable_policy_changes(runtime_settings(policy_changes=changes)),
    }


def test_ranks_compare_the_content_of_the_file_and_not_its_path():
    local = compared("a.json", softmax="bfloat16", loss="float32")
    same = {**compared("b.json", loss="float32", softmax="bfloat16"), "--seed": "3"}
    check_same_on_all_ranks(AnsweringRanks(same), local)
    other = {**compared("b.json", softmax="float16", loss="float32"), "--seed": "3"}
    difference = r"rank 1 .*--precision_policy's softmax \(float16 instead of bfloat16\)"
    with pytest.raises(UserError, match=difference):
        check_same_on_all_ranks(AnsweringRanks(other), local)
    without = {**compared(None), "--seed": "3"}
    with pytest.raises(UserError, match=r"--precision_policy's loss \(None instead of float32\)"):
        check_same_on_all_ranks(AnsweringRanks(without), local)


@pytest.mark.parametrize(
    ("use_xla", "amp", "hardware", "compiles", "precision"),
    [
        (None, False, NEW_GPU, True, "auto"),
        (None, False, CPU, False, "auto"),
        (False, False, NEW_GPU, False, "auto"),
        (True, False, CPU, True, "auto"),
        (None, True, OLD_GPU, True, "fp16"),
        (None, True, CPU, False, "bf16"),
    ],
)
def test_what_the_hardware_decides(use_xla, amp, hardware, compiles, precision):
    asked = dataclasses.replace(runtime_settings(amp=amp), use_xla=use_xla)
    found, notes = settled(asked, hardware)
    assert notes == []
    assert (found.use_xla, found.numerics.precision) == (compiles, precision)
    assert not found.numerics.amp


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (CPU, "fp32"),
        (FAST_CPU, "bf16"),
        (gpu(9, 0), "bf16"),
        (gpu(8, 0), "bf16"),
        (gpu(7, 5), "fp16"),
        (gpu(7, 0), "fp16"),
        (gpu(6, 1), "fp32"),
    ],
)
def test_auto_follows_the_hardware(hardware, expected):
    assert hardware.native_precisions()[0] == expected


def test_without_a_gpu_there_is_the_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert probe_hardware() == Hardware(processor=this_processor())


def test_the_weakest_of_all_ranks_decides():
    old, new = gpu(7, 5), gpu(9, 0)
    local = dataclasses.replace(new, gpu_count=4)
    found = weakest(local, [local, old])
    assert found.gpu_compute_capability == (7, 5)
    assert found.gpu_count == 4, "each rank has its own"
    assert weakest(local, [local, local]) == local
    assert weakest(local, [local, CPU]).gpu_compute_capability is None


def test_probe_takes_the_weakest_gpu(monkeypatch):
    details = {"a": {"compute_capability": (9, 0)}, "b": {"compute_capability": (7, 5)}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    found = probe_hardware()
    assert (found.gpu_compute_capability, found.gpu_count) == ((7, 5), 2)
