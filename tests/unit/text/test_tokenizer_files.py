"""The files of a tokenizer and its casing, from flags into a directory and out of it."""

import json
from types import SimpleNamespace

import pytest

from bert_tf.durable.manifest import describe_vocabulary
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.tokenizer_json import tokenizer_json
from bert_tf.util.errors import UserError
from tests.helpers.sentencepiece_models import train_sentencepiece

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "end"]


@pytest.fixture(name="vocab_file")
def wordpiece_entries(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return path


@pytest.fixture(name="spm_model_file", scope="module")
def sentencepiece_model(tmp_path_factory):
    return train_sentencepiece(tmp_path_factory.mktemp("spm") / "some.model")


def flags(vocab_file=None, spm_model_file=None, do_lower_case=None):
    return SimpleNamespace(
        vocab_file=vocab_file and str(vocab_file),
        spm_model_file=spm_model_file and str(spm_model_file),
        do_lower_case=do_lower_case,
    )


def test_flags_of_either_kind(vocab_file, spm_model_file):
    wordpiece = TokenizerFiles.from_flags(flags(vocab_file, do_lower_case=False))
    assert wordpiece == TokenizerFiles(vocab_file, None, False)
    assert not wordpiece.load().lower_case
    other = TokenizerFiles.from_flags(flags(spm_model_file=spm_model_file))
    assert other == TokenizerFiles(None, spm_model_file, None)
    assert other.load().lower_case
    assert TokenizerFiles.from_flags(flags()) == TokenizerFiles()
    with pytest.raises(UserError, match="--vocab_file and --spm_model_file exclude each other"):
        TokenizerFiles.from_flags(flags(vocab_file, spm_model_file))
    with pytest.raises(UserError, match=r"--spm_model_file: nowhere\.model does not exist"):
        TokenizerFiles.from_flags(flags(spm_model_file="nowhere.model"))


def test_a_directory_holds_the_vocabulary_that_was_copied_last(
    vocab_file, spm_model_file, tmp_path
):
    directory = tmp_path / "model"
    directory.mkdir()
    wordpiece, other = TokenizerFiles(vocab_file), TokenizerFiles(spm_model_file=spm_model_file)
    for files, name in ((wordpiece, "vocab.txt"), (other, "spm.model"), (wordpiece, "vocab.txt")):
        files.copy_to(directory)
        [path] = directory.iterdir()
        assert (path.name, path.read_bytes()) == (name, files.file.read_bytes())
        found = TokenizerFiles.in_directory(directory)
        assert (found.file, found.do_lower_case) == (path, None)
        assert found.vocabulary().is_same(files.vocabulary())
        found.copy_to(directory)  # onto itself, as a run that is resumed does
        assert path.read_bytes() == files.file.read_bytes()
    TokenizerFiles(do_lower_case=True).copy_to(directory)
    assert (directory / "vocab.txt").is_file()


def test_what_is_given_counts_first(vocab_file, tmp_path):
    found = TokenizerFiles.in_directory(tmp_path)
    assert found == TokenizerFiles()
    assert found.vocabulary() is None
    given = TokenizerFiles(vocab_file, do_lower_case=False)
    assert given.with_vocabulary_of(TokenizerFiles(tmp_path / "other.txt")) is given
    casing = TokenizerFiles(do_lower_case=False)
    chosen = casing.with_vocabulary_of(TokenizerFiles(vocab_file, do_lower_case=True))
    assert chosen == given


def test_two_vocabularies_of_one_model(vocab_file, spm_model_file):
    both = TokenizerFiles(vocab_file, spm_model_file)
    with pytest.raises(UserError, match=r"words\.txt and .*some\.model are two vocabularies of o"):
        TokenizerFiles().with_vocabulary_of(both)
    given = TokenizerFiles(vocab_file)
    assert given.with_vocabulary_of(both) is given


def test_accents_are_a_fact_of_their_own(vocab_file, tmp_path):
    """The files next to a vocabulary state them; nothing means exactly when lower-casing."""
    path = tmp_path / "vocab.txt"
    path.write_text(vocab_file.read_text())
    plain = TokenizerFiles.from_flags(flags(path)).with_casing()
    assert (plain.do_lower_case, plain.strip_accents, plain.strips_accents) == (True, None, True)
    assert plain.settings() == {"do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(
        '{"do_lower_case": true, "strip_accents": false}'
    )
    found = TokenizerFiles.from_flags(flags(path))
    assert (found.do_lower_case, found.strip_accents) == (True, False)
    assert found.settings() == {"do_lower_case": True, "strip_accents": False}
    assert found.required_vocabulary() == plain.required_vocabulary()
    entry = describe_vocabulary(found.load())
    assert entry.strip_accents is False
    assert entry.tokenizer_files(path) == found
    assert "strip_accents" not in describe_vocabulary(plain.load()).to_dict()
    given = SimpleNamespace(**vars(flags(path)), strip_accents=True)
    with pytest.raises(UserError, match=r"--strip_accents=true, but the files .* state false"):
        TokenizerFiles.from_flags(given)


def test_two_files_of_one_vocabulary_have_to_agree(vocab_file, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(vocab_file.read_text())
    content, _ = tokenizer_json(TokenizerFiles(vocab_file, None, True))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert TokenizerFiles.in_directory(tmp_path).kind == "wordpiece"
    path.write_text(vocab_file.read_text().replace("the\nend", "end\nthe"))
    with pytest.raises(UserError, match="have different entries; copy the one"):
        TokenizerFiles.in_directory(tmp_path)


def test_a_class_with_rules_of_its_own_is_refused_by_name(vocab_file, tmp_path):
    (tmp_path / "vocab.txt").write_text(vocab_file.read_text())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RoFormerTokenizer"}')
    with pytest.raises(UserError, match="names RoFormerTokenizer, a class of transformers"):
        TokenizerFiles.in_directory(tmp_path)


def test_rules_leave_no_choice_to_flags(vocab_file, tmp_path):
    (tmp_path / "vocab.txt").write_text(vocab_file.read_text())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    files = TokenizerFiles.in_directory(tmp_path)
    assert (files.kind, files.with_casing().do_lower_case) == ("tokenizer.json", True)
    for given in (TokenizerFiles(do_lower_case=False), TokenizerFiles(strip_accents=True)):
        with pytest.raises(UserError, match="leave the flag out"):
            given.with_vocabulary_of(files).with_casing(files)
    directory = tmp_path / "copy"
    directory.mkdir()
    files.copy_to(directory)
    assert [path.name for path in directory.iterdir()] == ["tokenizer.json"]
    files.copy_to(tmp_path)  # where vocab.txt is the source
    assert (tmp_path / "vocab.txt").is_file()
