"""The types in what XLA compiles of an update, read from its modules: the policy's promise.

Modules are read before XLA optimizes them. On CPUs it computes half precision in float32 wherever
the processor has no instruction for it, which is not a matter of the policy.
"""

import subprocess
import sys

import pytest

from benchmarks.gpu.hlo_types import LOGARITHMS, OUTPUTS, operation_types
from bert_tf.config.policy_file import TYPE_OF_PRECISION
from tests.helpers.programs import ROOT, environment

pytestmark = pytest.mark.each_tensorflow

KINDS = {"fp32": "xla", "bf16": "xla-bf16", "fp16": "xla-fp16"}
NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # as XLA writes them
# Part of an operation's name -> the products there that are float32 whatever the precision.
FLOAT32_PRODUCTS = ("seq_relationship/logits", "/embeddings/")
HALF_PRODUCTS = (
    *("attention/self", "attention/output", "intermediate/dense", "pooler/dense"),
    *("predictions/transform", "predictions/logits"),
)


@pytest.fixture(
    params=[pytest.param(p, marks=[] if p == "bf16" else pytest.mark.slow) for p in KINDS],
    scope="module",
)
def modules(request, tmp_path_factory):
    """The precision, and the texts of both modules of an update of pre-training."""
    directory = tmp_path_factory.mktemp(request.param)
    command = ["tests/parallel/updates_program.py", directory / "found.npz", "auto"]
    subprocess.run(
        [sys.executable, *command, KINDS[request.param]],
        cwd=ROOT,
        env={
            **environment(),
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": f"--xla_dump_to={directory} --xla_dump_hlo_as_text",
        },
        capture_output=True,
        check=True,
    )
    written = sorted(directory.glob("*.before_optimizations.txt"))
    texts = [path.read_text() for path in written]
    # One cut of the batch after the other, each with two functions.
    assert len(texts) == 4
    return NAMES[TYPE_OF_PRECISION[request.param]], texts[0], texts[1]


def test_products_have_the_type_of_the_policy(modules):
    kind, gradients, _ = modules
    for part in HALF_PRODUCTS:
        assert set(operation_types(gradients, part)["dot"]) == {kind}, part
    for part in FLOAT32_PRODUCTS:
        assert set(operation_types(gradients, part)["dot"]) == {"f32"}, part


def test_softmax_norms_and_losses_are_float32(modules):
    _, gradients, _ = modules
    found = operation_types(gradients)
    softmax = operation_types(gradients, "attention/self")
    assert set(softmax["exponential"]) == {"f32"}
    assert set(found["rsqrt"]) == set(found["tanh"]) == {"f32"}
    logarithms = [found[name] for name in LOGARITHMS if name in found]
    assert logarithms
    assert {kind for counts in logarithms for kind in counts} == {"f32"}


def test_gradients_and_updates_are_float32(modules):
    kind, gradients, update = modules
    assert set(operation_types(gradients)[OUTPUTS]) == {"f32"}
    found = operation_types(update)
    assert set(found["sqrt"]) == {"f32"}
    halves = {name for name, counts in found.items() if {"bf16", "f16"} & set(counts)}
    assert halves == set(), kind
