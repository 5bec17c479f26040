"""The converter as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands import convert as command
from bert_tf.model_directory.complete import other_vocabulary
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.model_directory.record import record_of, write_record
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, environment, run
from tests.unit.checkpoint.tiny_models import huggingface_model, save_google

# A program in which importing torch or transformers fails.
WITHOUT_TRANSFORMERS = """
import runpy, sys
sys.modules.update(transformers=None)
sys.argv[0] = "convert"
runpy.run_module("bert_tf.commands.convert", run_name="__main__")
"""
STATE = {
    "bert/pooler/dense/bias/adam_m": np.full(12, 0.5, np.float32),
    "bert/pooler/dense/bias/adam_v": np.full(12, 0.25, np.float32),
    "global_step": np.int64(9),
}


@pytest.fixture(name="google")
def google_directory(tmp_path):
    save_google(tmp_path / "google", "BertForPreTraining", extra=STATE)
    return tmp_path / "google"


@pytest.fixture(name="binary")
def pytorch_directory(tmp_path):
    """A model as it was published before safetensors."""
    model = huggingface_model("BertForSequenceClassification")
    model.config.id2label = {0: "no", 1: "yes", 2: "perhaps"}
    model.save_pretrained(tmp_path / "binary", safe_serialization=False)
    return tmp_path / "binary"


def convert(path, output_dir, target, **arguments):
    return command.convert(open_source(path), output_dir, target, **arguments)


def test_the_command_needs_no_transformers_and_says_what_it_did(tmp_path, binary):
    target = tmp_path / "new/converted"
    flags = (f"--input={binary}", f"--output_dir={target}", "--format=google")
    done = run("-c", WITHOUT_TRANSFORMERS, *flags)
    assert done.stdout.splitlines() == [
        f"{binary / 'pytorch_model.bin'}: 41 variables converted",
        "format: Hugging Face; exact GELU (gelu_erf)",
        "warning: the model was made with the exact GELU, which bert_config.json calls gelu_erf; "
        "Google's and NVIDIA's code refuse that name and with \"gelu\" they compute the tanh "
        "form, so outputs differ slightly",
        "no vocabulary is stored with the checkpoint; --vocab_file adds one",
        f"{target} (Google): bert_config.json, bert_model.ckpt.data-00000-of-00001, "
        "bert_model.ckpt.index, bert_model.ckpt.meta, model.json",
    ]
    again = run("-c", WITHOUT_TRANSFORMERS, *flags, check=False)
    assert again.returncode == 2
    assert again.stderr == (
        f"error: --output_dir={target} exists and is not empty; choose another directory.\n"
    )


@pytest.mark.each_tensorflow
def test_files_that_are_elsewhere_are_given_by_flags(tmp_path, google):
    for name in ("bert_config.json", "vocab.txt"):
        (google / name).rename(tmp_path / name)
    (google / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"no configuration was found for .*; give the model"):
        convert(google, tmp_path / "out", "huggingface")
    done = run(
        "-m",
        "bert_tf.commands.convert",
        f"--input={google}",
        f"--output_dir={tmp_path / 'out'}",
        "--format=huggingface",
        f"--bert_config_file={tmp_path / 'bert_config.json'}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        "--nodo_lower_case",
    )
    assert "3 of a run's state, left out (--include_optimizer keeps them)" in done.stdout
    tokenizer = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] is False
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["hidden_act"], config["architectures"]) == ("gelu_new", ["BertForPreTraining"])


def test_optimizer_state_is_kept_on_demand(tmp_path, google):
    lines = convert(google, tmp_path / "run", "nvidia", include_optimizer=True)
    assert "3 of a run's state, kept" in lines
    (tmp_path / "run").rename(tmp_path / "moved")
    latest = tf.train.latest_checkpoint(str(tmp_path / "moved"))
    assert latest == str(tmp_path / "moved/model.ckpt-9")
    reader = tf.train.load_checkpoint(latest)
    for name, value in STATE.items():
        stored = reader.get_tensor(name)
        assert stored.dtype == value.dtype
        np.testing.assert_array_equal(stored, value)


def test_names_of_labels_are_kept_between_hugging_face_directories(tmp_path, binary):
    convert(binary, tmp_path / "safe", "huggingface")
    config = json.loads((tmp_path / "safe/config.json").read_text())
    assert config["label2id"] == {"no": 0, "yes": 1, "perhaps": 2}


def test_weights_without_a_place_are_named(tmp_path):
    model = huggingface_model("BertForMaskedLM")
    state = {**model.state_dict(), "cls.species.weight": torch.ones(3, 12)}
    model.config.save_pretrained(tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    lines = convert(tmp_path, tmp_path / "out", "bert_tf")
    assert "1 of the checkpoint, unused: cls.species.weight" in lines
    assert json.loads((tmp_path / "out/bert_config.json").read_text())["hidden_act"] == "gelu_erf"


@pytest.mark.parametrize("target", ["bert_tf", "google", "huggingface"])
def test_the_hash_of_a_vocabulary_without_a_file_is_kept(tmp_path, google, target):
    write_record(
        record_of(google, ModelDirectory.of(google).config, TokenizerFiles.in_directory(google))
    )
    vocab_file = (google / "vocab.txt").rename(tmp_path / "vocab.txt")
    first, second = tmp_path / "first", tmp_path / "second"
    convert(google, first, target)
    convert(first, second, "nvidia")
    assert other_vocabulary(ModelDirectory.of(second), TokenizerFiles(vocab_file).vocabulary()) == (
        "",
        [],
    )
    vocab_file.write_text(vocab_file.read_text() + "more\n")
    problem, _ = other_vocabulary(
        ModelDirectory.of(second), TokenizerFiles(vocab_file).vocabulary()
    )
    named = f"a different vocabulary ({second / 'model.json'}) than {vocab_file}"
    assert problem == f"it has {named}"
    casing = json.loads((google / "tokenizer_config.json").read_text())["do_lower_case"]
    assert ModelDirectory.of(second).tokenizer_files.do_lower_case is casing


def shortened(directory):
    path = directory / "bert_config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))


def smaller(directory):
    path = directory / "bert_config.json"
    path.write_text(path.read_text().replace('"vocab_size": 40', '"vocab_size": 39'))


@pytest.mark.parametrize(
    ("damage", "target", "arguments", "words"),
    [
        (shortened, "bert_tf", {}, "it lacks bert/encoder/layer_2/attention/self/query/kernel,"),
        (smaller, "bert_tf", {}, "word_embeddings has [40, 12], not [39, 12]"),
        (
            lambda directory: None,
            "huggingface",
            {"include_optimizer": True},
            "--include_optimizer: a Hugging Face directory has no place",
        ),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(
    tmp_path, google, damage, target, arguments, words
):
    damage(google)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as error:
        convert(google, tmp_path / "out", target, **arguments)
    assert words in str(error.value)
    assert sorted(tmp_path.iterdir()) == before


# A conversion that ends, or waits, when all has been written but the directory's name.
HELD = """
import sys, time, os
from pathlib import Path
from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
def stop(directory):
    print(directory, flush=True)
    os.kill(os.getpid(), 9) if sys.argv[3] == "kill" else sys.stdin.read()
