"""Prediction with native operations: TensorFlow's results, and exports without them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.inference.settings import chosen_options
from bert_tf.model.config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model_directory.complete import find_model
from bert_tf.native import library
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import trained_model
from bert_tf.tuning import arithmetic
from bert_tf.tuning.hardware import Hardware
from bert_tf.util.errors import UserError
from tests.helpers import rounding
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.small_span_model import VOCABULARY, predictor_of, write_model


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return find_model(write_model(tmp_path_factory.mktemp("model")))


def operations(graph_def):
    functions = [node for f in graph_def.library.function for node in f.node_def]
    return {node.op for node in [*graph_def.node, *functions]}


def batch():
    """Sequences of three lengths."""
    generator = np.random.default_rng(3)
    mask = (np.arange(24) < np.array([[24], [17], [9]])).astype(np.int32)
    segments = (np.arange(24) >= 5) * mask
    ids = generator.integers(len(VOCABULARY), size=mask.shape) * mask
    return dict(zip(INPUTS, (ids, mask, segments)))


# Relative to the logits' norm. In float32 both forms pass through some 8 products with sums of up
# to 64 terms. In bfloat16, only TensorFlow's form rounds attention's scores.
TOLERANCE = {"fp32": rounding.of_products(8, 64), "bf16": 2.0**-6}


@requires_native_ops
@pytest.mark.parametrize("precision", TOLERANCE)
def test_logits_are_those_of_tensorflow(parts, precision):
    build = {"precision": precision, "threads": 1}
    native = predictor_of(parts, **build)
    plain = predictor_of(parts, portable=True, **build)
    found = {op for op in operations(native.graph.as_graph_def()) if op.startswith("BertTf")}
    assert found >= {"BertTfAttention", "BertTfResidualNorm"}
    assert not any(op.startswith("BertTf") for op in operations(plain.graph.as_graph_def()))
    features = batch()
    at_tokens = features["input_mask"].astype(bool)
    ours, reference = native.run(features), plain.run(features)
    for name in ("start_logits", "end_logits"):
        difference = ours[name][at_tokens] - reference[name][at_tokens]
        norm = np.linalg.norm(reference[name][at_tokens])
        assert np.linalg.norm(difference) <= TOLERANCE[precision] * norm


def test_kernels_are_cast_once(parts):
    """Kept in bfloat16, with the same bits as casting them for every batch."""
    build = {"precision": "bf16", "threads": 1}
    kept = predictor_of(parts, native_ops=False, **build)
    portable = predictor_of(parts, portable=True, **build)
    copies, none = (m.graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES) for m in (kept, portable))
    assert len(copies) == 6 * parts.config.num_hidden_layers
    assert {copy.dtype for copy in copies} == {tf.bfloat16}
    assert not none
    ours, reference = kept.run(batch()), portable.run(batch())
    for name, values in reference.items():
        np.testing.assert_array_equal(ours[name], values)


def test_an_export_has_no_native_operations(parts, tmp_path):
    trained = trained_model(parts)
    exported = export_saved_model(
        trained, ExportSettings(), tmp_path / "squad", precision="bf16"
    ).path
    saved = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    [meta_graph] = saved.meta_graphs
    assert not any(op.startswith("BertTf") for op in operations(meta_graph.graph_def))
    assert "local_variables" not in meta_graph.collection_def


def test_options_follow_from_this_machine(parts, monkeypatch):
    probes = []
    monkeypatch.setattr(arithmetic, "probe_hardware", lambda: probes.append(1) or Hardware())
    options, warnings = chosen_options(parts.config, precision="auto", native_ops=False)
    assert (options, warnings) == (ForwardOptions(policy_for("fp32")), [])
    assert probes == [1]


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=requires_native_ops)])
def test_options_that_were_chosen_are_kept(parts, native):
    options = ForwardOptions(policy_for("bf16"), native_layers=native)
    assert predictor_of(parts, options=options).network.options == options
    portable = predictor_of(parts, options=options, portable=True)
    assert portable.network.options == options.with_native_layers(False)


@requires_native_ops
def test_types_without_native_operations(parts, monkeypatch):
    monkeypatch.setattr(arithmetic, "_check_computed", lambda *_, **__: None)
    changes = {"softmax": "bfloat16"}
    assert chosen_options(parts.config)[0].native_layers
    assert not chosen_options(parts.config, policy_changes=changes)[0].native_layers


def test_required_operations_that_are_not_built(monkeypatch, parts):
    def fail():
        raise library.MissingLibrary("they are not built")

    monkeypatch.setattr(arithmetic, "native_operations", fail)
    assert not chosen_options(parts.config)[0].native_layers
    with pytest.raises(UserError, match=r"^--native_ops: they are not built; drop the flag"):
        predictor_of(parts, native_ops=True)
