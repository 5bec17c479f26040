"""ONNX models compute what the loaded models do; skipped without tf2onnx and onnxruntime."""

import collections
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_tf.serving import export as exporting
from bert_tf.serving.export import TOLERANCE, export_onnx
from bert_tf.serving.load import load_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import open_trained
from bert_tf.util.errors import UserError
from tests.helpers.small_span_model import CONFIG, write_model
from tests.helpers.small_task_models import CLASSES, WORD_LABELS, WRITERS, write_classifier

TEXTS = ["who wrote the book ?", "anna", "where did she live in a town by sea ?"]


def export(directory, export_dir, **options):
    return export_onnx(open_trained(directory), ExportSettings(), export_dir, **options)


def session_of(exported):
    import onnxruntime

    path = exported.path / "model.onnx"
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def encoded(directory, texts):
    tokenizer = open_trained(directory).model.tokenizer
    rows = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    ids = np.zeros([len(rows), max(map(len, rows)) + 2], np.int32)
    for row, values in zip(ids, rows):
        row[: len(values)] = values
    return {
        "input_ids": ids,
        "input_mask": (ids > 0).astype(np.int32),
        "segment_ids": np.zeros_like(ids),
    }


def weights_of(exported):
    """Type -> number of weights of this type, in matrices."""
    import onnx

    found = collections.Counter()
    for weights in onnx.load(exported.path / "model.onnx").graph.initializer:
        if len(weights.dims) == 2:
            name = onnx.TensorProto.DataType.Name(weights.data_type)
            found[name] += int(np.prod(weights.dims))
    return found


@pytest.fixture(autouse=True)
def _packages(request):
    if not any(words in request.node.name for words in ("missing", "finite")):
        for name in ("onnxruntime", "tf2onnx"):
            pytest.importorskip(name, reason=f"{name} is not installed")


def takes_any_shape(session):
    """Whether any batch of sequences of any length may be given."""
    inputs = {one.name: one.shape for one in session.get_inputs()}
    outputs = {one.shape[0] for one in session.get_outputs()}
    names = ("input_ids", "input_mask", "segment_ids")
    return inputs == {name: ["batch", "length"] for name in names} and outputs == {"batch"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "single" else pytest.mark.exhaustive)
        for kind in CLASSES
    ],
)
def test_a_classifier(tmp_path, kind):
    directory = write_classifier(tmp_path / "model", kind)
    exported = export(directory, tmp_path / "onnx")
    assert 0 < exported.onnx_difference < TOLERANCE
    session = session_of(exported)
    assert takes_any_shape(session)
    expected = load_model(directory).predict(TEXTS)
    for texts in (TEXTS, TEXTS[:1]):  # any batch and length
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, encoded(directory, texts))))
        for row, one in enumerate(expected[: len(texts)]):
            if kind == "rating":
                assert found["rating"][row] == pytest.approx(one.rating, abs=1e-4)
                continue
            probabilities = list(one.probabilities.values())
            np.testing.assert_allclose(found["probabilities"][row], probabilities, atol=1e-4)
            if kind == "single":
                assert CLASSES[kind].labels[found["label_id"][row]] == one.label
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties.get("labels", "[]")) == list(CLASSES[kind].labels)
    assert (exported.path / "assets.extra/model.json").is_file()


@pytest.mark.parametrize(
    "task", ["question_answering", "tagging", pytest.param("masked_words", marks=pytest.mark.slow)]
)
def test_models_of_other_tasks(tmp_path, task):
    exported = export(WRITERS[task](tmp_path / "model"), tmp_path / "onnx")
    assert exported.onnx_difference < TOLERANCE
    session = session_of(exported)
    assert takes_any_shape(session)
    if task == "tagging":
        found = session.get_modelmeta().custom_metadata_map
        assert json.loads(found["labels"]) == list(WORD_LABELS)


@pytest.mark.slow
def test_int8(tmp_path):
    # More products than embeddings, and weights nearer to what is trained.
    config = dataclasses.replace(CONFIG, num_hidden_layers=2, initializer_range=0.1)
    directory = write_model(tmp_path / "model", span_head=False, config=config)
    plain, small = (export(directory, tmp_path / "onnx", int8=int8) for int8 in (False, True))
    assert (plain.path.name, small.path.name) == ("1", "2")
    assert plain.onnx_difference < TOLERANCE
    assert small.onnx_difference > 1e-4
    assert all(takes_any_shape(session_of(one)) for one in (plain, small))
    kinds = weights_of(small)
    assert kinds["INT8"] > 5 * kinds["FLOAT"]
    assert "INT8" not in weights_of(plain)
    feed = encoded(directory, TEXTS)
    exact, found = (session_of(one).run(["vectors"], feed)[0] for one in (plain, small))
    cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    assert cosines.min() > 0.97
    assert not list(small.path.glob("*.int8"))


def test_another_result_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", 1e-12)
    with pytest.raises(UserError, match="onnxruntime's outputs differ from the network's by"):
        export(write_classifier(tmp_path / "model"), tmp_path / "onnx")
    assert not list((tmp_path / "onnx").iterdir())


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"pip install 'bert_tf\[onnx\]', or tf2onnx"):
        export(write_classifier(tmp_path / "model"), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize(("wanted", "found"), [(np.nan, np.nan), (1.0, np.nan), (1.0, -np.inf)])
def test_numbers_that_are_not_finite_are_never_equal(monkeypatch, wanted, found):
    class Session:
        def __init__(self, *_, **__): ...

        def run(self, *_):
            return [np.array([1.0, found], np.float32)]

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    batch = exporting._Batch({}, {"logits": np.array([1.0, wanted], np.float32)})
    with pytest.raises(UserError, match="are NaN or infinite, so they cannot be compared"):
        exporting._difference(Path("model.onnx"), [batch])
