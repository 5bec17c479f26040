"""Vocabulary and casing of records, from flags or from beside a checkpoint."""

import pytest
from absl import flags as absl_flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.durable.manifest import read_manifest
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import write_model_files
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.stages import create_pretraining_data
from data_prep.stages.stage import define_settings
from data_prep.stages.vocabulary_flags import VocabularyFiles, chosen_vocabulary

CONFIG = BertConfig(
    vocab_size=9,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    max_position_embeddings=16,
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path, *words):
    path.write_text("".join(f"{entry}\n" for entry in (*SPECIAL, *words)))
    return path


@pytest.fixture
def model(tmp_path):
    """A directory as it is published, without its weights: nothing of them is read."""
    directory = tmp_path / "published"
    directory.mkdir()
    vocab_file = write_vocabulary(tmp_path / "vocab.txt", "The", "end", "of", "it")
    write_model_files(directory, CONFIG, TokenizerFiles(vocab_file, do_lower_case=False))
    (directory / "model.json").unlink()
    return directory


@pytest.fixture
def choose():
    """Parses the flags of vocabularies, and chooses."""
    values = absl_flags.FlagValues()
    define_settings(VocabularyFiles, values=values)
    absl_flags.DEFINE_integer("max_seq_length", 16, "", flag_values=values)

    def choose(*given):
        values.unparse_flags()
        values(["program", *given])
        return chosen_vocabulary(from_flags(VocabularyFiles, values), values.max_seq_length)

    return choose


def test_nothing_is_chosen_for_those_who_say_nothing(choose):
    assert choose() is None


def test_vocabulary_and_casing_of_a_model(choose, model):
    chosen = choose(f"--init_checkpoint={model}")
    assert chosen == TokenizerFiles(model / "vocab.txt", do_lower_case=False)


@pytest.mark.parametrize("words", [["The", "end", "of", "it"], ["it", "of", "end", "The"]])
def test_another_vocabulary_than_the_model_s_is_refused(choose, model, tmp_path, words):
    own = write_vocabulary(tmp_path / "own.txt", *words)
    given = [f"--init_checkpoint={model}", f"--vocab_file={own}"]
    if words[0] == "The":
        assert choose(*given).file == own
        return
    with pytest.raises(UserError) as error:
        choose(*given)
    assert f"a different vocabulary ({model / 'vocab.txt'}) than {own}" in str(error.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--do_lower_case"], "--do_lower_case=true, but the files of the model or voc"),
        (
            ["--max_seq_length=17"],
            "--max_seq_length=17 is more than the model's max_position_embeddings=16",
        ),
        (["--vocab_file=nowhere.txt"], "--vocab_file: nowhere.txt does not exist"),
        (["--spm_model_file=spm.model", "--vocab_file=a.txt"], "exclude each other"),
    ],
)
def test_what_contradicts_the_model_is_refused(choose, model, given, named):
    with pytest.raises(UserError, match=named):
        choose(f"--init_checkpoint={model}", *given)


def test_a_checkpoint_without_a_vocabulary(choose, model):
    (model / "vocab.txt").unlink()
    with pytest.raises(
        UserError,
        match=r"published has no vocab\.txt or spm\.model in its directory; give --vocab_file",
    ):
        choose(f"--init_checkpoint={model}")


def test_a_checkpoint_that_does_not_exist(choose, model):
    """The vocabulary of its directory is not taken for that of a checkpoint that was misspelt."""
    with pytest.raises(UserError, match=r"--init_checkpoint=.*published/model\.ckpt-9 does not ex"):
        choose(f"--init_checkpoint={model / 'model.ckpt-9'}")
    (model / "model.ckpt-9.index").touch()
    chosen = choose(f"--init_checkpoint={model / 'model.ckpt-9'}")
    assert chosen.file == model / "vocab.txt"


def test_a_vocabulary_that_the_model_has_no_rows_for(choose, model):
    write_vocabulary(model / "vocab.txt", "The", "end", "of", "it", "all")
    with pytest.raises(UserError, match=r"has 10 entries, more than the vocab_size=9 of --init"):
        choose(f"--init_checkpoint={model}")


def test_a_model_that_does_not_tell_its_vocabulary(choose, model, capsys):
    own = (model / "vocab.txt").rename(model.parent / "own.txt")
    assert choose(f"--init_checkpoint={model}", f"--vocab_file={own}").file == own
    assert "the vocabulary was not compared: no file of the model" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "lowers"), [(["The", "end"], False), (["the", "end"], True)])
def test_casing_fits_a_vocabulary_that_is_given(choose, tmp_path, words, lowers):
    own = write_vocabulary(tmp_path / "own.txt", *words)
    assert choose(f"--vocab_file={own}").do_lower_case is lowers
    with pytest.raises(UserError, match="which contradicts --do_lower_case"):
        choose(f"--vocab_file={own}", f"--do_lower_case={not lowers}")


def test_records_bring_their_vocabulary(model, tmp_path):
    (tmp_path / "text.txt").write_text("The end\nof it\n\nit\nThe end of it\n" * 5)
    settings = create_pretraining_data.Settings(
        input_file=str(tmp_path / "text.txt"),
        output_file=str(tmp_path / "a.tfrecord"),
        tokenizer_files=TokenizerFiles(model / "vocab.txt", do_lower_case=False),
        max_seq_length=12,
        max_predictions_per_seq=2,
        num_workers=1,
    )
    create_pretraining_data.run(settings)
    manifest = read_manifest(tmp_path)
    assert not manifest.vocabulary.lower_case
    copy = tmp_path / manifest.vocabulary.file_name
    assert copy.read_bytes() == (model / "vocab.txt").read_bytes()
    assert copy.name in {entry.name for entry in manifest.outputs}
    # The user's own file of that name is another one, and the second run is the first one's.
    assert (tmp_path / "vocab.txt").is_file()
    create_pretraining_data.run(settings)
