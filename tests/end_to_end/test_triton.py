"""Exported models in NVIDIA's Triton server, started as the page on serving says."""

import numpy as np
import pytest

from bert_tf.records.sequences import padded_inputs
from bert_tf.serving.load import load_model
from tests.helpers.programs import run
from tests.helpers.small_task_models import CLASSES, WORD_LABELS, WRITERS
from tests.helpers.triton import infer, triton_server

pytestmark = pytest.mark.slow

TEXTS = ["who wrote", "who wrote the book"]
REQUEST = padded_inputs([[2, 5, 6, 3], [2, 5, 6, 7, 8, 3]], 6, pad_id=0)
EXPORTS = {
    "texts": ("classification", "--format=onnx"),
    "texts_graph": ("classification", "--server=triton"),
    "words": ("tagging", "--format=onnx"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {task: WRITERS[task](root / task) for task in ("classification", "tagging")}


@pytest.fixture(scope="module")
def address(models, tmp_path_factory):
    for name in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    repository = tmp_path_factory.mktemp("serving")
    for name, (task, flag) in EXPORTS.items():
        run("-m", "bert_tf.commands.export", f"--model_dir={models[task]}", flag,
            f"--export_dir={repository / name}")  # fmt: skip
    with triton_server(repository, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.mark.parametrize("name", ["texts", "texts_graph"])
def test_classes_of_texts(address, models, name):
    found = infer(address, name, REQUEST)
    expected = load_model(models["classification"]).predict(TEXTS)
    for row, text in enumerate(expected):
        probabilities = dict(zip(CLASSES["single"].labels, found["probabilities"][row]))
        assert probabilities == pytest.approx(text.probabilities, abs=1e-5)
    labels = [CLASSES["single"].labels.index(text.label) for text in expected]
    assert found["label_id"].ravel().tolist() == labels
    if name == "texts_graph":
        assert found["label"].ravel().tolist() == [text.label for text in expected]


def test_labels_of_words(address, models):
    found = infer(address, "words", REQUEST)
    expected = load_model(models["tagging"]).predict([text.split() for text in TEXTS])
    for row, text in enumerate(expected):
        numbers = found["label_ids"][row, 1 : 1 + len(text.words)].astype(int)
        assert [WORD_LABELS[number] for number in numbers] == list(text.labels)


def test_any_batch_and_any_length(address):
    one = {name: value[:1, :4] for name, value in REQUEST.items()}
    alone, both = (infer(address, "texts", request)["logits"] for request in (one, REQUEST))
    np.testing.assert_allclose(alone, both[:1], atol=1e-5)
