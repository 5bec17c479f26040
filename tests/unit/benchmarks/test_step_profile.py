from __future__ import annotations

import json

import pytest

from benchmarks.step_profile import REST, class_of, kernel_of, profile_results
from tests.helpers.programs import run
from tests.helpers.small_span_model import CONFIG


@pytest.mark.parametrize(
    ("kernel", "operation", "expected"),
    [
        ("_MklBatchMatMulV2", "bert/encoder/layer_1/attention/self/MatMul", "products"),
        ("_MklMatMul", "gradients/cls/predictions/transform/LayerNorm/x/MatMul", "products"),
        ("ResourceApplyAdam", "cond/AdamW/update/ResourceApplyAdam", "optimizer and clip"),
        ("Mul", "mul_17", "optimizer and clip"),
        ("Mul", "gradients/bert/encoder/layer_0/output/LayerNorm/mul_grad/Mul_1", "layer norm"),
        ("Tile", "gradients/bert/embeddings/LayerNorm/Mean_1_grad/Tile", "layer norm"),
        ("StatelessRandomUniformFullIntV2", "bert/embeddings/Stateless", "dropout"),
        ("Mul", "bert/encoder/layer_1/attention/output/mul_1", "dropout"),
        ("Mul", "bert/encoder/layer_0/intermediate/dense/mul", "gelu and its bias"),
        ("Mul", "gradients/bert/encoder/layer_1/attention/self/Softmax_grad/mul_1",
         "softmax and losses"),
        ("_MklTranspose", "bert/encoder/layer_1/attention/self/transpose", "transposes"),
        ("UnsortedSegmentSum", "gradients/x", "embedding"),
        ("BiasAddGrad", "gradients/bert/pooler/dense/BiasAdd_grad", "biases"),
        ("Pack", "unstack", REST),
    ],
)  # fmt: skip
def test_classes(kernel, operation, expected):
    assert class_of(kernel, operation) == expected


def test_kernels_of_labels():
    assert kernel_of("[mklcpu 0.2MB 0.2MB] a/mul = Mul(a/x, a/y)") == "Mul"
    assert kernel_of("a/Const = Const()") == "Const"
    assert kernel_of("no label") == ""


def test_results_are_medians_and_the_longest_comes_first():
    traced = [{"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 5.0}, {"b": 3.0}]
    results = profile_results(traced, {})
    assert [(r["name"], r["value"]) for r in results] == [("b", 3.0), ("a", 1.0), ("all", 3.0)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pretraining", "fine-tuning"])
def test_whole_profile(tmp_path, task):
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps(CONFIG.to_dict()))
    run(
        "-m", "benchmarks.step_profile", f"--bert_config_file={config}", "--batch_size=2",
        "--seq_length=16", "--predictions=2", "--steps=2", "--threads=1", "--precision=fp32",
        f"--task={task}", f"--json={tmp_path}/results.json",
    )  # fmt: skip
    results = {r["name"]: r for r in json.loads((tmp_path / "results.json").read_text())}
    assert {"products", "optimizer and clip", "layer norm", "dropout", "embedding"} <= set(results)
    parts = [r["config"]["turns"] for name, r in results.items() if name != "all"]
    assert [sum(step) for step in zip(*parts)] == pytest.approx(results["all"]["config"]["turns"])
    assert results["all"]["config"]["precision"] == "fp32"
