"""Masked places and the words for them, with a network whose answer is known."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.tasks.pretraining.mask_filler import Guess, MaskFiller, encode_with_masks
from bert_tf.util.errors import UserError
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.small_vocabulary import load_tokenizer

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "mask", "is", "##ed", "[", "]"]
PAD, UNK, CLS, SEP, MASK, THE, MASK_WORD, IS, ED, OPEN, CLOSE = range(len(ENTRIES))
OUTPUTS = len(ENTRIES) + 3  # as a model that was padded to a rounder number


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return load_tokenizer(vocab_file=path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the [MASK] is", [THE, MASK, IS]),
        ("[MASK]", [MASK]),
        ("[MASK] [MASK]the[MASK]", [MASK, MASK, THE, MASK]),
        ("The masked [MASK].", [THE, MASK_WORD, ED, MASK, UNK]),
        # In another spelling it is text.
        ("[mask] [MASK]", [OPEN, MASK_WORD, CLOSE, MASK]),
    ],
)
def test_encode_with_masks(tokenizer, text, expected):
    assert encode_with_masks(text, tokenizer) == [CLS, *expected, SEP]


@pytest.mark.parametrize("text", ["", "the mask is"])
def test_a_text_without_a_mask_is_one_sentence(tokenizer, text):
    with pytest.raises(UserError, match=r"--text=.* contains no \[MASK\]"):
        encode_with_masks(text, tokenizer)


CONFIG = BertConfig(
    vocab_size=OUTPUTS,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=4,
    max_position_embeddings=8,
)
# All weights are zero, so that the logits are the output biases, whatever the text.
LOGITS = np.zeros(OUTPUTS, np.float32)
LOGITS[[IS, THE, PAD]] = [3.0, 2.0, 1.0]
LOGITS[-1] = 4.0


def save(directory, config=CONFIG, **changes):
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape, *_ in pretraining_specs(config, next_sentence=True):
            tf.get_variable(name, initializer=changes.get(name, np.zeros(shape, np.float32)))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(directory / "model.ckpt"))
    return directory


@pytest.fixture(scope="module")
def filler(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    checkpoint = save(directory, **{"cls/predictions/output_bias": LOGITS})
    return MaskFiller(CONFIG, tokenizer, checkpoint)


def test_the_best_guesses_come_first_with_their_probabilities(filler):
    [guesses] = filler.fill([CLS, MASK, SEP], top=3)
    # The likeliest output is none of the vocabulary's; it keeps its share of the probability.
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert [g.token for g in guesses] == ["is", "the", "[PAD]"]
    expected = [probabilities[IS], probabilities[THE], probabilities[PAD]]
    assert [g.probability for g in guesses] == pytest.approx(expected, rel=1e-5)
    assert isinstance(guesses[0], Guess)


def test_a_list_of_guesses_for_each_mask(filler):
    found = filler.fill([CLS, MASK, THE, MASK, SEP], top=1)
    assert [[g.token for g in guesses] for guesses in found] == [["is"], ["is"]]


def test_no_more_guesses_than_there_are_words(filler):
    [guesses] = filler.fill([CLS, MASK, SEP], top=100)
    assert len(guesses) == len(ENTRIES)
    assert {g.token for g in guesses} == set(ENTRIES)


IS_VECTOR, THE_VECTOR = [1, -1, 0, 0], [0, 0, 1, -1]


def save_looking_at(directory, table, rows):
    """A model whose answer is what a row of one embedding table says: "is" or "the".

    The layer normalisations pass the vector on, and all other weights are zero.
    """
    width = CONFIG.hidden_size
    looked_at = np.zeros([rows, width], np.float32)
    looked_at[0], looked_at[1] = THE_VECTOR, IS_VECTOR
    words = np.zeros([OUTPUTS, width], np.float32)
    words[IS], words[THE] = IS_VECTOR, THE_VECTOR
    ones, layer = np.ones(width, np.float32), "bert/encoder/layer_0"
    weights = {
        "bert/embeddings/word_embeddings": words,
        f"bert/embeddings/{table}": looked_at,
        "bert/embeddings/LayerNorm/gamma": ones,
        f"{layer}/attention/output/LayerNorm/gamma": ones,
        f"{layer}/output/LayerNorm/gamma": ones,
        "cls/predictions/transform/dense/kernel": np.eye(width, dtype=np.float32),
        "cls/predictions/transform/LayerNorm/gamma": ones,
    }
    return save(directory, **weights)


def best(found):
    return [guesses[0].token for guesses in found]


def test_each_mask_is_answered_from_its_own_place(tokenizer, tmp_path):
    save_looking_at(tmp_path, "position_embeddings", CONFIG.max_position_embeddings)
    filler = MaskFiller(CONFIG, tokenizer, tmp_path)
    assert best(filler.fill([MASK, MASK, SEP], top=1)) == ["the", "is"]
    assert best(filler.fill([CLS, MASK, SEP], top=1)) == ["is"]


def test_segments(tokenizer, tmp_path):
    save_looking_at(tmp_path, "token_type_embeddings", CONFIG.type_vocab_size)
    filler = MaskFiller(CONFIG, tokenizer, tmp_path)
    ids = [CLS, MASK, SEP, MASK, SEP]
    assert best(filler.fill(ids, top=1)) == ["the", "the"]
    assert best(filler.fill(ids, segment_ids=[0, 0, 0, 1, 1], top=1)) == ["the", "is"]


def test_a_vocabulary_that_is_larger_than_the_model(tokenizer, tmp_path):
    config = BertConfig.from_dict({**CONFIG.to_dict(), "vocab_size": len(ENTRIES) - 1})
    with pytest.raises(UserError, match="vocabulary has 11 entries and the model 10"):
        MaskFiller(config, tokenizer, tmp_path)


def test_weights_of_another_model(tokenizer, tmp_path):
    save(tmp_path)
    config = BertConfig.from_dict({**CONFIG.to_dict(), "intermediate_size": 6})
    with pytest.raises(UserError, match="cannot start from"):
        MaskFiller(config, tokenizer, tmp_path)


def test_texts_are_predicted_in_their_order(filler):
    [[is_word], [first, second]] = filler.predict(["the [MASK]", "[MASK] is [MASK]"], top=1)
    assert [g.token for g in (*is_word, *first, *second)] == ["is"] * 3


def test_a_text_that_is_longer_than_the_network(filler):
    with pytest.raises(UserError, match="--text has 10 tokens, more than the model's"):
        filler.predict(["[MASK] " * 8])
