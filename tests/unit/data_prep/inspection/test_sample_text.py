"""Records shown as text, with what is masked and labelled."""

import numpy as np
import pytest

from data_prep.inspection.sample_text import LEGEND, show_record
from tests.helpers.small_vocabulary import load_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "play", "##ing", "river", "flows"]
IDS = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return load_tokenizer(vocab_file=path, do_lower_case=True)


def example(text, *, padding=0, **others):
    ids = [IDS[word] for word in text.split()] + [0] * padding
    used = [1] * (len(ids) - padding) + [0] * padding
    arrays = {"input_ids": ids, "input_mask": used, **others}
    return {name: np.array(values) for name, values in arrays.items()}


def test_masks(tokenizer):
    record = example(
        "[CLS] the [MASK] ##ing flows play [SEP]",
        padding=2,
        masked_lm_positions=[2, 4, 5, 0],
        masked_lm_ids=[IDS["play"], IDS["river"], IDS["play"], 0],
        masked_lm_weights=[1.0, 1.0, 1.0, 0.0],
        next_sentence_labels=[1],
    )
    assert show_record(record, tokenizer).line() == (
        "(next_sentence_labels 1) [CLS] the [[MASK]->play]ing [flows->river] [play->play] [SEP] "
        "(and 2 positions of padding)"
    )
    shown = show_record(record, None).line()
    assert shown.startswith("(next_sentence_labels 1) 2 5 [4->6] 7 [9->8] [6->6] 3 ")


def test_masks_have_colours_on_a_page(tokenizer):
    record = example(
        "[CLS] the [MASK] ##ing [SEP] flows play [SEP]",
        padding=2,
        segment_ids=[0, 0, 0, 0, 0, 1, 1, 1, 0, 0],
        masked_lm_positions=[2, 5, 6, 0],
        masked_lm_ids=[IDS["play"], IDS["river"], IDS["play"], 0],
        masked_lm_weights=[1.0, 1.0, 1.0, 0.0],
    )
    assert show_record(record, tokenizer).html() == (
        '[CLS] the <mark class="hidden">play</mark>ing [SEP]<span class="segment"> '
        '<mark class="replaced">river<s>flows</s></mark> <mark class="kept">play</mark> '
        "[SEP]</span> (and 2 positions of padding)"
    )
    for kind in ("hidden", "replaced", "kept", "segment"):
        assert f'class="{kind}"' in "".join(LEGEND)


def test_pieces_that_are_masked(tokenizer):
    record = example(
        "[CLS] play [MASK] [SEP]",
        masked_lm_positions=[2],
        masked_lm_ids=[IDS["##ing"]],
        masked_lm_weights=[1.0],
    )
    assert show_record(record, tokenizer).line() == "[CLS] play[[MASK]->ing] [SEP]"


def test_answers_and_labels(tokenizer):
    answer = example(
        "[CLS] the [SEP] play ##ing river [SEP]",
        start_positions=[3], end_positions=[4], is_impossible=[0],
    )  # fmt: skip
    assert (
        show_record(answer, tokenizer)
        .line()
        .startswith("(is_impossible 0, answer 'playing') [CLS]")
    )
    tagged = example(
        "[CLS] play ##ing river [SEP]", word_starts=[0, 1, 0, 1, 0], label_ids=[0, 2, 0, 1, 0]
    )
    assert show_record(tagged, tokenizer).line() == "[CLS] play/2ing river/1 [SEP]"
    rated = example("[CLS] the [SEP]", labels=[2.5])
    assert show_record(rated, tokenizer).line() == "(labels 2.5) [CLS] the [SEP]"
