"""What all ranks can compute on, and the precision that follows from it."""

import socket

import pytest

from bert_tf.config.settings import CommunicationSettings
from bert_tf.errors import UserError
from bert_tf.model.precision import Hardware
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training.hardware import (
    agree_on_hardware,
    choose_precision,
    needs_loss_scale,
    precision_warnings,
)
from tests.support import runtime_settings

PLAIN_CPU = Hardware()
BF16_CPU = Hardware(cpu_flags=frozenset({"avx512_bf16"}))
NEW_GPU = Hardware(gpu_compute_capability=(9, 0))
OLD_GPU = Hardware(gpu_compute_capability=(7, 0))


@pytest.mark.parametrize(
    ("requested", "hardware", "expected"),
    [
        ("auto", PLAIN_CPU, "fp32"),
        ("auto", BF16_CPU, "bf16"),
        ("auto", NEW_GPU, "bf16"),
        ("auto", OLD_GPU, "fp16"),
        ("fp16", OLD_GPU, "fp16"),
        ("fp32", NEW_GPU, "fp32"),
        ("bf16", PLAIN_CPU, "bf16"),
    ],
)
def test_choose_precision(requested, hardware, expected):
    assert choose_precision(runtime_settings(precision=requested), hardware) == expected


class Everywhere(SingleProcess):
    """Rank 0 among ranks with the given hardware."""

    def __init__(self, *others):
        super().__init__(1)
        self._others = others

    def gather(self, value):
        return [value, *(("host-b", hardware) for hardware in self._others)]


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (NEW_GPU, NEW_GPU, "bf16"),
        (NEW_GPU, OLD_GPU, "fp16"),
        (OLD_GPU, NEW_GPU, "fp16"),
        (BF16_CPU, PLAIN_CPU, "fp32"),
        (PLAIN_CPU, BF16_CPU, "fp32"),
    ],
)
def test_all_ranks_choose_the_precision_of_the_weakest(own, other, expected):
    agreed = agree_on_hardware(Everywhere(other), own)
    assert choose_precision(runtime_settings(precision="auto"), agreed) == expected


def test_alone_a_rank_agrees_with_itself():
    for hardware in (PLAIN_CPU, BF16_CPU, OLD_GPU):
        assert agree_on_hardware(SingleProcess(1), hardware) == hardware


def test_a_host_without_its_gpu_is_named():
    with pytest.raises(UserError, match="rank 2 on host host-b finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU, PLAIN_CPU), NEW_GPU)
    with pytest.raises(UserError, match=f"rank 0 on host {socket.gethostname()} finds no GPU"):
        agree_on_hardware(Everywhere(NEW_GPU), PLAIN_CPU)


@pytest.mark.parametrize(("hardware", "advice"), [(PLAIN_CPU, "fp32"), (BF16_CPU, "bf16")])
def test_float16_on_a_cpu_is_refused_unless_asked_for_twice(hardware, advice):
    with pytest.raises(UserError, match=f"--precision=fp16 on a CPU .*--precision={advice},"):
        choose_precision(runtime_settings(precision="fp16"), hardware)
    allowed = runtime_settings(precision="fp16", allow_slow_fp16=True)
    assert choose_precision(allowed, hardware) == "fp16"


@pytest.mark.parametrize(
    ("amp", "chosen", "hardware", "parts"),
    [
        (False, "fp32", PLAIN_CPU, []),
        (False, "bf16", BF16_CPU, []),
        (False, "bf16", PLAIN_CPU, ["emulates bf16"]),
        (True, "fp32", PLAIN_CPU, ["--amp"]),
        (True, "fp32", BF16_CPU, []),
        (True, "fp32", OLD_GPU, []),
        (False, "bf16", OLD_GPU, ["emulates bf16"]),
    ],
)
def test_warnings_of_a_precision_that_the_hardware_is_not_made_for(amp, chosen, hardware, parts):
    found = precision_warnings(runtime_settings(amp=amp), chosen, hardware)
    assert len(found) == len(parts)
    for warning, part in zip(found, parts):
        assert part in warning


@pytest.mark.parametrize(
    ("amp", "chosen", "hardware", "expected"),
    [
        (False, "fp16", OLD_GPU, True),
        (False, "fp16", PLAIN_CPU, True),
        (False, "bf16", NEW_GPU, False),
        (False, "fp32", NEW_GPU, False),
        # The rewrite computes in float16 on a GPU and in bfloat16 on a CPU.
        (True, "fp32", NEW_GPU, True),
        (True, "fp32", BF16_CPU, False),
    ],
)
def test_loss_scaling_goes_with_float16(amp, chosen, hardware, expected):
    assert needs_loss_scale(runtime_settings(amp=amp), chosen, hardware) == expected


def test_loss_scaling_goes_with_compressed_gradients():
    half = CommunicationSettings(compression="fp16")
    for horovod in (False, True):
        settings = runtime_settings(horovod=horovod, communication=half)
        assert needs_loss_scale(settings, "fp32", PLAIN_CPU) == horovod
