"""Configurations and vocabularies against what stands beside weights, file by file."""

import dataclasses
import hashlib
import json

import pytest

from bert_tf.checkpoint.formats import Source
from bert_tf.commands.convert import _with_given_files
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import other_function, other_vocabulary
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.model_directory.record import MODEL_RECORD_NAME, ModelRecord, write_record
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "été", "a"]
CONFIG = BertConfig(vocab_size=7, hidden_size=12, num_attention_heads=3, hidden_act="gelu_erf")


def write_vocabulary(path, entries=ENTRIES, line_end="\n", last=True):
    path.write_bytes((line_end.join(entries) + line_end * last).encode())
    return path


def write_model_record(directory, digest=None):
    """What a training leaves, in which vocabulary and network are named."""
    write_record(ModelRecord(CONFIG.to_dict(), vocabulary_digest=digest, directory=directory))


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(name="model_dir")
def directory_of_a_model(tmp_path):
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("known_from", ["vocab.txt", MODEL_RECORD_NAME])
def test_the_same_entries_are_the_same_vocabulary(model_dir, tmp_path, line_end, last, known_from):
    own = TokenizerFiles(write_vocabulary(tmp_path / "own.txt", line_end="\r\n")).vocabulary()
    theirs = write_vocabulary(model_dir / "vocab.txt", line_end=line_end, last=last)
    if known_from == MODEL_RECORD_NAME:
        write_model_record(model_dir, digest=sha256_of(theirs))
        theirs.unlink()
    assert other_vocabulary(ModelDirectory.of(model_dir), own) == ("", [])


@pytest.mark.parametrize("known_from", ["vocab.txt", MODEL_RECORD_NAME])
def test_other_entries_are_another_vocabulary(model_dir, tmp_path, known_from):
    own = TokenizerFiles(write_vocabulary(tmp_path / "own.txt")).vocabulary()
    theirs = write_vocabulary(model_dir / "vocab.txt", [*ENTRIES[:5], "a", "été"])
    if known_from == MODEL_RECORD_NAME:
        write_model_record(model_dir, digest=sha256_of(theirs))
        write_vocabulary(theirs)  # the file was replaced since
    problem, _ = other_vocabulary(ModelDirectory.of(model_dir), own)
    expected = f"a different vocabulary ({model_dir / known_from}) than {tmp_path / 'own.txt'}"
    assert problem == f"it has {expected}"


def test_bytes_of_a_sentencepiece_model_count(model_dir, tmp_path):
    (model_dir / "spm.model").write_bytes(b"a\nb\n")
    (tmp_path / "own.model").write_bytes(b"a\nb")
    own = TokenizerFiles(spm_model_file=tmp_path / "own.model").vocabulary()
    assert "a different vocabulary" in other_vocabulary(ModelDirectory.of(model_dir), own)[0]
    own = TokenizerFiles(spm_model_file=model_dir / "spm.model").vocabulary()
    assert other_vocabulary(ModelDirectory.of(model_dir), own) == ("", [])


@pytest.mark.parametrize("has_record", [True, False])
def test_what_nobody_knows_is_said(model_dir, tmp_path, has_record):
    if has_record:
        write_model_record(model_dir)
    own = TokenizerFiles(write_vocabulary(tmp_path / "own.txt")).vocabulary()
    problem, [note] = other_vocabulary(ModelDirectory.of(model_dir), own)
    assert not problem
    assert note.startswith("the vocabulary was not compared: no file of the model ")
    write_model_record(model_dir, digest="a" * 64)
    problem, [note] = other_vocabulary(ModelDirectory.of(model_dir), None)
    assert not problem
    assert note.startswith("the vocabulary was not compared: no file of the data ")


def written(directory, **changes):
    """The files of a model with a configuration of these settings."""
    values = {**CONFIG.to_dict(), **changes}
    (directory / "bert_config.json").write_text(json.dumps(values))
    return ModelDirectory.of(directory)


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("gelu", "gelu", "same"),
        ("gelu", "gelu_tanh", "same"),
        ("gelu_erf", "gelu", "warning"),
        ("gelu", "gelu_erf", "warning"),
        ("gelu_tanh", "gelu_erf", "refused"),
        ("gelu_erf", "gelu_tanh", "refused"),
        ("gelu", "relu", "refused"),
        ("tanh", "gelu", "refused"),
    ],
)
def test_activations(model_dir, theirs, ours, outcome):
    """Only the bare word, which two programs mean two functions by, gets the benefit of doubt."""
    network = dataclasses.replace(CONFIG, hidden_act=ours)
    problem, notes = other_function(written(model_dir, hidden_act=theirs), network)
    found = "refused" if problem else "warning" if notes else "same"
    assert found == outcome
    assert all(note.startswith("warning: the checkpoint was made with ") for note in notes)


def test_the_record_tells_a_network_whose_configuration_is_lost(model_dir):
    write_model_record(model_dir)
    problem, _ = other_function(
        ModelDirectory.of(model_dir), dataclasses.replace(CONFIG, num_attention_heads=2)
    )
    expected = f"its configuration {model_dir / MODEL_RECORD_NAME} differs from the network's: "
    assert problem == f"{expected}num_attention_heads 3 -> 2"


def test_sizes_are_left_to_shapes_and_dropout_is_noted_once(model_dir):
    files = written(model_dir)
    write_model_record(model_dir)
    network = dataclasses.replace(CONFIG, num_hidden_layers=3, attention_probs_dropout_prob=0.0)
    problem, [note] = other_function(ModelDirectory.of(model_dir), network)
    assert not problem
    assert note == f"unlike in {files.config_file}: attention_probs_dropout_prob 0.1 -> 0.0"


def test_the_converter_refuses_files_of_another_model(model_dir, tmp_path):
    write_vocabulary(model_dir / "vocab.txt")
    source = Source(str(model_dir / "model.ckpt"), "google", written(model_dir), {})
    other = write_vocabulary(tmp_path / "other.txt", ENTRIES[::-1])
    wrong = {
        "num_attention_heads 3 -> 2": {
            "config": dataclasses.replace(CONFIG, num_attention_heads=2)
        },
        f"a different vocabulary ({model_dir / 'vocab.txt'}) than {other}": {
            "tokenizer_files": TokenizerFiles(other)
        },
    }
    for words, given in wrong.items():
        with pytest.raises(UserError) as error:
            _with_given_files(source, ModelDirectory(**given))
        assert words in str(error.value)
    right = write_vocabulary(tmp_path / "right.txt", line_end="\r\n")
    given = ModelDirectory(tokenizer_files=TokenizerFiles(right))
    assert _with_given_files(source, given).files.tokenizer_files.file == right
