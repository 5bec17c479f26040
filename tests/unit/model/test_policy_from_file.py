"""A graph built with the policy of a file has the file's types, class by class."""

import json

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.policy_file import MODULE_CLASSES, read_policy_file
from bert_tf.model.precision import policy_for
from tests.unit.model.test_graph_dtypes import SIGNS, build, float_types

FILES = [
    ("fp32", {"logits": "bf16", "softmax": "bf16", "embeddings": "fp16"}),
    ("bf16", {"dense": "fp32", "layer_norm": "fp16", "activations": "bfloat16"}),
    ("bf16", dict.fromkeys(MODULE_CLASSES, "bfloat16")),
]


@pytest.mark.parametrize(
    ("precision", "content"), FILES, ids=["few classes", "taken out", "every class"]
)
def test_the_graph_obeys_the_file(config, batch, tmp_path, precision, content):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(content))
    changes = read_policy_file(path)
    expected = {**policy_for(precision).describe(), **changes}
    found = {}
    with tf.Graph().as_default() as graph:
        build(config, batch, policy_for(precision).changed(changes))
        for module, kind, part in SIGNS:
            for operation in graph.get_operations():
                if operation.type == kind and part in operation.name:
                    found.setdefault(module, set()).update(float_types(operation))
    assert found == {module: {tf.as_dtype(name)} for module, name in expected.items()}
