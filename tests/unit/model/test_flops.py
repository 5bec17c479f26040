"""Model FLOPs, compared with torch's counter on transformers' network."""

import dataclasses

import pytest

from bert_tf.model.config import BertConfig
from bert_tf.model.flops import training_flops

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
)


def counted_by_torch(config, *, length):
    """Forward and backward pass of one sequence, all of whose words are predicted."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    settings = transformers.BertConfig(**config.to_dict(), attn_implementation="eager")
    network = transformers.BertForPreTraining(settings)
    ids = torch.ones([1, length], dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        outputs = network(ids, labels=ids, next_sentence_label=torch.zeros([1], dtype=torch.long))
        outputs.loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("length", [8, 16])
def test_the_count_is_that_of_torch(length):
    found = training_flops(CONFIG, length=length, predictions=length, next_sentence=True)
    assert found == counted_by_torch(CONFIG, length=length)


def test_heads_that_are_left_out_cost_nothing():
    counts = {
        (predictions, next_sentence): training_flops(
            CONFIG, length=8, predictions=predictions, next_sentence=next_sentence
        )
        for predictions in (0, 3)
        for next_sentence in (False, True)
    }
    assert counts[3, False] - counts[0, False] == 6 * 3 * (12 * 12 + 12 * 50)
    assert counts[0, True] - counts[0, False] == 6 * (12 * 12 + 12 * 2)


def test_bert_base_is_about_six_operations_a_weight_and_token():
    """Kaplan et al. 2020, section 2.1: C = 6 N for each token, N without embeddings."""
    config = dataclasses.replace(
        CONFIG, vocab_size=30_522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, max_position_embeddings=512,
    )  # fmt: skip
    found = training_flops(config, length=128, predictions=0, next_sentence=False)
    assert found / 128 == pytest.approx(6 * 85e6, rel=0.03)
