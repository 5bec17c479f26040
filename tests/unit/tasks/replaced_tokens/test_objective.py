"""FLOPs of both networks, compared with torch's counter on transformers' ELECTRA."""

import pytest

from bert_tf.model.config import BertConfig
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens

LENGTH = 8
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
)


def counted_by_torch(config, class_name):
    """Forward and backward pass of one sequence, with a label at every token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    settings = transformers.ElectraConfig(
        **config.to_dict(), embedding_size=CONFIG.hidden_size, attn_implementation="eager"
    )
    network = getattr(transformers, class_name)(settings)
    ids = torch.ones([1, LENGTH], dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(ids, labels=ids).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("share", [1 / 3, 1.0])
def test_the_count_is_that_of_torch(share):
    objective = ReplacedTokens(generator_hidden_size=share, generator_layers=0.5)
    found = objective.task(CONFIG).training_flops(length=LENGTH, predictions=LENGTH)
    expected = counted_by_torch(CONFIG, "ElectraForPreTraining")
    expected += counted_by_torch(objective.generator(CONFIG), "ElectraForMaskedLM")
    assert found == expected


def test_words_cost_what_the_embeddings_are_wide():
    counts = [
        ReplacedTokens().task(CONFIG).training_flops(length=LENGTH, predictions=predictions)
        for predictions in (0, 3)
    ]
    assert counts[1] - counts[0] == 6 * 3 * 12 * (4 + 50)
