"""Whole runs: google-research/bert's lines, the order of the texts, resuming, and bad input."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.durable.resumable import ArrayParts
from bert_tf.durable.sealed_json import write_sealed_json
from bert_tf.model_directory.complete import find_model
from bert_tf.tasks.vectors import run as vectors
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.tasks.vectors.settings import FeatureSettings, VectorSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.settings import run_settings, runtime_settings, with_values
from tests.unit.checkpoint.tiny_models import save_google

LAYERS = (-1, -2)
MAX_LENGTH = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory, with texts of many lengths, some of which are pairs."""
    path = tmp_path_factory.mktemp("vectors") / "model"
    save_google(path, "BertModel")
    (path / "tokenizer_config.json").unlink()  # its casing is not that of these words
    rng = np.random.RandomState(0)
    lines = []
    for number in range(60):
        words = [f"w{n}" for n in rng.randint(0, 35, rng.randint(1, 9))]
        if number % 4 == 0:
            words.insert(len(words) // 2 + 1, "|||")
        lines.append(" ".join([*words, "w1"]))
    (path / "texts.txt").write_text("\n".join(lines) + "\n")
    return path


def settings_of(model, output_file, **changes):
    runtime = runtime_settings(precision="fp32", native_ops=False)
    settings = FeatureSettings(
        bert_config_file=None,
        tokenizer_files=TokenizerFiles(),
        input_file=changes.pop("input_file", model / "texts.txt"),
        output_file=output_file,
        run=run_settings(
            output_file.with_name(f"{output_file.name}.partial"), init_checkpoint=str(model)
        ),
        runtime=runtime,
        max_seq_length=MAX_LENGTH,
        batch_size=4,
    )
    return with_values(settings, **changes)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Several pieces of few texts."""
    monkeypatch.setattr(vectors, "PIECE_TOKENS", 64)


def encoder_of(model, **settings):
    return TextEncoder(find_model(model), VectorSettings(**settings), max_seq_length=MAX_LENGTH)


def parts_of(model):
    lines = (model / "texts.txt").read_text().splitlines()
    return [tuple(line.split(" ||| ")) for line in lines]


def test_lines_of_googles_script(model, tmp_path, capsys):
    output = tmp_path / "vectors.jsonl"
    vectors.run(settings_of(model, output, layers=LAYERS))
    encoder = encoder_of(model, pooling="none", layers=LAYERS)
    tokenizer = find_model(model).tokenizer
    lines = output.read_text().splitlines()
    parts = parts_of(model)
    assert len(lines) == len(parts)
    for number, (line, texts, found) in enumerate(zip(lines, parts, encoder.tokens(parts))):
        content = json.loads(line)
        assert line == json.dumps(content), "spelt as Python spells it"
        assert list(content) == ["linex_index", "features"]
        assert content["linex_index"] == number
        ids = encoder.maker.sequence(texts).ids.tolist()
        tokens = [feature["token"] for feature in content["features"]]
        assert tokens == tokenizer.convert_ids_to_tokens(ids)
        for feature, values in zip(content["features"], found):
            assert [layer["index"] for layer in feature["layers"]] == list(LAYERS)
            for layer, expected in zip(feature["layers"], values):
                assert layer["values"] == [round(value, 6) for value in layer["values"]]
                np.testing.assert_allclose(layer["values"], expected, atol=2e-5)
    cut = sum(encoder.maker.sequence(texts).is_cut for texts in parts)
    assert 0 < cut < 60
    assert f"{cut} of 60 texts were longer than --max_seq_length=8 and were cut" in (
        capsys.readouterr().out
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "vectors.jsonl",
        "vectors.jsonl.json",
    ]
    counts = json.loads((tmp_path / "vectors.jsonl.json").read_text())["counts"]
    assert counts == {"texts": 60, "cut_texts": cut, "rows": 60}


def test_pooled_vectors_as_json(model, tmp_path):
    output = tmp_path / "vectors.jsonl"
    vectors.run(settings_of(model, output, pooling="cls"))
    expected = encoder_of(model, pooling="cls").encode(parts_of(model))
    for number, line in enumerate(output.read_text().splitlines()):
        content = json.loads(line)
        assert content["linex_index"] == number
        [layer] = content["layers"]
        assert layer["index"] == -1
        np.testing.assert_allclose(layer["values"], expected[number], atol=2e-5)


@pytest.mark.parametrize(
    ("layers", "output_type"),
    [
        (None, "float16"),
        ((0, -1), "float32"),
        pytest.param(None, "float32", marks=pytest.mark.exhaustive),
        pytest.param((0, -1), "float16", marks=pytest.mark.exhaustive),
    ],
)
def test_an_array_in_the_order_of_the_texts(model, tmp_path, output_type, layers):
    output = tmp_path / "vectors.npy"
    settings = settings_of(
        model, output, pooling="mean", normalize=True, layers=layers, output_type=output_type
    )
    vectors.run(settings)
    found = np.load(output, mmap_mode="r")
    assert found.dtype == output_type
    encoder = encoder_of(model, pooling="mean", normalize=True, layers=layers)
    np.testing.assert_allclose(found, encoder.encode(parts_of(model)), atol=1e-3)
    shape = (60, 12) if layers is None else (60, 2, 12)
    assert found.shape == shape


def test_an_array_of_tokens(model, tmp_path):
    output = tmp_path / "vectors.npy"
    vectors.run(settings_of(model, output, layers=LAYERS))
    found, tokens = np.load(output), np.load(tmp_path / "vectors.tokens.npy")
    encoder = encoder_of(model, pooling="none", layers=LAYERS)
    for number, (texts, expected) in enumerate(
        zip(parts_of(model), encoder.tokens(parts_of(model)))
    ):
        rows = tokens["text"] == number
        assert tokens["id"][rows].tolist() == encoder.maker.sequence(texts).ids.tolist()
        np.testing.assert_allclose(found[rows], expected, atol=2e-5)


def test_a_finished_run_computes_nothing(model, tmp_path, monkeypatch, capsys):
    settings = settings_of(model, tmp_path / "v.npy", pooling="mean")
    vectors.run(settings)
    monkeypatch.setattr(vectors, "TextEncoder", None)
    vectors.run(settings)
    assert "v.npy was computed before; delete it to" in capsys.readouterr().out
    assert not (tmp_path / "v.npy.partial").exists()


class KilledError(Exception):
    pass


def stopped(model, output, monkeypatch, **changes):
    """Leaves pieces of a run behind."""
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(ArrayParts, "read_all", lambda *_: (_ for _ in ()).throw(KilledError))
        vectors.run(settings_of(model, output, **changes))


@pytest.mark.parametrize("is_finished", [False, True])
def test_other_settings(model, tmp_path, monkeypatch, is_finished):
    output = tmp_path / "v.npy"
    if is_finished:
        vectors.run(settings_of(model, output, pooling="mean"))
        sentence = r"v\.npy exists and was made otherwise"
    else:
        stopped(model, output, monkeypatch, pooling="mean")
        sentence = r"v\.npy\.partial has pieces of another computation of vectors"
    with pytest.raises(UserError, match=rf"{sentence} \(--pooling mean, not max"):
        vectors.run(settings_of(model, output, pooling="max"))


def test_other_texts_or_weights(model, tmp_path, monkeypatch):
    output, copied = tmp_path / "v.npy", tmp_path / "model"
    shutil.copytree(model, copied)
    stopped(copied, output, monkeypatch, pooling="mean")
    (copied / "texts.txt").write_text("w1\n" + (copied / "texts.txt").read_text())
    with pytest.raises(UserError, match=r"another computation of vectors \(sha256 of the texts\)"):
        vectors.run(settings_of(copied, output, pooling="mean"))
    shutil.rmtree(copied)
    save_google(copied, "BertModel", seed=5)
    (copied / "tokenizer_config.json").unlink()
    shutil.copy(model / "texts.txt", copied)
    with pytest.raises(UserError, match=r"another computation of vectors \(sha256 of the weights"):
        vectors.run(settings_of(copied, output, pooling="mean"))


def test_a_run_that_failed_before_its_first_piece_keeps_no_settings(model, tmp_path):
    output = tmp_path / "v.npy"
    with pytest.raises(UserError, match=r"--max_seq_length=4 has no room for a pair .* at least 5"):
        vectors.run(settings_of(model, output, pooling="mean", max_seq_length=4))
    vectors.run(settings_of(model, output, pooling="mean", max_seq_length=5))
    assert len(np.load(output)) == len(parts_of(model))


def test_a_file_that_something_else_made(model, tmp_path):
    (tmp_path / "v.npy").write_text("mine")
    with pytest.raises(UserError, match=r"v\.npy exists; delete it, or choose another name"):
        vectors.run(settings_of(model, tmp_path / "v.npy", pooling="mean"))
    assert (tmp_path / "v.npy").read_text() == "mine"


def test_vectors_that_are_not_finite(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        vectors.TextEncoder, "vectors", lambda _, sequences: [np.full((1, 12), np.nan)] * 99
    )
    with pytest.raises(UserError, match="gives line 1 a vector that is not finite: its training"):
        vectors.run(settings_of(model, tmp_path / "v.npy", pooling="mean"))


def test_half_precision_is_for_arrays(model, tmp_path):
    with pytest.raises(UserError, match=r"--output_dtype=float16 is for a \.npy file"):
        settings_of(model, tmp_path / "v.jsonl", output_type="float16")


@pytest.mark.parametrize("name", ["v.jsonl", "v.npy", "v.tokens.npy"])
@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content[::-1]])
def test_an_output_that_was_changed_is_not_complete(model, tmp_path, name, change):
    output = tmp_path / name.replace(".tokens", "")
    settings = settings_of(model, output, layers=LAYERS)
    vectors.run(settings)
    vectors.run(settings)
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    sentence = rf"{output.name} exists, but is not the file that was written: it was cut"
    with pytest.raises(UserError, match=sentence):
        vectors.run(settings)


def test_an_output_of_an_earlier_version_is_complete(model, tmp_path, capsys):
    settings = settings_of(model, tmp_path / "v.npy", pooling="mean")
    vectors.run(settings)
    path = tmp_path / "v.npy.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key != "files"}
    del content["content_sha256"]
    write_sealed_json(path, content)
    vectors.run(settings)
    assert "was computed before" in capsys.readouterr().out


def test_texts_that_are_mostly_unknown_are_refused(model, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("w1 w2 w3 w4\n" * 50 + "石 川\n" * 10)
    changes = {"input_file": tmp_path / "texts.txt", "pooling": "mean"}
    settings = settings_of(model, tmp_path / "v.npy", **changes)
    vectors.run(settings)
    assert "texts.txt: 9.1% of the 220 tokens are unknown" in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("w1\n" + "石 川\n" * 30)
    with pytest.raises(UserError, match=r"texts\.txt: 98\.4% of the 61 tokens are unknown"):
        vectors.run(settings)
