"""Counting half precision in executed graphs; what the policy and --amp each cover."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.studies.dtype_coverage import Coverage, coverage_of
from tests.helpers.programs import ROOT, environment

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def test_what_is_counted():
    metadata = tf.RunMetadata()
    for graph in ([("MatMul", tf.bfloat16), ("Cast", tf.float16), ("Tanh", tf.float32)],
                  [("_FusedMatMul", tf.float32), ("Einsum", tf.float16), ("Mul", tf.float16),
                   ("Reshape", tf.bfloat16), ("AddV2", tf.int32), ("NoOp", None)]):  # fmt: skip
        nodes = metadata.partition_graphs.add().node
        for op, kind in graph:
            node = nodes.add(op=op)
            if kind is not None:
                node.attr["T"].type = kind.as_datatype_enum
    assert coverage_of(metadata) == Coverage(3, 2, others=2, half_others=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The program's table for a network of two layers: way -> coverage."""
    path = tmp_path_factory.mktemp("network") / "bert_config.json"
    path.write_text(json.dumps(CONFIG))
    sizes = ["--batch_size=2", "--seq_length=8"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.studies.dtype_coverage",
            f"--bert_config_file={path}",
            *sizes,
        ],
        cwd=ROOT,
        # The rewrite belongs to TensorFlow's oneDNN kernels, which not every CPU switches on.
        env={**os.environ, **environment(), "TF_ENABLE_ONEDNN_OPTS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return {name: Coverage(*map(int, counts)) for name, *counts in rows}


# Forward, and two in the backward pass: two layers of six dense and two attention products, pooler,
# masked-LM transform and words' scores in the policy; the next sentence's head beside them. The
# segments' product has no gradient for its one-hot rows.
IN_POLICY = 3 * (2 * (6 + 2) + 3)
ALL = IN_POLICY + 3 + 2


@pytest.mark.slow
def test_a_float32_update_has_no_half_precision(found):
    assert found["fp32"][:2] == (ALL, 0)
    assert found["fp32"].half_others == 0


@pytest.mark.slow
def test_the_policy_covers_its_products_and_nothing_else(found):
    assert found["bf16"][:2] == (ALL, IN_POLICY)
    assert found["bf16"].half_others == 0


@pytest.mark.slow
def test_the_rewrite_changes_the_update_and_covers_all_products(found):
    assert found["amp"].products == ALL
    assert found["amp"].half_products > IN_POLICY
    assert found["amp"].half_others > 0
