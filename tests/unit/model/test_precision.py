import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError
from bert_tf.model import precision
from bert_tf.model.precision import Hardware, policy_for, resolve_precision

PLAIN_CPU = Hardware(cpu_flags=frozenset({"avx2", "avx512f"}))
AVX512_BF16 = Hardware(cpu_flags=frozenset({"avx2", "avx512_bf16"}))
AMX = Hardware(cpu_flags=frozenset({"amx_bf16"}))


def gpu(major, minor, flags=frozenset()):
    return Hardware(cpu_flags=flags, gpu_compute_capability=(major, minor))


@pytest.mark.parametrize(
    ("name", "product_type"),
    [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")],
)
def test_only_products_leave_float32(name, product_type):
    described = policy_for(name).describe()
    assert described == {
        "attention": product_type,
        "dense": product_type,
        "embeddings": "float32",
        "softmax": "float32",
        "layer_norm": "float32",
        "activations": "float32",
        "logits": "float32",
        "loss": "float32",
    }


def test_policy_cannot_be_changed():
    with pytest.raises(AttributeError):
        policy_for("fp32").dense = tf.bfloat16


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (PLAIN_CPU, "fp32"),
        (AVX512_BF16, "bf16"),
        (AMX, "bf16"),
        (gpu(9, 0), "bf16"),
        (gpu(8, 0), "bf16"),
        (gpu(7, 5), "fp16"),
        (gpu(7, 0), "fp16"),
        (gpu(6, 1), "fp32"),
        (gpu(7, 0, flags=AMX.cpu_flags), "fp16"),
    ],
)
def test_auto_follows_the_hardware(hardware, expected):
    assert resolve_precision("auto", hardware) == expected


def test_explicit_precision_is_kept_and_an_unknown_one_refused():
    assert resolve_precision("fp16", PLAIN_CPU) == "fp16"
    with pytest.raises(UserError, match=r"--precision=fp8 is unknown; choose one of auto, fp32"):
        resolve_precision("fp8", PLAIN_CPU)
    with pytest.raises(ValueError, match="fp8"):
        policy_for("fp8")


@pytest.mark.parametrize(
    ("name", "hardware", "warns"),
    [
        ("fp32", PLAIN_CPU, False),
        ("bf16", PLAIN_CPU, True),
        ("bf16", AMX, False),
        ("fp16", AMX, True),
        ("fp16", gpu(8, 0), False),
        ("bf16", gpu(7, 5), True),
    ],
)
def test_emulated_precision_gives_a_warning(name, hardware, warns):
    warning = precision.slow_precision_warning(name, hardware)
    assert (warning is not None) == warns
    if warns:
        assert name in warning


def test_probe_reads_the_flags_of_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx512_bf16\n\nflags : other\n")
    hardware = precision.probe_hardware(str(cpuinfo))
    assert hardware == Hardware(cpu_flags=frozenset({"fpu", "sse2", "avx512_bf16"}))
    missing = precision.probe_hardware(str(tmp_path / "none"))
    assert missing == Hardware()


def test_the_weakest_of_all_ranks_decides():
    old, new = gpu(7, 5, flags=frozenset({"avx2"})), gpu(9, 0, flags=frozenset({"avx2", "bf16"}))
    own = dataclasses.replace(new, gpu_count=4)
    found = precision.weakest(own, [own, old])
    assert found.gpu_compute_capability == (7, 5)
    assert found.cpu_flags == {"avx2"}
    assert found.gpu_count == 4, "that is each rank's own matter"
    assert precision.weakest(own, [own, own]) == own
    assert precision.weakest(own, [own, PLAIN_CPU]).gpu_compute_capability is None
    assert precision.resolve_precision("auto", precision.weakest(own, [own, old])) == "fp16"
    mixed = precision.weakest(AVX512_BF16, [AVX512_BF16, PLAIN_CPU])
    assert precision.resolve_precision("auto", mixed) == "fp32"


def test_probe_takes_the_weakest_gpu(tmp_path, monkeypatch):
    details = {"a": {"compute_capability": (9, 0)}, "b": {"compute_capability": (7, 5)}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    hardware = precision.probe_hardware(str(tmp_path / "none"))
    assert (hardware.gpu_compute_capability, hardware.gpu_count) == ((7, 5), 2)
