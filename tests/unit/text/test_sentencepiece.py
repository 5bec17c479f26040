"""SentencePiece models behind the tokenizer interface."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

SHARED_VOCAB = Path(__file__).parents[3].parent / "shared/data/vocab"
TEXT = [f"the cat number {n} sat on mat {n % 7} while dogs were watching" for n in range(200)]


def _train(path, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=50, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return _train(
        tmp_path_factory.mktemp("spm") / "spm.model",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
    )


def test_ids_are_the_models(model_file):
    tokenizer = load_tokenizer(spm_model_file=model_file, do_lower_case=False)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    assert tokenizer.encode(TEXT[3]) == processor.encode(TEXT[3])
    assert tokenizer.tokenize(TEXT[3]) == processor.encode(TEXT[3], out_type=str)
    assert tokenizer.decode(tokenizer.encode(TEXT[3])) == TEXT[3]
    assert (tokenizer.kind, tokenizer.vocab_size) == ("sentencepiece", 50)
    names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    ids = [processor.piece_to_id(name) for name in names]
    special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id]
    assert [*special, tokenizer.sep_id, tokenizer.mask_id] == ids
    assert tokenizer.special_ids == set(ids)
    assert tokenizer.convert_tokens_to_ids(names) == ids


def test_lower_case_comes_before_the_model(model_file):
    cased = load_tokenizer(spm_model_file=model_file, do_lower_case=False)
    uncased = load_tokenizer(spm_model_file=model_file, do_lower_case=True)
    assert uncased.encode("The CAT") == cased.encode("the cat")
    assert cased.encode("The CAT") != cased.encode("the cat")
    assert (cased.lower_case, uncased.lower_case) == (False, True)


def test_words_start_at_the_visible_blank(model_file):
    tokenizer = load_tokenizer(spm_model_file=model_file)
    ids = tokenizer.encode("the watching mat\u4e2d")
    starts = tokenizer.word_starts(ids)
    assert sum(starts) == 3
    assert not starts[-1]  # the unknown character at the end of a word
    assert starts == [piece[0] == "\u2581" for piece in tokenizer.convert_ids_to_tokens(ids)]
    assert tokenizer.word_starts([tokenizer.cls_id, tokenizer.mask_id]) == [True, True]


def test_special_pieces_are_shown_but_never_come_from_text(model_file):
    tokenizer = load_tokenizer(spm_model_file=model_file)
    ids = tokenizer.encode("the cat")
    shown = tokenizer.decode([tokenizer.cls_id, *ids, tokenizer.mask_id, *ids])
    assert shown == "[CLS] the cat [MASK] the cat"
    hidden = tokenizer.special_ids - {tokenizer.unk_id}
    assert not hidden & set(tokenizer.encode("[CLS] <pad> [MASK]"))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_gives_ids_of_the_vocabulary(model_file, text):
    tokenizer = load_tokenizer(spm_model_file=model_file)
    ids = tokenizer.encode(text)
    assert all(0 <= index < tokenizer.vocab_size for index in ids)
    assert len(tokenizer.word_starts(ids)) == len(ids)


def test_missing_special_pieces_are_named(tmp_path):
    with pytest.raises(UserError) as error:
        load_tokenizer(spm_model_file=_train(tmp_path / "a.model", control_symbols="<cls>,[SEP]"))
    assert "no piece <pad> or [PAD], no piece [MASK] or <mask>" in str(error.value)
    assert "[CLS]" not in str(error.value)


@pytest.mark.parametrize("content", [b"not a model", pickle.dumps({}), b"\x00" * 100, b"\xff" * 9])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.model (is not a SentencePiece model|has no piece)"):
        load_tokenizer(spm_model_file=path)


def test_albert_model():
    path = SHARED_VOCAB / "albert-30k-clean.model"
    if not path.exists():
        pytest.skip("../shared/data is not here")
    tokenizer = load_tokenizer(spm_model_file=path)
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id)
    assert (*ids, tokenizer.mask_id, tokenizer.vocab_size) == (0, 1, 2, 3, 4, 30000)
    pieces = ["\u2581the", "\u2581people", "\u2581of", "\u2581", "count", "ry", "."]
    assert tokenizer.tokenize("The people of country.") == pieces


def test_a_piece_that_is_not_utf_8_is_refused(model_file, tmp_path):
    tokenizer = load_tokenizer(spm_model_file=model_file)
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    piece, content = max(pieces, key=len).encode(), model_file.read_bytes()
    path = tmp_path / "spm.model"
    path.write_bytes(content.replace(piece, b"\xff" * len(piece), 1))
    with pytest.raises(UserError, match=f"{path} is not a SentencePiece model"):
        load_tokenizer(spm_model_file=path)
