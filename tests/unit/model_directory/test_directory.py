"""A checkpoint that is not there: with a model's name, a user learns that nothing is downloaded."""

from types import SimpleNamespace

import pytest

from bert_tf.commands import convert, fill_mask
from bert_tf.model_directory.complete import find_model
from bert_tf.model_directory.directory import require_checkpoint
from bert_tf.util.errors import UserError

NAMES = ["bert-base-uncased", "google-bert/bert-base-uncased", "uncased_L-12_H-768_A-12"]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_told_where_models_are(name):
    with pytest.raises(UserError) as error:
        require_checkpoint(name, flag="input")
    sentence = str(error.value)
    assert sentence.startswith(f"--input={name} is neither a file nor a directory, and no model")
    for file in ("google-research/bert", "Hugging Face", "model.safetensors", "vocab.txt"):
        assert file in sentence


@pytest.mark.parametrize(
    "path",
    ["/data/bert/bert_model.ckpt", "models/bert/base", "model.safetensors", "run/model.ckpt"],
)
def test_a_path_is_not_taken_for_a_name(path):
    with pytest.raises(UserError, match=f"--model_dir={path} does not exist; give a model direct"):
        require_checkpoint(path, flag="model_dir")


def test_what_is_there_is_not_refused(tmp_path):
    for name in ("bert_model.ckpt.index", "model[1].ckpt-5.data-00000-of-00001", "model.bin"):
        (tmp_path / name).touch()
    for path in (tmp_path, "bert_model.ckpt", "bert_model.ckpt.index", "model[1].ckpt-5",
                 "model.bin"):  # fmt: skip
        require_checkpoint(path, flag="input")


def ask_with_directory(name):
    find_model(name)


def ask_with_weights(name):
    find_model(init_checkpoint=name)


def fill(name):
    fill_mask.flags.FLAGS.init_checkpoint = name
    fill_mask.main(None)


def convert_it(name):
    convert.flags.FLAGS.input = name
    convert.main(None)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (ask_with_directory, "model_dir"),
        (ask_with_weights, "init_checkpoint"),
        (fill, "init_checkpoint"),
        (convert_it, "input"),
    ],
)
def test_every_command_that_takes_a_model(command, flag, tmp_path, monkeypatch):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    values = SimpleNamespace(
        model_dir=None,
        bert_config_file=None,
        vocab_file=vocabulary,
        spm_model_file=None,
        do_lower_case=None,
        top=1,
    )
    for module in (fill_mask, convert):
        monkeypatch.setattr(module.environment, "prepare_environment", lambda **_: None)
        monkeypatch.setattr(module.flags, "FLAGS", values)
    with pytest.raises(UserError, match=f"--{flag}=bert-base-uncased is neither a file nor a dir"):
        command("bert-base-uncased")
