"""What all ranks can compute on, and the precision that follows from it."""

import dataclasses
import socket

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommunicationSettings
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning.hardware import (
    AMX,
    Hardware,
    agree_on_hardware,
    choose_policy,
    comparable_policy_changes,
    decide_precision,
    needs_loss_scale,
    probe_hardware,
    settled,
    slow_policy_warnings,
    slow_precision_warning,
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


def chosen_policy(hardware, **changes):
    """What a run with these settings takes on the hardware."""
    runtime = runtime_settings(**changes)
    precision, _ = decide_precision(runtime.numerics.precision, hardware)
    return choose_policy(runtime, precision, hardware)


@pytest.mark.parametrize(
    ("requested", "hardware", "expected"),
    [
        ("auto", CPU, "fp32"),
        ("auto", FAST_CPU, "bf16"),
        ("auto", NEW_GPU, "bf16"),
        ("auto", OLD_GPU, "fp16"),
        ("fp16", OLD_GPU, "fp16"),
        ("fp32", NEW_GPU, "fp32"),
        ("bf16", CPU, "bf16"),
    ],
)
def test_the_policy_of_a_precision(requested, hardware, expected):
    assert chosen_policy(hardware, precision=requested) == policy_for(expected)


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
    agreed = agree_on_hardware(Everywhere(other), local)
    assert chosen_policy(agreed, precision="auto") == policy_for(expected)


def test_alone_a_rank_agrees_with_itself():
    for hardware in (CPU, OLD_GPU):
        assert agree_on_hardware(SingleProcess(1), hardware) == hardware


def test_a_host_without_its_gpu_is_named():
    with pytest.raises(UserError, match="rank 2 on host host-b finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU, CPU), NEW_GPU)
    with pytest.raises(UserError, match=f"rank 0 on host {socket.gethostname()} finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU), CPU)


def test_float16_on_a_cpu_is_refused_unless_requested_twice():
    with pytest.raises(UserError, match=r"--precision=fp16 on a CPU .*--precision=auto,"):
        chosen_policy(CPU, precision="fp16")
    allowed = chosen_policy(CPU, precision="fp16", allow_slow_fp16=True)
    assert allowed == policy_for("fp16")


FLOAT16_LOGITS = {"logits": "float16", "loss": "float32"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_float16_for_one_class_on_a_cpu_is_refused_too(precision):
    settings = {"precision": precision, "policy_changes": FLOAT16_LOGITS}
    expected = (
        r"^float16 for logits \(--precision_policy\) on a CPU .*use float32 or bfloat16 there"
    )
    with pytest.raises(UserError, match=expected):
        chosen_policy(CPU, **settings)
    expected = dataclasses.replace(policy_for(precision), logits=tf.float16)
    assert chosen_policy(CPU, **settings, allow_slow_fp16=True) == expected
    assert chosen_policy(OLD_GPU, **settings) == expected


def test_a_file_may_take_the_float16_out_of_a_precision():
    changes = {"dense": "bfloat16", "attention": "float32"}
    policy = chosen_policy(CPU, precision="fp16", policy_changes=changes)
    assert policy == PrecisionPolicy(dense=tf.bfloat16)
    assert not needs_loss_scale(runtime_settings(), policy)


def test_missing_classes_keep_the_type_of_what_auto_found():
    changes = {"softmax": "bfloat16", "dense": "float32"}
    policy = chosen_policy(NEW_GPU, precision="auto", policy_changes=changes)
    assert policy == PrecisionPolicy(attention=tf.bfloat16, softmax=tf.bfloat16)
    policy = chosen_policy(CPU, precision="auto", policy_changes=changes)
    assert policy == PrecisionPolicy(softmax=tf.bfloat16)


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


SOFTMAX_BF16 = PrecisionPolicy(softmax=tf.bfloat16)
BOTH_HALVES = PrecisionPolicy(dense=tf.float16, loss=tf.bfloat16)


@pytest.mark.parametrize(
    ("policy", "hardware", "parts"),
    [
        (policy_for("fp32"), CPU, []),
        (policy_for("bf16"), FAST_CPU, []),
        (policy_for("bf16"), CPU, ["bfloat16 products are emulated"]),
        (policy_for("bf16"), OLD_GPU, ["emulates bf16"]),
        (SOFTMAX_BF16, OLD_GPU, ["emulates bf16"]),
        (BOTH_HALVES, FAST_CPU, ["emulates fp16"]),
        (BOTH_HALVES, CPU, ["bfloat16 products are emulated", "emulates fp16"]),
    ],
)
def test_warnings_of_a_precision_that_the_hardware_is_not_made_for(policy, hardware, parts):
    found = slow_policy_warnings(policy, hardware)
    assert len(found) == len(parts)
    for warning, part in zip(found, parts):
        assert part in warning


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (policy_for("fp16"), True),
        (policy_for("bf16"), False),
        (policy_for("fp32"), False),
        (BOTH_HALVES, True),
        (SOFTMAX_BF16, False),
    ],
)
def test_loss_scaling_goes_with_float16(policy, expected):
    assert needs_loss_scale(runtime_settings(), policy) == expected


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
    found = settled(asked, hardware)
    assert (found.use_xla, found.numerics.precision) == (compiles, precision)
    assert not found.numerics.amp


def test_loss_scaling_goes_with_compressed_gradients():
    half = CommunicationSettings(compression="fp16")
    for horovod in (False, True):
        settings = runtime_settings(library="horovod" if horovod else None, communication=half)
        assert needs_loss_scale(settings, policy_for("fp32")) == horovod


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
    assert decide_precision("auto", hardware) == (expected, hardware.describe())


def test_explicit_precision_is_kept_and_an_unknown_one_refused():
    assert decide_precision("fp16", CPU, before="fp32") == ("fp16", None)
    with pytest.raises(UserError, match=r"--precision=fp8 is unknown; choose one of auto, fp32"):
        decide_precision("fp8", CPU)


@pytest.mark.parametrize(
    ("name", "hardware", "warns"),
    [
        ("fp32", CPU, False),
        ("bf16", FAST_CPU, False),
        ("fp16", CPU, True),
        ("fp16", gpu(8, 0), False),
        ("bf16", gpu(7, 5), True),
    ],
)
def test_emulated_precision_gives_a_warning(name, hardware, warns):
    warning = slow_precision_warning(name, hardware)
    assert (warning is not None) == warns
    if warns:
        assert name in warning


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
    assert decide_precision("auto", weakest(local, [local, old]))[0] == "fp16"


def test_probe_takes_the_weakest_gpu(monkeypatch):
    details = {"a": {"compute_capability": (9, 0)}, "b": {"compute_capability": (7, 5)}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    found = probe_hardware()
    assert (found.gpu_compute_capability, found.gpu_count) == ((7, 5), 2)
