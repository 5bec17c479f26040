import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError
from bert_tf.model import precision
from bert_tf.model.precision import Hardware, policy_for, resolve_precision

CPU = Hardware()


def gpu(major, minor):
    return Hardware(gpu_compute_capability=(major, minor))


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
        (CPU, "auto"),
        (gpu(9, 0), "bf16"),
        (gpu(8, 0), "bf16"),
        (gpu(7, 5), "fp16"),
        (gpu(7, 0), "fp16"),
        (gpu(6, 1), "fp32"),
    ],
)
def test_auto_follows_a_gpu_and_is_measured_on_a_cpu(hardware, expected):
    assert resolve_precision("auto", hardware) == expected


def test_explicit_precision_is_kept_and_an_unknown_one_refused():
    assert resolve_precision("fp16", CPU) == "fp16"
    with pytest.raises(UserError, match=r"--precision=fp8 is unknown; choose one of auto, fp32"):
        resolve_precision("fp8", CPU)
    with pytest.raises(ValueError, match="fp8"):
        policy_for("fp8")


@pytest.mark.parametrize(
    ("name", "hardware", "warns"),
    [
        ("fp32", CPU, False),
        ("bf16", CPU, False),  # whether it is slow is measured
        ("fp16", CPU, True),
        ("fp16", gpu(8, 0), False),
        ("bf16", gpu(7, 5), True),
    ],
)
def test_emulated_precision_gives_a_warning(name, hardware, warns):
    warning = precision.slow_precision_warning(name, hardware)
    assert (warning is not None) == warns
    if warns:
        assert name in warning


def test_without_a_gpu_there_is_the_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert precision.probe_hardware() == Hardware()


def test_the_weakest_of_all_ranks_decides():
    old, new = gpu(7, 5), gpu(9, 0)
    own = dataclasses.replace(new, gpu_count=4)
    found = precision.weakest(own, [own, old])
    assert found.gpu_compute_capability == (7, 5)
    assert found.gpu_count == 4, "that is each rank's own matter"
    assert precision.weakest(own, [own, own]) == own
    assert precision.weakest(own, [own, CPU]).gpu_compute_capability is None
    assert precision.resolve_precision("auto", precision.weakest(own, [own, old])) == "fp16"


def test_probe_takes_the_weakest_gpu(monkeypatch):
    details = {"a": {"compute_capability": (9, 0)}, "b": {"compute_capability": (7, 5)}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    hardware = precision.probe_hardware()
    assert (hardware.gpu_compute_capability, hardware.gpu_count) == ((7, 5), 2)
