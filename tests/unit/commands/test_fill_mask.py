"""The command that predicts masked words."""

from types import SimpleNamespace

import pytest

from bert_tf.commands import fill_mask
from bert_tf.model_directory.record import write_model_files
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.unit.tasks.pretraining.test_mask_filler import CONFIG, ENTRIES, save


def test_the_command_refuses_another_vocabulary_of_the_same_size(tmp_path, monkeypatch):
    write_model_files(
        save(tmp_path), CONFIG, TokenizerFiles(write_vocabulary(tmp_path / "words.txt"))
    )
    other = write_vocabulary(tmp_path / "other.txt", reversed(ENTRIES))
    values = SimpleNamespace(
        model_dir=None,
        bert_config_file=tmp_path / "bert_config.json",
        init_checkpoint=tmp_path,
        vocab_file=other,
        spm_model_file=None,
        do_lower_case=True,
        text="the [MASK] is",
        top=1,
    )
    monkeypatch.setattr(fill_mask.flags, "FLAGS", values)
    monkeypatch.setattr(fill_mask.environment, "prepare_environment", lambda **_: None)
    with pytest.raises(UserError) as error:
        fill_mask.main(None)
    named = f"a different vocabulary ({tmp_path / 'vocab.txt'}) than {other};"
    assert named in str(error.value)


def write_vocabulary(path, entries=ENTRIES):
    path.write_text("".join(f"{entry}\n" for entry in entries))
    return path
