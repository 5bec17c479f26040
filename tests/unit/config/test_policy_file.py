"""Precision policy files: valid contents, and messages about invalid ones."""

import json

import pytest

from bert_tf.config.policy_file import MODULE_CLASSES, TYPE_OF_PRECISION, read_policy_file
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT


@pytest.fixture
def written(tmp_path):
    """Writes a file of text, or of an object as JSON."""

    def write(content):
        path = tmp_path / "policy.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_the_classes_are_those_of_the_policy():
    assert list(PrecisionPolicy().describe()) == list(MODULE_CLASSES)


def test_both_names_of_types(written):
    for precision, name in TYPE_OF_PRECISION.items():
        path = written({"softmax": precision, "loss": name})
        assert read_policy_file(path) == {"softmax": name, "loss": name}


def test_an_empty_object_changes_nothing(written):
    assert read_policy_file(written({})) == {}


WRONG = [
    ("no JSON", "{softmax: bf16}", r"policy\.json is not valid JSON"),
    ("a list", ["softmax"], r"policy\.json is not a JSON object; write e\.g\. \{\"softmax\""),
    (
        "unknown class",
        {"softmax": "bf16", "gelu": "bf16"},
        r"policy\.json has an unknown class 'gelu'; the classes are attention, dense, .*, loss",
    ),
    (
        "unknown type",
        {"softmax": "bf16", "loss": "float64"},
        r"policy\.json has an unknown type 'float64' for loss; choose one of float32, .*, fp16",
    ),
    ("no type", {"loss": 16}, r"policy\.json has an unknown type 16 for loss; choose one of"),
    ("types in a list", {"loss": ["bf16"]}, r"has an unknown type \['bf16'\] for loss; choose"),
]


@pytest.mark.parametrize(("content", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_invalid_files_give_one_sentence(written, content, message):
    with pytest.raises(UserError, match=f"--precision_policy: .*{message}") as error:
        read_policy_file(written(content))
    assert "\n" not in str(error.value)


def test_the_example_is_the_policy_of_bf16_written_out():
    types = read_policy_file(ROOT / "recipes/precision_half_policy.json")
    assert types == policy_for("bf16").describe()