convert(open_source(Path(sys.argv[1])), sys.argv[2], "bert_tf", add_files=stop)
"""


def test_what_a_killed_conversion_left_is_removed_by_the_next(tmp_path, binary):
    done = run("-c", HELD, str(binary), str(tmp_path / "out"), "kill", check=False)
    left = Path(done.stdout.split()[-1])
    assert left.is_relative_to(tmp_path)
    assert (left / "checkpoint").is_file()
    before = {path for path in tmp_path.iterdir() if path not in left.parents}
    convert(binary, tmp_path / "out", "google")
    assert set(tmp_path.iterdir()) == {*before, tmp_path / "out"}


def test_two_conversions_at_once_to_one_directory(tmp_path, binary):
    program = subprocess.Popen(
        [sys.executable, "-c", HELD, binary, tmp_path / "out", "wait"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout.readline()
        with pytest.raises(UserError, match=rf"in use by process {program.pid} on host .*; wait"):
            convert(binary, tmp_path / "out", "google")
        program.stdin.close()
    assert program.returncode == 0
    assert (tmp_path / "out/checkpoint").is_file()
    assert set(tmp_path.iterdir()) == {binary, tmp_path / "out"}


def test_no_state_to_keep_and_no_place_to_write(tmp_path, binary):
    with pytest.raises(UserError, match="has no optimizer state; leave the flag out"):
        convert(binary, tmp_path / "out", "google", include_optimizer=True)
    with pytest.raises(UserError, match="--output_dir: cannot write"):
        convert(binary, binary / "config.json/out", "google")
    with pytest.raises(UserError, match="exists and is not empty"):
        convert(binary, binary / "config.json", "google")
    (tmp_path / "empty").mkdir()
    convert(binary, tmp_path / "empty", "bert_tf")
    assert (tmp_path / "empty/checkpoint").is_file()
