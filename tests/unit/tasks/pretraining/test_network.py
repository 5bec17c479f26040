"""The network and the vocabulary of a pre-training run, from all their sources."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from bert_tf.durable.manifest import VocabularyEntry
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import write_model_files
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.records.info import RecordVocabulary
from bert_tf.tasks.pretraining.network import open_model
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError
from tests.helpers.settings import with_values
from tests.helpers.tiny_pretraining import CONFIG, SPECIAL_IDS, pretraining_settings

NO_FILES = TokenizerFiles()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path, size, letter="a"):
    path.parent.mkdir(exist_ok=True)
    entries = [*SPECIAL, *(f"{letter}{n}" for n in range(size - len(SPECIAL)))]
    path.write_text("".join(f"{entry}\n" for entry in entries))
    return path


def records_of(vocab_file, *, copied=False, lower_case=True):
    """The description of records that were made with a vocabulary."""
    size, digest = len(vocab_file.read_text().splitlines()), digest_of_file(vocab_file)
    entry = VocabularyEntry(digest, size, "wordpiece", lower_case, SPECIAL_IDS)
    manifest = vocab_file.with_name("manifest.json")
    return RecordVocabulary(manifest, entry, vocab_file if copied else None)


@pytest.fixture(name="settings")
def settings_without_a_model(tmp_path):
    settings = pretraining_settings(tmp_path)
    return dataclasses.replace(settings, bert_config_file=None)


def find(settings, records=None, **options):
    model, _ = find_with_notes(settings, records, **options)
    return model


def find_with_notes(settings, records=None, *, init_checkpoint=None, resumed=None, **changes):
    run = with_values(settings.run, init_checkpoint=init_checkpoint and str(init_checkpoint))
    start = SimpleNamespace(checkpoint=resumed and str(resumed / "model.ckpt-1"))
    settings = with_values(settings, run=run, **changes)
    notes = []
    run = SimpleNamespace(
        start=start,
        ranks=SingleProcess(),
        remark=lambda sentence, part: notes.append(sentence),
        report=lambda sentences, part: notes.extend(sentences),
    )
    return open_model(settings, run, records, sentence_order=False), notes


def config_file(directory, **changes):
    path = directory / "recipe.json"
    path.write_text(json.dumps({**CONFIG.to_dict(), **changes}))
    return path


@pytest.mark.parametrize("in_file", [20, 2000])
def test_a_network_without_weights_gets_the_size_of_the_vocabulary(settings, tmp_path, in_file):
    path = config_file(tmp_path, vocab_size=in_file)
    records = records_of(write_vocabulary(tmp_path / "vocab.txt", 50), copied=True)
    model, [note] = find_with_notes(settings, records, bert_config_file=path)
    assert model.config == dataclasses.replace(CONFIG, vocab_size=50)
    assert note.startswith(
        f"the network's vocab_size is 50, the vocabulary's, not {in_file} as in {path}"
    )
    assert ("give --vocab_size=2000 to keep that" in note) == (in_file == 2000)


@pytest.mark.parametrize("in_file", [50, 56, 177])
def test_a_padded_table_stays_padded(settings, tmp_path, in_file):
    path = config_file(tmp_path, vocab_size=in_file)
    records = records_of(write_vocabulary(tmp_path / "vocab.txt", 50), copied=True)
    model, notes = find_with_notes(settings, records, bert_config_file=path)
    assert (model.config.vocab_size, notes) == (in_file, [])


def test_a_flag_overrides_the_size(settings, tmp_path):
    path = config_file(tmp_path, vocab_size=2000)
    records = records_of(write_vocabulary(tmp_path / "vocab.txt", 50), copied=True)
    changes = {"vocab_size": 2000}
    model, notes = find_with_notes(settings, records, bert_config_file=path, network=changes)
    assert (model.config.vocab_size, notes) == (2000, [])


def test_records_without_a_manifest_leave_the_files_size(settings, tmp_path):
    model, [note] = find_with_notes(settings, bert_config_file=config_file(tmp_path))
    assert (model.config, model.vocabulary, model.tokenizer_files) == (CONFIG, None, NO_FILES)
    assert note.startswith("no vocabulary is stored with the records or the initial weights, so")


def test_flags_change_the_network_of_a_file(settings, tmp_path):
    changes = {"hidden_size": 16, "num_hidden_layers": 3, "hidden_dropout_prob": 0.2}
    model = find(settings, bert_config_file=config_file(tmp_path), network=changes)
    assert model.config == with_values(CONFIG, **changes)


def test_flags_without_a_file_change_bert_base(settings, tmp_path):
    records = records_of(write_vocabulary(tmp_path / "vocab.txt", 50), copied=True)
    model, notes = find_with_notes(settings, records, network={"num_hidden_layers": 2})
    expected = BertConfig(vocab_size=50, num_hidden_layers=2, type_vocab_size=2)
    assert (model.config, notes) == (expected, [])


def test_a_directory_with_only_results_is_not_a_model(settings):
    with pytest.raises(UserError, match="no model was given; describe its architecture"):
        find(settings)


def test_flags_that_give_an_invalid_network_are_named(settings, tmp_path):
    path = config_file(tmp_path)
    with pytest.raises(
        UserError, match=rf"{path} with --hidden_size=9: hidden_size 9 is not a mul"
    ):
        find(settings, bert_config_file=path, network={"hidden_size": 9})
    with pytest.raises(UserError, match=r"records' vocabulary is unknown; give --vocab_file or"):
        find(settings, network={"hidden_size": 12})


def write_model(directory, *, lower_case=True, letter="a"):
    vocab_file = write_vocabulary(directory / "vocab.txt", CONFIG.vocab_size, letter)
    write_model_files(directory, CONFIG, TokenizerFiles(vocab_file, do_lower_case=lower_case))
    return directory


@pytest.mark.parametrize("how", ["init_checkpoint", "resumed"])
def test_weights_supply_what_is_not_given(settings, tmp_path, how):
    directory = write_model(tmp_path / "published")
    model = find(settings, **{how: directory})
    assert model.config == CONFIG.with_explicit_gelu()
    assert model.tokenizer_files.vocab_file == directory / "vocab.txt"
    assert model.tokenizer_files.do_lower_case is True
    # The records' vocabulary is unknown; check_start reports that nothing was compared.
    assert model.vocabulary is None


def test_weights_without_a_configuration(settings, tmp_path):
    directory = tmp_path / "bare"
    directory.mkdir()
    named = f"no bert_config.json was found for {directory}; give --bert_config_file"
    with pytest.raises(UserError, match=named):
        find(settings, init_checkpoint=directory, network={"hidden_size": 8})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("hidden_size", 16, 8), ("num_attention_heads", 4, 2), ("vocab_size", 41, 40),
     ("hidden_act", "relu", "gelu_tanh")],
)  # fmt: skip
@pytest.mark.parametrize("how", ["init_checkpoint", "resumed"])
def test_flags_that_contradict_weights(settings, tmp_path, how, name, value, said):
    directory = write_model(tmp_path / "published")
    with pytest.raises(UserError) as error:
        find(settings, **{how: directory}, network={name: value})
    path = directory / "bert_config.json"
    assert f"--{name}={value} contradicts {path}, which has {said}" in str(error.value)


def test_flags_may_repeat_the_weights_and_change_dropout(settings, tmp_path):
    same = {"hidden_size": CONFIG.hidden_size, "hidden_dropout_prob": 0.3}
    model = find(settings, init_checkpoint=write_model(tmp_path / "published"), network=same)
    assert (model.config.hidden_size, model.config.hidden_dropout_prob) == (8, 0.3)


def test_the_vocabulary_is_stored_with_the_records_or_the_same_weights(settings, tmp_path):
    directory = write_model(tmp_path / "published")
    copy = write_vocabulary(tmp_path / "records" / "wordpiece-1.vocab", CONFIG.vocab_size)
    assert (
        find(
            settings, records_of(copy, copied=True), init_checkpoint=directory
        ).tokenizer_files.file
        == copy
    )
    found = find(settings, records_of(copy), init_checkpoint=directory)
    assert found.tokenizer_files.vocab_file == directory / "vocab.txt"
    assert found.vocabulary.digest == digest_of_file(copy)
    other = write_vocabulary(tmp_path / "other" / "wordpiece-2.vocab", CONFIG.vocab_size, "b")
    assert find(settings, records_of(other), init_checkpoint=directory).tokenizer_files.file is None


@pytest.mark.parametrize("name", ["", "model.ckpt-1"], ids=["directory", "prefix"])
def test_a_sentencepiece_model_is_copied_from_the_records_to_the_model(settings, tmp_path, name):
    copy = tmp_path / "sentencepiece-1.model"
    copy.write_bytes(b"pieces")
    entry = VocabularyEntry(digest_of_file(copy), 40, "sentencepiece", False, SPECIAL_IDS)
    records = RecordVocabulary(tmp_path / "manifest.json", entry, copy)
    found = find(settings, records, network={"hidden_size": 12})
    assert found.tokenizer_files == TokenizerFiles(None, copy, False)
    directory = tmp_path / "left"
    directory.mkdir()
    write_vocabulary(directory / "vocab.txt", 40)  # of a run that ended before its first checkpoint
    write_model_files(directory, found.config, found.tokenizer_files)
    again = find(settings, init_checkpoint=directory / name)
    assert again.tokenizer_files == TokenizerFiles(None, directory / "spm.model", False)
    assert again.config == found.config.with_explicit_gelu()
    write_vocabulary(directory / "vocab.txt", 40)
    with pytest.raises(UserError, match=r"vocab\.txt and .*spm\.model are two vocabularies of one"):
        find(settings, init_checkpoint=directory / name)


@pytest.mark.parametrize("how", ["init_checkpoint", "resumed"])
@pytest.mark.parametrize(("in_file", "taken"), [(2000, 40), (20, 40), (40, 40)])
def test_the_same_recipe_resumes_with_its_weights(settings, tmp_path, how, in_file, taken):
    directory = write_model(tmp_path / "model")
    records = records_of(directory / "vocab.txt", copied=True)
    path = config_file(tmp_path, vocab_size=in_file)
    found = find(settings, records, **{how: directory}, bert_config_file=path)
    assert found.config.vocab_size == taken
    # Weights with a longer table than the vocabulary, as --vocab_size makes them.
    (directory / "model.json").unlink()  # as in published models
    long = {**CONFIG.to_dict(), "vocab_size": in_file}
    (directory / "bert_config.json").write_text(json.dumps(long))
    found = find(settings, records, **{how: directory}, bert_config_file=path)
    assert found.config.vocab_size == in_file
    # A table of neither length is another network, which the comparison of networks refuses.
    (directory / "bert_config.json").write_text(json.dumps({**long, "vocab_size": 3000}))
    found = find(settings, records, **{how: directory}, bert_config_file=path)
    assert found.config.vocab_size == in_file


def test_a_given_vocabulary(settings, tmp_path):
    own = write_vocabulary(tmp_path / "own.txt", 30)
    found = find(settings, tokenizer_files=TokenizerFiles(own), network={"hidden_size": 12})
    assert (found.config.vocab_size, found.tokenizer_files) == (30, TokenizerFiles(own, None, True))
    assert found.vocabulary.digest == digest_of_file(own)
    other = write_vocabulary(tmp_path / "other.txt", 30, "b")
    with pytest.raises(UserError, match=r"manifest\.json were made with a different vocabulary"):
        find(
            settings,
            records_of(other),
            tokenizer_files=TokenizerFiles(own),
            network={"hidden_size": 12},
        )


def test_casing_of_records_and_model_must_agree(settings, tmp_path):
    directory = write_model(tmp_path / "published")
    records = records_of(directory / "vocab.txt", lower_case=False)
    with pytest.raises(UserError, match="the model's do_lower_case is true, but the records of"):
        find(settings, records, init_checkpoint=directory)
    with pytest.raises(
        UserError, match=r"--do_lower_case is true, but the records of .* with false"
    ):
        find(
            settings,
            records,
            bert_config_file=config_file(tmp_path),
            tokenizer_files=TokenizerFiles(do_lower_case=True),
        )
    found = find(settings, records, bert_config_file=config_file(tmp_path))
    assert found.tokenizer_files.do_lower_case is False


def test_accents_of_records_and_model_must_agree(settings, tmp_path):
    directory = write_model(tmp_path / "published")
    records = records_of(directory / "vocab.txt")
    entry = dataclasses.replace(records.entry, strip_accents=False)
    records = dataclasses.replace(records, entry=entry)
    with pytest.raises(UserError, match="the model's strip_accents is true, but the records of"):
        find(settings, records, init_checkpoint=directory)
    options = {"bert_config_file": config_file(tmp_path)}
    with pytest.raises(UserError, match=r"--strip_accents is true, .* made with false"):
        given = TokenizerFiles(strip_accents=True)
        find(settings, records, tokenizer_files=given, **options)
    assert find(settings, records, **options).tokenizer_files.strip_accents is False
