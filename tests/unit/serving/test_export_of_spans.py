"""A span model's SavedModel gives the same answers as the model in memory."""

import json

import numpy as np
import pytest
import tensorflow as tf2  # the loader of SavedModels that users have

from bert_tf.inference import graph_tokenizer
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import find_model
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import trained_model
from bert_tf.tasks.question_answering.windows import (
    WindowSettings,
    question_windows,
    sequence_arrays,
)
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY, predictor_of, write_model

OUTPUTS = {
    "start_logits",
    "end_logits",
    "top_start_indices",
    "top_start_logits",
    "top_end_indices",
    "top_end_logits",
    "null_logits",
}
LOWEST = np.finfo(np.float32).min
WINDOWS = WindowSettings(max_seq_length=24, max_query_length=6)


def export_squad(parts, export_dir, length=None, *, text_signature=False, **options):
    settings = ExportSettings(length, text_signature, 5, WINDOWS.max_query_length)
    return export_saved_model(trained_model(parts), settings, export_dir, **options).path


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return find_model(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    return export_squad(parts, tmp_path_factory.mktemp("export") / "squad")


@pytest.fixture(scope="module")
def signatures(exported):
    # The object owns the variables of its signatures.
    loaded = tf2.saved_model.load(str(exported))
    return {"owner": loaded, **loaded.signatures}


@pytest.fixture(scope="module")
def live(parts):
    return predictor_of(parts, num_candidates=5, native_ops=False)


def make_features(batch_size, seq_length, seed=0):
    """Sequences of different lengths, a question of three tokens in each."""
    generator = np.random.default_rng(seed)
    shape = batch_size, seq_length
    lengths = generator.integers(6, seq_length + 1, size=[batch_size, 1])
    mask = (np.arange(seq_length) < lengths).astype(np.int32)
    ids = generator.integers(len(VOCABULARY), size=shape).astype(np.int32)
    segments = np.broadcast_to(np.arange(seq_length) >= 5, shape).astype(np.int32) * mask
    return {"input_ids": ids * mask, "input_mask": mask, "segment_ids": segments}


def call(signature, features):
    tensors = {name: tf2.constant(value) for name, value in features.items()}
    return {name: value.numpy() for name, value in signature(**tensors).items()}


@pytest.mark.parametrize(("batch_size", "seq_length"), [(1, 6), (1, 64), (3, 17), (8, 32)])
def test_outputs_equal_the_live_model(signatures, live, batch_size, seq_length):
    features = make_features(batch_size, seq_length, seed=seq_length)
    found = call(signatures["serving_default"], features)
    assert set(found) == OUTPUTS
    for name, expected in live.run(features).items():
        expected = np.maximum(expected, LOWEST) if expected.dtype == np.float32 else expected
        np.testing.assert_allclose(found[name], expected, atol=1e-5, err_msg=name)


def test_places_without_a_candidate_are_finite(signatures):
    features = make_features(1, 6)  # no more than six positions in the context
    found = call(signatures["serving_default"], features)
    assert found["top_start_logits"].min() == LOWEST
    json.loads(json.dumps(found["top_start_logits"].tolist(), allow_nan=False))


def test_unique_ids_are_returned(signatures):
    features = make_features(2, 9)
    unique_ids = np.array([1000000001, 1000000000], np.int32)
    found = call(signatures["with_unique_ids"], {"unique_ids": unique_ids, **features})
    plain = call(signatures["serving_default"], features)
    assert found.pop("unique_ids").tolist() == unique_ids.tolist()
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
def test_half_precision_products(parts, live, tmp_path):
    target = export_squad(parts, tmp_path, 20, precision="bf16")
    loaded = tf2.saved_model.load(str(target))
    features = make_features(4, 20)
    found = call(loaded.signatures["serving_default"], features)["start_logits"]
    expected = live.run(features)["start_logits"]
    error = np.abs(found - expected).max()
    assert 1e-5 < error < 0.1 * np.abs(expected).max()
    with pytest.raises(tf2.errors.InvalidArgumentError, match="longer than 20 tokens"):
        call(loaded.signatures["serving_default"], make_features(1, 21))


def test_clients_find_vocabulary_and_configuration(exported, parts):
    extra = exported / "assets.extra"
    assert (extra / "vocab.txt").read_bytes() == parts.tokenizer_files.file.read_bytes()
    assert json.loads((extra / "tokenizer_config.json").read_text()) == {"do_lower_case": True}
    assert BertConfig.from_json_file(extra / "bert_config.json") == CONFIG.with_explicit_gelu()


def test_a_length_beyond_the_network(parts, tmp_path):
    with pytest.raises(UserError, match="--max_seq_length=65"):
        export_squad(parts, tmp_path / "squad", 65)


def test_a_failed_export_leaves_nothing(parts, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr("bert_tf.serving.export.write_model_files", fail)
    with pytest.raises(OSError, match="no space"):
        export_squad(parts, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
def test_signature_from_strings(tmp_path):
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    parts = find_model(write_model(tmp_path / "model"))
    target = export_squad(parts, tmp_path / "squad", WINDOWS.max_seq_length, text_signature=True)
    loaded = tf2.saved_model.load(str(target))
    questions = ["Who wrote the book?", "Where did she live in town by the sea?", ""]
    contexts = [TEXT, "Anna", "by the sea"]
    found = loaded.signatures["text"](
        question=tf2.constant(questions), context=tf2.constant(contexts)
    )
    found = {name: value.numpy() for name, value in found.items()}

    model = predictor_of(parts, native_ops=False)
    for row, (question, context) in enumerate(zip(questions, contexts)):
        ids = parts.tokenizer.encode(context)
        first, *_ = question_windows(parts.tokenizer.encode(question), len(ids), WINDOWS)
        features = sequence_arrays([(first, ids)], parts.tokenizer, first.length)
        for name, expected in features.items():
            padding = [(0, 0), (0, found[name].shape[1] - first.length)]
            np.testing.assert_array_equal(found[name][row : row + 1], np.pad(expected, padding))
        start = found["start_logits"][row, : first.length]
        np.testing.assert_allclose(start, model.run(features)["start_logits"][0], atol=1e-5)
        assert found["tokens_left_out"][row] == len(ids) - first.num_tokens
    assert found["tokens_left_out"][0] > 0


def test_without_the_library_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(graph_tokenizer.importlib, "import_module", missing)
    parts = find_model(write_model(tmp_path / "model"))
    with pytest.raises(UserError, match="pip install --no-deps tensorflow-text"):
        export_squad(parts, tmp_path / "squad", WINDOWS.max_seq_length, text_signature=True)
    assert not list((tmp_path / "squad").iterdir())


def test_no_room_for_an_export(parts, tmp_path):
    with (
        pytest.raises(UserError, match=f"cannot write to {tmp_path}.*File too large"),
        no_room(2000),
    ):
        export_squad(parts, tmp_path)
    assert list(tmp_path.iterdir()) == []
